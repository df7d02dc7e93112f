"""The run identity: the settings that must match when a run resumes from a checkpoint.

A resumed run is exact because the order of records is a function of seed, data and global batch size. With different
values the same step would silently read different records. The task that writes the checkpoints therefore stores the
run identity in the model directory, and the next run there is compared with it.
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
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir.disk_errors import write_whole
from estimator_pipeline.engines.model_dir.layout import DIRECTORY
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.sources.tfrecord_index import SAMPLED
from estimator_pipeline.utils import io_errors
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few

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
    "read_identity",
    "read_local",
    "words",
]

_FILE = "identity.json"
_KIND = "input"  # of input function
_ADDRESSED, _USER_FUNCTION = "records addressed by step", "a function of one's own"
_BY_RECORD = "by record"
_POLICY = "input.shard_policy"
_OPTIMIZER = "model.optimizer"
# Digests of the data files, by name; and the maximum number of changed files that a message names.
CONTENT = "input.content"
_MOST = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """The settings that identify a run.

    Attributes:
        fixed: Name -> plain value. A change between two runs is rejected.
        described: Name -> plain value. A change is intended (such as a smaller learning rate), and logged.
        open: What a resumed run cannot guarantee, as sentences.
        files: The data files: their names in `fixed` -> their paths.
        epochs: Number of epochs, if it defines the end of training.
        max_steps: The global step at which training then ends.
        job: The resolved job file without defaults, which is stored with the identity and not compared; None for a
            program.
    """

    fixed: Mapping[str, Any]
    described: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    open: tuple[str, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    epochs: float | None = None
    max_steps: int | None = None
    job: Mapping[str, Any] | None = None


def of_inputs(input_fn: Any, *, seed: Any, num_pipelines: int) -> RunIdentity:
    """Return the part of the run identity that the seed and the training data define.

    Args:
        input_fn: The training input function. Those of `estimator_pipeline.inputs` describe their data.
        seed: Seed of the variables and the graph.
        num_pipelines: Number of input pipelines of the job.
    """
    describe = getattr(input_fn, "identity", None)
    if describe is None:
        return RunIdentity(
            fixed={"seed": seed, _KIND: _USER_FUNCTION},
            open=("a user-defined input function cannot be addressed by step: its data starts over at each start",),
        )
    data, open_ = describe(num_pipelines)
    # Policies by which the reader of a record depends only on the step are interchangeable.
    fixed = {"seed": seed, _KIND: _ADDRESSED, _POLICY: _BY_RECORD, **data}
    return RunIdentity(fixed=fixed, open=open_, files=getattr(input_fn, "files", {}))


def of_model_fn(function: Any, params: Any) -> dict[str, Any]:
    """Describe a program's model: name and code of its `model_fn`, and the plain values of its params.

    Params are a mapping, a named tuple, an object with attributes such as HParams, or None.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    described: dict[str, Any] = {
        "params": {name: brief(value) for name, value in _by_name(params).items() if _is_plain(value)},
        "model_fn": getattr(function, "__qualname__", type(function).__qualname__),
    }
    # The code of packages changes with their versions.
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    if package not in ("estimator_pipeline", "tensorflow_estimator"):
        # Without a source file, the function was typed interactively or generated.
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            described["the code of model_fn"] = _code(textwrap.dedent(inspect.getsource(function)))
    return described


def _by_name(params: Any) -> Mapping[str, Any]:
    """Return params by name; an Estimator accepts any object and passes it to the model_fn unchanged."""
    if params is None or isinstance(params, Mapping):
        return params or {}
    if hasattr(params, "_asdict"):
        return params._asdict()
    values = params.values() if callable(getattr(params, "values", None)) else None  # tf.contrib.training.HParams
    if not isinstance(values, Mapping):
        values = getattr(params, "__dict__", {})
    return {name: value for name, value in values.items() if isinstance(name, str) and not name.startswith("_")}


def code_of_reference(reference: str) -> str | None:
    """Return the fingerprint of the code of "module:function" or "file.py:function"; None if it does not exist.

    The code is not run.
    """
    path, _, name = reference.rpartition(":")
    with contextlib.suppress(OSError, ImportError, ValueError, SyntaxError):
        if not path.endswith(".py"):
            spec = importlib.util.find_spec(path)
            path = (spec and spec.origin) or ""
        with open(path, encoding="utf-8") as file:
            return _code(file.read(), name)
    return None


