"""Collection of every moved or removed name, with its history."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from moved_names import contrib, manual
from moved_names.tracing import Place, Trace, Tracer
from moved_names.trees import Definition, Tree

OLDEST_SUPPORTED = "2.15"
# The last version that programs for tf.estimator were written for; names that only later versions had do not matter.
LAST_FOR_ESTIMATORS = "2.15"

# Decorators that nearly every module imports for its public names.
TOOLS = ("deprecated", "estimator_export", "keras_export", "tf_export")

_COMPILED = """
import json, os, sys
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")
import tensorflow
names = {}
for name, module in list(sys.modules.items()):
    if name.startswith("tensorflow.python.") and (getattr(module, "__file__", None) or "").endswith(".so"):
        names[name] = [n for n in dir(module) if not n.startswith("__")]
print(json.dumps(names))
"""


@dataclass
class Names:
    """The moved and removed names.

    Attributes:
        traces: (module, name) -> its history; public names, and private names with a new home.
        versions: all versions, oldest first.
        modules_gone: module that the newest version does not have -> the first version without it.
        elsewhere: (module, name) that count as removed although the newest version has a definition of the same name
            and kind somewhere: names that may have been missed.
        newest: module -> names, of the newest version and of Keras.
        contrib: (public module of tf.contrib, name) -> its current place.
        defined: names that were defined in their module. Only they show where the module moved; re-exports do not.
        counted: the number of public names in total.
    """

    traces: dict[Place, Trace] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    modules_gone: dict[str, str] = field(default_factory=dict)
    elsewhere: list[Place] = field(default_factory=list)
    newest: dict[str, set[str]] = field(default_factory=dict)
    contrib: dict[Place, Place] = field(default_factory=dict)
    defined: set[Place] = field(default_factory=set)
    counted: int = 0

    def public(self) -> dict[Place, Trace]:
        return {place: trace for place, trace in self.traces.items() if not place[1].startswith("_")}


def compiled_names(python: Path) -> dict[str, list[str]]:
    """Return module -> names of the compiled modules that `import tensorflow` loads under this interpreter."""
    done = subprocess.run([str(python), "-c", _COMPILED], check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def names(
    versions: list[Tree],
    keras: Tree,
    compiled: list[dict[str, list[str]]],
    with_contrib: Tree | None = None,
    estimator: Tree | None = None,
) -> Names:
    """Return the history of every name.

    Args:
        versions: `tensorflow.python` of each version, oldest first.
        keras: tf_keras.
        compiled: the result of `compiled_names` for each interpreter.
        with_contrib: the oldest version with tf.contrib and the estimator package.
        estimator: the last estimator package.
    """
    result = Names(versions=[tree.version for tree in versions])
    tracer = Tracer(versions, keras, manual.REJECTED)
    relevant = result.versions.index(LAST_FOR_ESTIMATORS)
    last: dict[Place, int] = {}
    gone_after: dict[str, int] = {}
    for number, tree in enumerate(versions):
        for module in tree.modules:
            if number <= relevant or module in gone_after:
                gone_after[module] = number
            for name in tree.names(module):
                place = (module, name)
                if number > relevant:
                    # A name that is bound to an object outside the tree (compiled, generated) still exists.
                    if place in last:
                        last[place] = number
                    continue
                definition = tree.find(module, name)
                is_defined = isinstance(definition, Definition) and definition.place == place
                if not isinstance(definition, Definition) or name.startswith("__"):
                    continue
                if (not is_defined and definition.name in TOOLS) or definition.module.endswith("_pb2"):
                    continue
                if not name.startswith("_") or (is_defined and definition.kind != "value"):
                    last[place] = number
                    (result.defined.add if is_defined else result.defined.discard)(place)
    for number, tree in enumerate(versions):
        for place in last:
            if last[place] < number and place[0] in tree.modules and place[1] in tree.names(place[0]):
                last[place] = number
    newest = len(versions) - 1
    result.newest = {module: tree.names(module) for tree in (versions[-1], keras) for module in tree.modules}
    result.counted = sum(not name.startswith("_") for _, name in last)
    result.modules_gone = {m: result.versions[number + 1] for m, number in gone_after.items() if number < newest}
    for place, number in last.items():
        if number < newest:
            trace = _look_up_manual(place, versions[number + 1 :]) or _follow(tracer, place, number)
            if trace is not None:
                result.traces[place] = trace if trace.homes else _find_compiled(place, trace, compiled)
    result.traces = {p: t for p, t in result.traces.items() if t.homes or not p[1].startswith("_")}
    if with_contrib is not None and estimator is not None:
        result.contrib = contrib.homes(with_contrib, tracer, estimator)
    for place, trace in result.public().items():
        number = result.versions.index(trace.since) - 1
        old = tracer.indexes[number].at(place)
        if trace.how == "gone" and old is not None and old.kind != "value":
            same = tracer.indexes[-1].by_name[place[1]] + tracer.keras.by_name[place[1]]
            if any(new.kind == old.kind and new.arguments == old.arguments for new in same):
                result.elsewhere.append(place)
    return result


def _follow(tracer: Tracer, place: Place, number: int) -> Trace | None:
    # The last version that defined it in this tree; later ones may bind it to a compiled object.
    while number >= 0 and tracer.indexes[number].at(place) is None:
        number -= 1
    return tracer.follow(place, number) if number >= 0 else None


def _look_up_manual(place: Place, without: list[Tree]) -> Trace | None:
    since = [tree.version for tree in without]
    home = manual.NAMES.get(".".join(place))
    if home is not None:
        module, _, name = home.rpartition(".")
        return Trace(since[0], dict.fromkeys(since, (module, name)), "manual")
    whole = manual.MODULES.get(place[0])
    if whole is not None and (whole not in without[-1].modules or place[1] in without[-1].names(whole)):
        return Trace(since[0], dict.fromkeys(since, (whole, place[1])), "manual")
    return None


def _find_compiled(place: Place, trace: Trace, compiled: list[dict[str, list[str]]]) -> Trace:
    """Look up a name of SWIG's single module in the compiled modules that replaced it."""
    if "pywrap_tensorflow" not in place[0] and place[0] != "tensorflow.python":
        return trace
    homes = []
    for names in compiled:
        modules = [module for module, inside in names.items() if place[1] in inside]
        if len(modules) != 1:
            return trace  # not on every supported version
        homes.append((modules[0], place[1]))
    for number, home in enumerate(homes):
        trace.homes[f"compiled {number}"] = home
        trace.how = "compiled"
    return trace
