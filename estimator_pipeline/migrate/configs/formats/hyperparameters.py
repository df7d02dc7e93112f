"""Hyperparameters, flags and arguments by their usual names, for all formats.

A name in this table has one meaning in common programs: the samples of Cloud ML Engine, SageMaker and Kubeflow,
TensorFlow's official models, and the runner of tf.contrib.learn. A name with several meanings becomes a decision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from estimator_pipeline.migrate.configs.documents import Item, Path
from estimator_pipeline.migrate.configs.findings import JobDraft

__all__ = [
    "KNOWN",
    "NO_TPU",
    "OWN_FLAGS",
    "UNCERTAIN",
    "Computed",
    "apply",
    "known",
    "need_devices",
    "need_strategy_of_tpu",
    "normal",
    "put_strategy",
    "typed",
]


class Computed(str):
    """Text whose value only a shell can compute."""


UNCERTAIN = "only the shell knows this value, or a later argument that it computes may override it: write it out"
# The conversion of a value; flags and SageMaker's hyperparameters are text.
Kind = str

# Field of the job file, kind of value, and the names.
_NAMES: tuple[tuple[str, Kind, str], ...] = (
    ("model.optimizer.learning_rate", "float", "learning_rate lr"),
    ("model.optimizer.name", "optimizer", "optimizer optimizer_name optimizer_type"),
    ("model.optimizer.options.momentum", "float", "momentum"),
    ("model.clip_norm", "float",
     "clip_grad_norm clip_norm clip_gradients gradient_clip_norm gradient_clipping_norm grad_clip_norm max_grad_norm"),
    ("input.global_batch_size", "int", "global_batch_size"),
    ("input.global_batch_size", "batch", "batch_size train_batch_size"),
    ("input.eval_batch_size", "int", "eval_batch_size"),
    ("train.max_steps", "int", "max_steps train_steps training_steps num_train_steps train_max_steps max_train_steps"),
    ("train.epochs", "epochs", "epochs num_epochs train_epochs num_train_epochs"),
    ("eval.steps", "all_or_int", "eval_steps num_eval_steps evaluation_steps"),
    ("eval.throttle_secs", "float", "eval_throttle_secs throttle_secs"),
    ("eval.start_delay_secs", "float", "eval_start_delay_secs start_delay_secs"),
    ("run.model_dir", "model_dir", "model_dir job_dir output_dir"),
    ("run.save_checkpoints_steps", "int", "save_checkpoints_steps save_checkpoint_steps"),
    ("run.save_checkpoints_secs", "int", "save_checkpoints_secs"),
    ("run.save_summary_steps", "int", "save_summary_steps save_summaries_steps"),
    ("run.keep_checkpoint_max", "int", "keep_checkpoint_max"),
    ("run.keep_checkpoint_every_n_hours", "float", "keep_checkpoint_every_n_hours"),
    ("run.log_step_count_steps", "int", "log_step_count_steps"),
    ("run.seed", "int", "tf_random_seed random_seed"),
    ("run.threads.inter_op", "int", "inter_op_parallelism_threads"),
    ("run.threads.intra_op", "int", "intra_op_parallelism_threads"),
    ("run.train_distribute", "strategy", "distribution_strategy"),
)  # fmt: skip
KNOWN = {name: (to, kind) for to, kind, names in _NAMES for name in names.split()}

OPTIMIZERS = {name: name for name in ("sgd", "momentum", "nesterov", "adam", "adagrad", "rmsprop", "ftrl")}
OPTIMIZERS["gradientdescent"] = "sgd"
STRATEGIES = {
    "off": "none",
    "none": "none",
    "one_device": "one_device",
    "mirrored": "mirrored",
    "multi_worker_mirrored": "multi_worker_mirrored",
    "collective_all_reduce": "multi_worker_mirrored",
    "parameter_server": "parameter_server",
}
NO_TPU = (
    "TPUs are not supported: name machines with CPUs or GPUs; `migrate convert` turns a TPUEstimator into an Estimator"
)
_FOLDER = (
    "the directory of checkpoints and event files, unless the program sets a model_dir; in absl, log_dir is for logs"
)
_DATA = "the data: set input.source and its fields"
# Pattern of a name, why the user must decide, and the field for the decision.
_ASK: tuple[tuple[str, str, str], ...] = (
    (r"(^|_)(lr|learning_rate)_?(decay|schedule|warmup|boundaries)|(^|_)(decay_(steps|rate|factor)|warmup)|"
     r"(steps|epochs)_(per|before)_decay|end_learning_rate",
     "the learning rate is a schedule: write its kind and fields", "model.optimizer.learning_rate"),
    (r"^seed$", "run.seed is for variables and dropout, input.seed for the order of examples", "run.seed"),
    (r"^(num_)?gpus$|^num_(replicas|towers|clones)$", "devices of each task", "run.num_devices"),
    (r"^(use_)?fp16$|^(dtype|precision|mixed_precision|use_amp)$",
     "for 16 bits, use model.mixed_precision (bfloat16)", ""),
    (r"^sync_replicas$|replicas_to_aggregate", "for synchronous training, use multi_worker_mirrored",
     "run.train_distribute"),
    # Before the names of data: in slim, train_dir is the directory of checkpoints.
    (r"^(train_?dir|log_?dir|summar(y|ies)_dir|checkpoints?_?(dir|path)|ckpt_?dir)$", _FOLDER, "run.model_dir"),
    (r"^(train_)?(data|dataset|input|records?)_?(dir|path|files?|pattern)?$|"
     r"^train(ing)?(_(files?|data|path|dir|csv))?$", _DATA, "input.train"),
    (r"^(eval|validation|valid|test|dev)(uation)?(_(files?|data|path|dir|csv))?$", _DATA, "input.eval"),
    (r"^(export|serving|saved_model)", "for exports, use eval.exporters", "eval.exporters"),
    (r"^use_tpu$|^tpu|^iterations_per_loop$|^num_shards$|^num_tpu_cores$", NO_TPU, ""),
)  # fmt: skip
# Flags that give a TensorFlow 1 program its role.
_TASK = {"job_name", "task_index", "task_id", "task_type", "is_chief", "worker_index", "ps_index", "master"}
# Flags that absl, gflags and TensorFlow define. Without absl's log_dir, because most programs use that name for their
# model directory.
OWN_FLAGS = frozenset({
    "alsologtostderr", "logtostderr", "logger_levels", "stderrthreshold", "showprefixforinfo", "verbosity",
    "v", "vmodule", "help", "helpfull", "helpshort", "helpxml", "only_check_args", "pdb", "pdb_post_mortem",
    "profile_file", "run_with_pdb", "run_with_profiling", "use_cprofile_for_profiling", "undefok", "flagfile",
    "op_conversion_fallback_to_while_loop", "runtime_oom_exit", "hbm_oom_exit", "tt_check_filter",
    "tt_single_core_summaries", "test_random_seed", "test_randomize_ordering_seed", "test_srcdir", "test_tmpdir",
    "xml_output_file",
})  # fmt: skip


def normal(name: str) -> str:
    """Normalize a name: `--Learning-Rate` -> "learning_rate"."""
    return name.lstrip("-").replace("-", "_").lower()


def known(name: str) -> bool:
    """Return whether a name has a meaning in this module."""
    name = normal(name)
    asked = any(re.search(pattern, name) for pattern, _, _ in _ASK)
    return name in KNOWN or name in OWN_FLAGS or name in _TASK or name in ("ps_hosts", "worker_hosts") or asked


def typed(value: Any) -> Any:
    """Parse a scalar such as 3, 0.1, true or none; return other text unchanged."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if re.fullmatch(r"[-+]?\d{1,300}", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?", text):
        return float(text)
    words = {"true": True, "false": False, "none": None, "null": None}
    return words.get(text.lower(), value)


