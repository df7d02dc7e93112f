"""What a run must have in common with the run whose checkpoint it goes on from, and what it cannot promise.

Resuming is exact because the order of records is arithmetic: with another seed, other data or another global batch the
same step would read other records, and nobody would see it. So the task that writes the checkpoints writes down what
the run is made of, and the next run on the same model directory is held against it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import textwrap
import time
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir.disk_errors import write_whole
from estimator_pipeline.engines.model_dir.layout import DIRECTORY
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.sources.tfrecord_index import SAMPLED
from estimator_pipeline.utils import io_errors
from estimator_pipeline.utils.logger import logger

__all__ = [
    "CONTENT",
    "RunIdentity",
    "as_json",
    "brief",
    "changes_meant",
    "check",
    "content_by_kind",
    "differences",
    "in_short",
    "optimizer_changes",
    "policy_of",
    "read_local",
    "words",
]

_FILE = "identity.json"
# Which kind of input function it is, and what is promised of it; the names that earlier versions did not write.
_KIND = "input"
_ADDRESSED, _OWN = "records addressed by step", "a function of one's own"
_BY_RECORD = "by record"
_POLICY = "input.shard_policy"
_OPTIMIZER = "model.optimizer"
# The digests of the files, by name; and how many files of other content are named one by one.
CONTENT = "input.content"
_MOST = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What a run is made of.

    Attributes:
        fixed: name -> plain value. A change of one of these between two runs is refused.
        told: name -> plain value. A change is meant (a smaller learning rate, say), and said in the log.
        open: what a resumed run cannot promise, in words.
        files: the files of the data: the names that `fixed` has for them -> their paths.
        epochs: how often the data are read in all, where that says when training ends.
        max_steps: the global step at which it ends then.
    """

    fixed: Mapping[str, Any]
    told: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    open: tuple[str, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    epochs: float | None = None
    max_steps: int | None = None


def of_inputs(input_fn: Any, *, seed: Any, num_pipelines: int) -> RunIdentity:
    """The identity of a run as far as its seed and its training data tell it.

    Args:
        input_fn: the training input function. Those of :mod:`estimator_pipeline.inputs` say what they read.
        seed: of the variables and the graph.
        num_pipelines: input pipelines of the job.
    """
    tell = getattr(input_fn, "identity", None)
    if tell is None:
        return RunIdentity(
            fixed={"seed": seed, _KIND: _OWN},
            open=("an input function of one's own cannot be addressed by step: its data begin anew at each start",),
        )
    data, open_ = tell(num_pipelines)
    # A policy by which a record's reader depends on nothing but the step is as good as any other such.
    fixed = {"seed": seed, _KIND: _ADDRESSED, _POLICY: _BY_RECORD, **data}
    return RunIdentity(fixed=fixed, open=open_, files=getattr(input_fn, "files", {}))


def of_model_fn(function: Any, params: Any) -> dict[str, Any]:
    """What is told of a model that a program brings: its function's name and code, and the plain ones of its params.

    Args:
        function: the `model_fn`.
        params: as the Estimator has them: a mapping, a named tuple, an object with attributes such as HParams, or None.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    told: dict[str, Any] = {"params": {name: brief(one) for name, one in _by_name(params).items() if _is_plain(one)}}
    name = getattr(function, "__qualname__", type(function).__qualname__)
    told["model_fn"] = name
    # What packages bring changes with their versions.
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    if package not in ("estimator_pipeline", "tensorflow_estimator"):
        # Without a file it was typed in, or made by a program.
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            told["the code of model_fn"] = _code(textwrap.dedent(inspect.getsource(function)))
    return told


def _by_name(params: Any) -> Mapping[str, Any]:
    """An Estimator takes any object for its params, and hands it to the model_fn unseen."""
    if params is None or isinstance(params, Mapping):
        return params or {}
    if hasattr(params, "_asdict"):
        return params._asdict()
    values = params.values() if callable(getattr(params, "values", None)) else None  # tf.contrib.training.HParams
    if not isinstance(values, Mapping):
        values = getattr(params, "__dict__", {})
    return {name: value for name, value in values.items() if isinstance(name, str) and not name.startswith("_")}


def code_of_reference(reference: str) -> str | None:
    """The code behind "package.module:function" or "path/to/file.py:function", which is not run; None: not found."""
    where, _, name = reference.rpartition(":")
    try:
        path = where
        if not where.endswith(".py"):
            spec = importlib.util.find_spec(where)
            path = (spec and spec.origin) or ""
        with open(path, encoding="utf-8") as file:
            return _code(file.read(), name)
    except (OSError, ImportError, ValueError, SyntaxError):
        return None


def _code(source: str, name: str | None = None) -> str | None:
    """A fingerprint of code: neither comments nor blanks change it."""
    tree: ast.AST = ast.parse(source)
    if name is not None:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == name]
        if not found:
            return None
        tree = found[-1]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def brief(value: Any) -> Any:
    """The value, or the fingerprint of one that is long: a vocabulary may be a parameter."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= 500 else f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, str | int | float)


def check(model_dir: str, identity: RunIdentity, *, step: int, accept: bool) -> None:
    """Refuses a run that is another one than the checkpoint's, and writes down what this one is made of.

    Args:
        model_dir: the model directory.
        identity: of this run.
        step: of the checkpoint that training goes on from; 0 without one.
        accept: whether changes are meant.

    Raises:
        ConfigError: something that must stay has changed; what the run before was made of is no such document.
        OSError: the file cannot be written; or the error of `tf.io.gfile`.
    """
    tf = compat.tensorflow()
    path = _path(model_dir)
    before, lost = _read(tf, path, accept=accept) if step > 0 else (None, None)
    fixed, told = as_json(identity.fixed), as_json(identity.told)
    changes: list[dict[str, Any]] = list((before or {}).get("changes", []))
    if lost is not None:
        changes.append({"step": step, "time": time.time(), "changed": [f"not known: {lost}"]})
    if before is not None:
        meant = changes_meant(before, identity, step=step, model_dir=model_dir, accept=accept)
        if meant:
            logger.warning("Training goes on at step %d with a change: %s", step, words(meant, identity.files))
            of_optimizer = {name: [old, new] for name, old, new in meant if name.startswith(_OPTIMIZER)}
            names = [one[0] for one in meant]
            changes.append({"step": step, "time": time.time(), "changed": names, "optimizer": of_optimizer})
    for promise in identity.open:
        logger.info("Not promised when this run is resumed: %s", promise)
    document = {"fixed": fixed, "told": told, "open": list(identity.open), "changes": changes}
    if document == before:
        # A restart after the disk was full must not fail for want of room for what is there already.
        return
    tf.io.gfile.makedirs(os.path.dirname(path))
    write_whole(path, json.dumps(document, indent=1, sort_keys=True))


def changes_meant(
    before: Mapping[str, Any], identity: RunIdentity, *, step: int, model_dir: str, accept: bool
) -> list[tuple[str, Any, Any]]:
    """What a run that goes on does otherwise than the one before it: names with what each was and is.

    Args:
        before: what the run before was made of, from :func:`check` or :func:`read_local`.
        identity: of this run.
        step: of the checkpoint that training goes on from.
        model_dir: the model directory.
        accept: whether changes of what is fixed are meant.

    Raises:
        ConfigError: something that must stay has changed.
    """
    fixed = as_json(identity.fixed)
    changed = differences(_completed(before.get("fixed", {}), fixed), fixed)
    _refuse_to_train_nothing(identity, changed, step=step, model_dir=model_dir)
    if changed and not accept:
        # Who leaves the policy "file" is free of its number of workers.
        free = " (input.shard_policy: data beside it reads by record, with any number of workers)"
        raise ConfigError(
            f"this run is not the one that trained to step {step} in {model_dir}: {words(changed, identity.files)}",
            code="model-dir/other-run",
            hint="give what it was, give a model_dir of its own, or accept the change with --accept-changes "
            f"(run.accept_changes): training then goes on at step {step} with what is given now"
            + (free if any(name == "input.workers" for name, _, _ in changed) else ""),
        )
    return changed + differences(before.get("told", {}), as_json(identity.told))


def read_local(model_dir: str) -> dict[str, Any] | None:
    """What the last run in a folder of this machine was made of; None where nobody has written it, or it is torn."""
    with contextlib.suppress(OSError, ValueError):
        with open(os.path.join(model_dir, DIRECTORY, _FILE), encoding="utf-8") as file:
            found = json.load(file)
        if isinstance(found, dict) and isinstance(found.get("fixed"), dict):
            return found
    return None


def policy_of(model_dir: str) -> str | None:
    """The shard policy by which the run of a model directory ties records to workers; None: it has none such.

    Earlier versions chose "file" by themselves, and what began by it goes on by it.
    """
    tf = compat.tensorflow()
    try:
        with tf.io.gfile.GFile(_path(model_dir), "r") as file:
            fixed = json.loads(file.read())["fixed"]
        return "file" if fixed.get(_POLICY) == "file" and not _is_alone(fixed) else None
    except (tf.errors.OpError, ValueError, LookupError, TypeError, AttributeError):
        return None  # :func:`check` tells what is wrong with it.


def _is_alone(fixed: Mapping[str, Any]) -> bool:
    """Whether one worker reads all files: in the order that is the same by record."""
    return bool(fixed.get("input.workers") == 1)


def _path(model_dir: str) -> str:
    return os.path.join(model_dir, DIRECTORY, _FILE)


def optimizer_changes(model_dir: str, *, step: int) -> dict[str, list[Any]]:
    """How the optimizer of training from a step on differs from that of the checkpoint: name -> what it was and is.

    Args:
        model_dir: the model directory, which :func:`check` has seen.
        step: of the checkpoint.
    """
    document, _ = _read(compat.tensorflow(), _path(model_dir), accept=True)
    found: dict[str, list[Any]] = {}
    # A run may have ended before it wrote a checkpoint of its own.
    for change in (document or {}).get("changes", []):
        for name, (old, new) in change.get("optimizer", {}).items() if change["step"] == step else ():
            found[name] = [found.get(name, [old])[0], new]
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _refuse_to_train_nothing(
    identity: RunIdentity, changed: list[tuple[str, Any, Any]], *, step: int, model_dir: str
) -> None:
    """New data are given to be trained on, and epochs are counted from the first step, not from theirs."""
    epochs, end = identity.epochs, identity.max_steps
    ours = [one for one in changed if one[0].startswith(("input.", "global_batch_size"))]
    if epochs is None or end is None or step < end or not ours:
        return
    raise ConfigError(
        f"train.epochs {epochs:g} ends at step {end}, and training stands at step {step} in {model_dir}: nothing would "
        f"be trained on what is given now",
        code="model-dir/nothing-to-train",
        found=words(ours, identity.files),
        hint=f"for {epochs:g} more give train.epochs {epochs * (step + end) / end:g} and --accept-changes, or give a "
        "model_dir of its own",
    )


def _read(tf: Any, path: str, *, accept: bool) -> tuple[dict[str, Any] | None, str | None]:
    """The document of the run before, None where there is none, as of a training by something else; and why it is lost.

    One that was cut off, as earlier versions could leave it after a power loss, holds up nobody: whoever starts a job
    again by itself could not mend it, and what is trained is whole.

    Raises:
        ConfigError: it is another document, or the disk does not give it, and changes are not accepted.
    """
    torn = False
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            found = json.loads(file.read())
        if isinstance(found, dict) and isinstance(found.get("fixed"), dict):
            return found, None
        told = f"it holds a {type(found).__name__}" + (" without `fixed`" if isinstance(found, dict) else "")
    except tf.errors.NotFoundError:
        return None, None
    except (tf.errors.OpError, ValueError) as error:
        torn = isinstance(error, ValueError)
        told = str(error).strip().splitlines()[0]
        if not accept and any(words in told.lower() for words in io_errors.WORDS):
            raise  # nothing is wrong with the file, as far as is known
    if torn or accept:
        logger.warning(
            "%s cannot be read (%s), so that nobody knows whether this run is the one that trained so far: training "
            "goes on with what is given now",
            *(path, told),
        )
        return None, told
    raise ConfigError(
        f"{path} cannot be read, so that nobody knows whether this run is the one that is to go on",
        code="model-dir/damaged",
        found=told,
        hint="restore the file, or go on with what is given now: --accept-changes (run.accept_changes)",
    )


def _completed(fixed: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """With what earlier versions left out, or said otherwise, where it follows from what they wrote."""
    if "input.records" not in fixed:
        return dict(fixed)
    found = {_KIND: _ADDRESSED, _POLICY: _BY_RECORD, **fixed}
    if found[_POLICY] == "file" and _is_alone(found) and now.get(_POLICY) == _BY_RECORD:
        found[_POLICY] = _BY_RECORD
    return found


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives them back, so that what was written and what is can be compared."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str, sort_keys=True))
    return plain


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What both say and say differently. What only one of them knows is no change: another version wrote it, or the
    name is one that another kind of input has, which is said by itself.
    """
    found: list[tuple[str, Any, Any]] = []
    for name in sorted(now):
        if name not in before or before[name] == now[name]:
            continue
        old, new = before[name], now[name]
        if name.startswith(CONTENT) and isinstance(old, dict) and isinstance(new, dict):
            # Which files there are, the fingerprint tells. Digests of two kinds say nothing of each other.
            found += [
                (f"{name} {file}", digest, new[file])
                for file, digest in old.items()
                if digest != new.get(file, digest) and _kind(digest) == _kind(new[file])
            ]
        elif isinstance(old, dict) and isinstance(new, dict):
            nothing = "not given"
            pairs = ((key, old.get(key, nothing), new.get(key, nothing)) for key in sorted({*old, *new}))
            found += [(f"{name}.{key}", one, other) for key, one, other in pairs if one != other]
        else:
            found.append((name, old, new))
    return found


def _kind(digest: str) -> str:
    return SAMPLED if digest.startswith(SAMPLED) else ""


def content_by_kind(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """What tells the content of the files, so that tasks can compare it: one of them may have an index beside its files
    by which another one reads them."""
    content = fixed.get(CONTENT, {})
    kinds = set(map(_kind, content.values()))
    return {f"{CONTENT} {kinds.pop()}".strip(): content} if len(kinds) == 1 else {}


def words(changed: list[tuple[str, Any, Any]], files: Mapping[str, str]) -> str:
    """Changes for a person; `files` as in :class:`RunIdentity`."""
    told, others = [], []
    for name, old, new in changed:
        file = name.removeprefix(f"{CONTENT} ")
        if file == name:
            told.append(f"{name} was {in_short(old)} and is {in_short(new)}")
        else:
            path = files.get(file, file)
            others.append(f"{path} has other content than when this run began (digest {old} then, {new} now)")
    more = [f"and so have {len(others) - _MOST} more files"] if len(others) > _MOST else []
    return "; ".join(told + others[:_MOST] + more)


def in_short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 120 else f"{text[:117]}..."
