"""Every name that was there once and is no longer, with what became of it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from moved_names import by_hand, contrib
from moved_names.tracing import Place, Trace, Tracer
from moved_names.trees import Definition, Tree

OLDEST_SUPPORTED = "2.15"
# Programs for tf.estimator were written for these; what only a later version had is none of theirs.
LAST_FOR_ESTIMATORS = "2.15"

# What nearly every module imports to mark its own names with.
TOOLS = ("deprecated", "estimator_export", "keras_export", "tf_export")

_COMPILED = """
import json, os, sys
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")
import tensorflow
found = {}
for name, module in list(sys.modules.items()):
    if name.startswith("tensorflow.python.") and (getattr(module, "__file__", None) or "").endswith(".so"):
        found[name] = [n for n in dir(module) if not n.startswith("__")]
print(json.dumps(found))
"""


@dataclass
class Names:
    """What is no longer where it was.

    Attributes:
        traces: (module, name) -> what became of it; public names, and private ones that have a new home.
        versions: all, oldest first.
        modules_gone: module that the newest version does not have -> the first one without it.
        elsewhere: (module, name) that count as gone, of which the newest version has a definition of the same name and
            kind somewhere: what may have been overlooked.
        newest: module -> names, of the newest version and of Keras.
        contrib: (public module of tf.contrib, name) -> where it is today.
        own: of them, what was defined in that module: what it only showed says nothing of where the module went.
        counted: how many public names there were in all.
    """

    traces: dict[Place, Trace] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    modules_gone: dict[str, str] = field(default_factory=dict)
    elsewhere: list[Place] = field(default_factory=list)
    newest: dict[str, set[str]] = field(default_factory=dict)
    contrib: dict[Place, Place] = field(default_factory=dict)
    own: set[Place] = field(default_factory=set)
    counted: int = 0

    def public(self) -> dict[Place, Trace]:
        return {place: trace for place, trace in self.traces.items() if not place[1].startswith("_")}


def compiled_names(python: Path) -> dict[str, list[str]]:
    """Return module -> names, of the compiled modules that `import tensorflow` loads under this interpreter."""
    done = subprocess.run([str(python), "-c", _COMPILED], check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def names(
    versions: list[Tree],
    keras: Tree,
    compiled: list[dict[str, list[str]]],
    with_contrib: Tree | None = None,
    estimator: Tree | None = None,
) -> Names:
    """Return what became of every name.

    Args:
        versions: `tensorflow.python` of each, oldest first.
        keras: tf_keras.
        compiled: of each interpreter, what `compiled_names` told.
        with_contrib: the oldest again, with tf.contrib and the estimator package beside it.
        estimator: the last estimator package.
    """
    found = Names(versions=[tree.version for tree in versions])
    tracer = Tracer(versions, keras, by_hand.REFUSED)
    relevant = found.versions.index(LAST_FOR_ESTIMATORS)
    last: dict[Place, int] = {}
    gone_after: dict[str, int] = {}
    for number, tree in enumerate(versions):
        for module in tree.modules:
            if number <= relevant or module in gone_after:
                gone_after[module] = number
            for name in tree.names(module):
                place = (module, name)
                if number > relevant:
                    # What is bound to something outside the tree (compiled, generated) is there all the same.
                    if place in last:
                        last[place] = number
                    continue
                definition = tree.find(module, name)
                own = isinstance(definition, Definition) and definition.place == place
                if not isinstance(definition, Definition) or name.startswith("__"):
                    continue
                if (not own and definition.name in TOOLS) or definition.module.endswith("_pb2"):
                    continue
                if not name.startswith("_") or (own and definition.kind != "value"):
                    last[place] = number
                    (found.own.add if own else found.own.discard)(place)
    for number, tree in enumerate(versions):
        for place in last:
            if last[place] < number and place[0] in tree.modules and place[1] in tree.names(place[0]):
                last[place] = number
    newest = len(versions) - 1
    found.newest = {module: tree.names(module) for tree in (versions[-1], keras) for module in tree.modules}
    found.counted = sum(not name.startswith("_") for _, name in last)
    found.modules_gone = {m: found.versions[number + 1] for m, number in gone_after.items() if number < newest}
    for place, number in last.items():
        if number < newest:
            trace = _by_hand(place, versions[number + 1 :]) or _followed(tracer, place, number)
            if trace is not None:
                found.traces[place] = trace if trace.homes else _compiled(place, trace, compiled)
    found.traces = {p: t for p, t in found.traces.items() if t.homes or not p[1].startswith("_")}
    if with_contrib is not None and estimator is not None:
        found.contrib = contrib.homes(with_contrib, tracer, estimator)
    for place, trace in found.public().items():
        number = found.versions.index(trace.since) - 1
        old = tracer.indexes[number].at(place)
        if trace.how == "gone" and old is not None and old.kind != "value":
            same = tracer.indexes[-1].by_name[place[1]] + tracer.keras.by_name[place[1]]
            if any(new.kind == old.kind and new.arguments == old.arguments for new in same):
                found.elsewhere.append(place)
    return found


def _followed(tracer: Tracer, place: Place, number: int) -> Trace | None:
    # The last version in which it was a definition of this tree: later it may have been bound to a compiled one.
    while number >= 0 and tracer.indexes[number].at(place) is None:
        number -= 1
    return tracer.follow(place, number) if number >= 0 else None


def _by_hand(place: Place, without: list[Tree]) -> Trace | None:
    since = [tree.version for tree in without]
    home = by_hand.NAMES.get(".".join(place))
    if home is not None:
        module, _, name = home.rpartition(".")
        return Trace(since[0], dict.fromkeys(since, (module, name)), "by hand")
    whole = by_hand.MODULES.get(place[0])
    if whole is not None and (whole not in without[-1].modules or place[1] in without[-1].names(whole)):
        return Trace(since[0], dict.fromkeys(since, (whole, place[1])), "by hand")
    return None


def _compiled(place: Place, trace: Trace, compiled: list[dict[str, list[str]]]) -> Trace:
    """Return what SWIG's one module had lies in some twenty compiled modules today."""
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