def apply(draft: JobDraft, items: Iterable[tuple[str, Item]], *, others_are_params: bool = False) -> None:
    """Convert each hyperparameter.

    Args:
        draft: The job under construction, with its cluster.
        items: Name and field of each.
        others_are_params: Whether unknown names are parameters of the model (true for HParams, not for flags).
    """
    fields = [(normal(name), item) for name, item in items]
    scheduled = any(re.search(_ASK[0][0], name) and item.value not in (None, 0, False, "") for name, item in fields)
    # Fields that a batch size or an option depends on come first. Epochs come last: a number of steps overrides them.
    for name, item in sorted(fields, key=lambda field: _rank(field[0])):
        _apply_item(draft, name, item, scheduled=scheduled, others_are_params=others_are_params)
    if scheduled and not draft.current("model", "optimizer", "learning_rate"):
        draft.need(
            ("model", "optimizer", "learning_rate"), "a schedule: write its kind and fields, from the hyperparameters"
        )
    if (draft.current("model", "optimizer") or scheduled) and not draft.current("model", "optimizer", "name"):
        draft.need(("model", "optimizer", "name"), "sgd, momentum, nesterov, adam, adagrad, rmsprop or ftrl")


def _rank(name: str) -> int:
    kind = KNOWN.get(name, ("", ""))[1]
    if name in ("ps_hosts", "worker_hosts", "use_tpu"):
        return -1
    if kind == "model_dir":
        # model_dir before its other names, and these before names that may mean it.
        return 1 if name == "model_dir" else 2
    return 0 if kind in ("optimizer", "strategy") else 4 if kind == "epochs" else 3