def _code(source: str, name: str | None = None) -> str | None:
    """Return a fingerprint of code; comments and whitespace do not change it."""
    tree: ast.AST = ast.parse(source)
    if name is not None:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        matches = [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == name]
        if not matches:
            return None
        tree = matches[-1]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def brief(value: Any) -> Any:
    """Return the value, or the fingerprint of a long one, such as a vocabulary."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= 500 else f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, str | int | float)


def check(model_dir: str, identity: RunIdentity, *, step: int, accept: bool) -> None:
    """Compare this run with the checkpoint's run, and store its identity.

    Args:
        model_dir: The model directory.
        identity: Identity of this run.
        step: Step of the checkpoint that training resumes from; 0 without one.
        accept: Whether changes of fixed values are accepted.

    Raises:
        ConfigError: A fixed value has changed; or the file of the previous run is invalid.
        OSError: The file cannot be written; or the error of `tf.io.gfile`.
    """
    before, lost = _read(model_dir, accept=accept) if step > 0 else (None, None)
    fixed, described = as_json(identity.fixed), as_json(identity.described)
    changes: list[dict[str, Any]] = list((before or {}).get("changes", []))
    if lost is not None:
        changes.append({"step": step, "time": time.time(), "changed": [f"not known: {lost}"]})
    if before is not None:
        meant = changes_meant(before, identity, step=step, model_dir=model_dir, accept=accept)
        if meant:
            logger.warning("Training resumes at step %d with a change: %s", step, words(meant, identity.files))
            of_optimizer = {name: [old, new] for name, old, new in meant if name.startswith(_OPTIMIZER)}
            names = [name for name, _, _ in meant]
            changes.append({"step": step, "time": time.time(), "changed": names, "optimizer": of_optimizer})
    for promise in identity.open:
        logger.info("Not guaranteed when this run is resumed: %s", promise)
    document = {"fixed": fixed, "told": described, "open": list(identity.open), "changes": changes}
    if identity.job is not None:
        document["job"] = as_json(identity.job)
    if document == before:
        # A restart on a full disk must not fail while writing what is stored already.
        return
    compat.tensorflow().io.gfile.makedirs(os.path.join(model_dir, DIRECTORY))
    write_whole(_path(model_dir), json.dumps(document, indent=1, sort_keys=True))


def changes_meant(
    before: Mapping[str, Any], identity: RunIdentity, *, step: int, model_dir: str, accept: bool
) -> list[tuple[str, Any, Any]]:
    """Return the differences between a resumed run and the document of the previous one: (name, old, new value).

    Raises:
        ConfigError: A fixed value has changed, and changes are not accepted.
    """
    fixed, fixed_before = as_json(identity.fixed), before.get("fixed", {})
    if _has_one_worker(fixed_before) and fixed.get(_POLICY) == _BY_RECORD:
        fixed_before = {**fixed_before, _POLICY: _BY_RECORD}
    changed = differences(fixed_before, fixed)
    _refuse_to_train_nothing(identity, changed, step=step, model_dir=model_dir)
    if changed and not accept:
        # Changing away from the policy "file" allows any number of workers.
        free = " (with input.shard_policy: data in addition, any number of workers is possible)"
        raise ConfigError(
            f"this run is not the one that trained to step {step} in {model_dir}: {words(changed, identity.files)}",
            code="model-dir/other-run",
            hint=_continuing(identity, changed)
            + "restore the old value, use a different model_dir, or accept the change with --accept-changes "
            f"(run.accept_changes): training then resumes at step {step} with the new value"
            + (free if any(name == "input.workers" for name, _, _ in changed) else ""),
        )
    return changed + differences(before.get("told", {}), as_json(identity.described))


def _parse(text: str) -> dict[str, Any]:
    """Return an identity document; raises ValueError for a truncated one, TypeError for a different document."""
    document = json.loads(text)
    if isinstance(document, dict) and isinstance(document.get("fixed"), dict):
        return document
    raise TypeError(
        f"it holds a {type(document).__name__}" + (" without `fixed`" if isinstance(document, dict) else "")
    )


def read_local(model_dir: str) -> dict[str, Any] | None:
    """Return the identity document of the last run in a local folder; None if it is missing or truncated."""
    with contextlib.suppress(OSError, ValueError, TypeError), open(_path(model_dir), encoding="utf-8") as file:
        return _parse(file.read())
    return None


def read_identity(model_dir: str) -> dict[str, Any] | None:
    """Return the identity document of the last run; None if it is missing or truncated."""
    return _read(model_dir, accept=True)[0] if "://" in model_dir else read_local(model_dir)


def policy_of(model_dir: str) -> str | None:
    """Return "file" if the run of a model directory assigns records to workers by file, else None.

    Earlier versions selected "file" automatically, and such a run must resume with it.
    """
    tf = compat.tensorflow()
    try:
        with tf.io.gfile.GFile(_path(model_dir), "r") as file:
            fixed = _parse(file.read())["fixed"]
    except (tf.errors.OpError, ValueError, TypeError):
        return None  # `check` reports the problem.
    return "file" if fixed.get(_POLICY) == "file" and not _has_one_worker(fixed) else None


def _has_one_worker(fixed: Mapping[str, Any]) -> bool:
    """Return whether one worker reads all files by the policy "file", in the same order as by record."""
    return bool(fixed.get(_POLICY) == "file" and fixed.get("input.workers") == 1)


def _path(model_dir: str) -> str:
    return os.path.join(model_dir, DIRECTORY, _FILE)


def optimizer_changes(model_dir: str, *, step: int) -> dict[str, list[Any]]:
    """Return the changes of the optimizer since the checkpoint of a step, after `check`: name -> old and new value."""
    document, _ = _read(model_dir, accept=True)
    changed: dict[str, list[Any]] = {}
    # Several runs may have resumed from this checkpoint without writing a new one.
    for change in (document or {}).get("changes", []):
        for name, (old, new) in change.get("optimizer", {}).items() if change["step"] == step else ():
            changed[name] = [changed.get(name, [old])[0], new]
    return {name: pair for name, pair in changed.items() if pair[0] != pair[1]}


def _refuse_to_train_nothing(
    identity: RunIdentity, changed: list[tuple[str, Any, Any]], *, step: int, model_dir: str
) -> None:
    """Reject new data for a finished run: epochs are counted from the first step, so nothing would be trained."""
    epochs, end = identity.epochs, identity.max_steps
    ours = [change for change in changed if change[0].startswith(("input.", "global_batch_size"))]
    if epochs is None or end is None or step < end or not ours:
        return
    raise ConfigError(
        f"train.epochs {epochs:g} ends at step {end}, and training in {model_dir} is at step {step}: the new data "
        "would not be trained on",
        code="model-dir/nothing-to-train",
        found=words(ours, identity.files),
        hint=_continuing(identity, changed) + "use a different model_dir",
    )


def _continuing(identity: RunIdentity, changed: Sequence[tuple[str, Any, Any]]) -> str:
    """Return a hint if the records have changed, and the run can continue on further ones; else ""."""
    sources = ("csv", "parquet", "tfrecord")
    other = any(name in ("input.records", "input.fingerprint") or name.startswith(CONTENT) for name, _, _ in changed)
    if not other or identity.job is None or identity.job["input"]["source"] not in sources:
        return ""
    return "to train on new records, restore input.train and name their files with --continue-with; otherwise "


def _read(model_dir: str, *, accept: bool) -> tuple[dict[str, Any] | None, str | None]:
    """Return the document of the previous run (None without one), and why it cannot be read.

    A truncated document, which earlier versions could leave after a power loss, does not stop training: a supervisor
    that restarts the job could not repair it, and the checkpoints are undamaged.

    Raises:
        ConfigError: It is a different document, or cannot be read, and changes are not accepted.
    """
    tf, path = compat.tensorflow(), _path(model_dir)
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            return _parse(file.read()), None
    except tf.errors.NotFoundError:
        return None, None
    except (tf.errors.OpError, ValueError, TypeError) as error:
        truncated = isinstance(error, ValueError)
        reason = str(error).strip().splitlines()[0]
        if not accept and any(words in reason.lower() for words in io_errors.WORDS):
            raise  # a disk error, which does not mean that the file is damaged
    if truncated or accept:
        logger.warning(
            "%s cannot be read (%s), so it is unknown whether this is the run that has trained so far: training "
            "resumes with the current settings",
            *(path, reason),
        )
        return None, reason
    raise ConfigError(
        f"{path} cannot be read, so it is unknown whether this is the run that has trained so far",
        code="model-dir/damaged",
        found=reason,
        hint="restore the file, or resume with the current settings: --accept-changes (run.accept_changes)",
    )


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON would return them, for comparison with stored values."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str, sort_keys=True))
    return plain


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the names that both documents have with different values: (name, old value, new value).

    A name in only one of them is not a change: a different version wrote it, or it belongs to a different kind of
    input, which is compared itself.
    """
    changed: list[tuple[str, Any, Any]] = []
    for name in sorted(now):
        if name not in before or before[name] == now[name]:
            continue
        old, new = before[name], now[name]
        if name.startswith(CONTENT) and isinstance(old, dict) and isinstance(new, dict):
            # The fingerprint covers the list of files. Digests of different kinds are not comparable.
            changed += [
                (f"{name} {file}", digest, new[file])
                for file, digest in old.items()
                if digest != new.get(file, digest) and _kind(digest) == _kind(new[file])
            ]
        elif isinstance(old, dict) and isinstance(new, dict):
            nothing = "not given"
            pairs = ((key, old.get(key, nothing), new.get(key, nothing)) for key in sorted({*old, *new}))
            changed += [(f"{name}.{key}", was, now_is) for key, was, now_is in pairs if was != now_is]
        else:
            changed.append((name, old, new))
    return changed


def _kind(digest: str) -> str:
    return SAMPLED if digest.startswith(SAMPLED) else ""


def content_by_kind(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the digests of the files by kind of digest, for comparison between tasks.

    The kind depends on whether a task has an index beside its files.
    """
    content = fixed.get(CONTENT, {})
    kinds = set(map(_kind, content.values()))
    return {f"{CONTENT} {kinds.pop()}".strip(): content} if len(kinds) == 1 else {}


def words(changed: list[tuple[str, Any, Any]], files: Mapping[str, str]) -> str:
    """Return a sentence that describes the changes; `files` as in `RunIdentity`."""
    texts, others = [], []
    for name, old, new in changed:
        file = name.removeprefix(f"{CONTENT} ")
        if file == name:
            texts.append(f"{name} was {in_short(old)} and is {in_short(new)}")
        else:
            path = files.get(file, file)
            others.append(f"{path} has other content than when this run began (digest {old} then, {new} now)")
    return "; ".join([*texts, *([few(others, _MOST, separator="; ")] if others else [])])


def in_short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 120 else f"{text[:117]}..."