def _apply_item(draft: JobDraft, name: str, item: Item, *, scheduled: bool, others_are_params: bool) -> None:
    if isinstance(item.value, Computed):
        draft.decide(item, UNCERTAIN, tuple(KNOWN[name][0].split(".")) if name in KNOWN else None)
        if name in ("ps_hosts", "worker_hosts"):
            draft.need(("cluster", "workers"), f"the program had --{name} {item.value}")
    elif name in {normal(param) for param in draft.params}:
        draft.take(item, ("model", "params", name), typed(item.value), why="--param")
    elif typed(item.value) is None and name in KNOWN:
        draft.drop(item, "not set")
    elif name in KNOWN:
        to, kind = KNOWN[name]
        if to == "model.optimizer.learning_rate" and scheduled:
            draft.decide(item, "a schedule, by other hyperparameters", tuple(to.split(".")))
            return
        _KINDS[kind](draft, item, tuple(to.split(".")))
    elif name in OWN_FLAGS and not others_are_params:
        draft.drop(item, "a flag of the flags library, or of its logging")
    elif name in _TASK and not others_are_params:
        draft.drop(item, "each task gets its role from TF_CONFIG or its scheduler")
    elif name in ("ps_hosts", "worker_hosts") and not others_are_params:
        _hosts(draft, name, item)
    else:
        _unknown(draft, name, item, others_are_params)


def _unknown(draft: JobDraft, name: str, item: Item, others_are_params: bool) -> None:
    if others_are_params and not re.search(_ASK[0][0], name):
        draft.take(item, ("model", "params", name), why="a parameter of the model")
        return
    for pattern, why, to in _ASK:
        if re.search(pattern, name):
            if why is NO_TPU and typed(item.value) in (None, False, "", 0):
                draft.drop(item, "no TPU")
                return
            draft.decide(item, why, tuple(to.split(".")) if to else None)
            if why is _FOLDER:
                draft.need(("run", "model_dir"), f"{item.value}, if --{name} is the directory of checkpoints")
            elif name == "use_tpu":
                need_strategy_of_tpu(draft)
            return
    why = f"defined by the program; if it is a parameter of the model: --param {name}"
    draft.decide(item, why, ("model", "params", name))


# Kinds -----------------------------------------------------------------------------------------------------------


def _number(draft: JobDraft, item: Item, to: Path) -> None:
    value = typed(item.value)
    if isinstance(value, float) and not isinstance(value, bool) and value.is_integer():
        # A number of steps is often written as 1e4.
        value = int(value)
    draft.take(item, to, value)


def _fraction(draft: JobDraft, item: Item, to: Path) -> None:
    value = typed(item.value)
    if to[-1] == "momentum" and draft.current("model", "optimizer", "name") is None:
        draft.decide(item, "an option of the optimizers momentum, nesterov and rmsprop, but no optimizer is named", to)
        return
    if to[-2:] == ("model", "clip_norm") and value in (0, -1):
        draft.drop(item, "no clipping")
        return
    draft.take(item, to, value)


def _epochs(draft: JobDraft, item: Item, to: Path) -> None:
    if draft.current("train", "max_steps") is not None:
        draft.decide(item, "train.max_steps is already set, and a job file has either max_steps or epochs", to)
    elif draft.training_tasks > 1:
        why = "passes over the data: per worker over its input, if the program repeated the input of each worker"
        draft.decide(item, why, to)
        draft.need(to, f"or train.max_steps; the program had {item.value}")
    else:
        draft.take(item, to, typed(item.value), why="passes over the data")


def _batch(draft: JobDraft, item: Item, to: Path) -> None:
    tasks, ps = draft.training_tasks, draft.current("cluster", "ps")
    value = typed(item.value)
    strategy = ("run", "train_distribute")
    if draft.current(*strategy) == "mirrored" or (tasks == 1 and strategy in draft.placeholders):
        why = f"{value} if it is the batch of all GPUs; under mirrored, an input_fn returns the batch of each GPU"
        draft.decide(item, why, to)
        draft.need(to, f"examples in one step over all GPUs; {why}")
    elif ("cluster", "workers") in draft.placeholders:
        draft.decide(item, "the batch of each worker, or of all; the number of workers is not known", to)
    elif tasks == 1:
        draft.take(item, to, value, why="examples in one step; one task trains")
    elif ps:
        draft.take(item, to, value, why="examples in one step of each task: training with parameter servers")
    else:
        total = f", {value * tasks} if it is the batch of each worker ({tasks} train)" if isinstance(value, int) else ""
        draft.decide(item, f"{value} if it is the batch of all workers{total}", to)
        draft.need(to, f"examples in one step over all workers: {value}{total}")


def _all_or_number(draft: JobDraft, item: Item, to: Path) -> None:
    value = typed(item.value)
    if value in (0, -1):
        draft.drop(item, "all of the evaluation data, the default")
        return
    _number(draft, item, to)


def _optimizer(draft: JobDraft, item: Item, to: Path) -> None:
    name = re.sub(r"[\W_]", "", str(item.value)).lower().removesuffix("optimizer")
    _choice(draft, item, to, OPTIMIZERS, name, "an optimizer")


def _strategy(draft: JobDraft, item: Item, to: Path) -> None:
    _choice(draft, item, to, STRATEGIES, normal(str(item.value)), "a strategy")


def _choice(draft: JobDraft, item: Item, to: Path, choices: dict[str, str], name: str, kind: str) -> None:
    if name in choices:
        draft.take(item, to, choices[name])
        return
    allowed = ", ".join(dict.fromkeys(choices.values()))
    draft.decide(item, f"not {kind} of a job file; allowed: {allowed}", to)
    draft.need(to, f"the program had {item.value!r}")


def _model_dir(draft: JobDraft, item: Item, to: Path) -> None:
    value = str(item.value)
    if value.startswith(("s3://", "s3n://", "s3a://")):
        draft.decide(item, "TensorFlow no longer supports S3: use a directory that all tasks mount, or a plug-in", to)
        draft.need(to, f"checkpoints were in {value}")
        return
    if not value:
        draft.drop(item, "not set")
        return
    draft.take(item, to, value)


_KINDS: dict[Kind, Callable[[JobDraft, Item, Path], None]] = {
    "int": _number,
    "float": _fraction,
    "epochs": _epochs,
    "batch": _batch,
    "all_or_int": _all_or_number,
    "optimizer": _optimizer,
    "strategy": _strategy,
    "model_dir": _model_dir,
}


def _hosts(draft: JobDraft, name: str, item: Item) -> None:
    hosts = item.value if isinstance(item.value, list) else [h for h in str(item.value or "").split(",") if h.strip()]
    if not hosts:
        draft.drop(item, "none")
    else:
        field = "ps" if name == "ps_hosts" else "workers"
        draft.take(item, ("cluster", field), len(hosts), why="the number of addresses; the scheduler assigns them")
        put_strategy(draft)


def need_strategy_of_tpu(draft: JobDraft) -> None:
    """Require a strategy to replace the TPU."""
    draft.need(
        ("run", "train_distribute"), "the program trained on a TPU; mirrored on several GPUs, none on one device"
    )


def need_devices(draft: JobDraft, gpus: int | None = None) -> None:
    """Require a strategy for several GPUs in one training task; by default, the GPUs of the roles."""
    roles = draft.job.get(draft.scheduler, {}).get("roles", {}).values()
    gpus = max([0, *(role.get("gpus") or role.get("gpus_per_task") or 0 for role in roles)]) if gpus is None else gpus
    if gpus > 1 and draft.training_tasks == 1 and not draft.current("cluster", "ps"):
        draft.need(
            ("run", "train_distribute"),
            f"mirrored trains on all {gpus} GPUs, none on one of them; set in the program",
        )


def put_strategy(draft: JobDraft) -> None:
    """Derive the strategy from the cluster, or require the user to set it."""
    if draft.current("run", "train_distribute") is not None:
        return
    if draft.current("cluster", "ps"):
        draft.derive(("run", "train_distribute"), "parameter_server", "the cluster has parameter servers")
    elif draft.training_tasks > 1:
        draft.need(
            ("run", "train_distribute"),
            "several tasks train, without parameter servers: multi_worker_mirrored, if the program used it",
        )
