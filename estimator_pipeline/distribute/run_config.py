"""A `tf.estimator.RunConfig` for the task of this process, with strategies by name."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.distribute import strategies
from estimator_pipeline.distribute.strategies import Communication
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.text import nearest


def build_run_config(
    model_dir: str | os.PathLike[str],
    *,
    train_distribute: str | Any = "none",
    eval_distribute: str | Any = "none",
    devices: Sequence[str] | None = None,
    num_devices: int | None = None,
    communication: Communication | Mapping[str, Any] | None = None,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    seed: int | None = None,
    session_config: Mapping[str, Any] | Any = None,
    environ: Mapping[str, str] | None = None,
    tf_config: TFConfig | None = None,
    **fields: Any,
) -> Any:
    """Build the `tf.estimator.RunConfig` of this task.

    Strategies are selected by name (see `estimator_pipeline.distribute.strategies`) and created only in the tasks
    that use them: chief and workers get the training strategy, the evaluator the evaluation strategy, a parameter
    server none. The same call therefore works in every task of the cluster, in every dialect of TF_CONFIG.

    Args:
        model_dir: Directory for checkpoints, summaries, exports and the result; shared by all tasks.
        train_distribute: Name of a strategy, or a strategy object.
        eval_distribute: "none", "one_device" or "mirrored", or a strategy object.
        devices: Device names, for `mirrored` and `one_device`.
        num_devices: Number of devices of this task, if they are not named.
        communication: A `Communication`, or its fields.
        intra_op_threads: Threads within one operation; None: TensorFlow decides from the available cores.
        inter_op_threads: Operations that run in parallel.
        seed: Seed of the graph and of Keras initializers; None: a different model at each start.
        session_config: A `tf.compat.v1.ConfigProto`, or its fields as a mapping.
        environ: Environment with TF_CONFIG; `os.environ` by default.
        tf_config: Cluster and task of this process, instead of `environ`.
        **fields: Other arguments of `tf.estimator.RunConfig`.

    Returns:
        The RunConfig.

    Raises:
        ConfigError: A name, a field or a combination is invalid.
        ClusterError: TF_CONFIG is invalid.
    """
    cluster = tf_config or from_environ(os.environ if environ is None else environ)
    if isinstance(communication, Mapping):
        communication = Communication(**communication)
    if isinstance(eval_distribute, str) and eval_distribute not in strategies.EVAL_NAMES:
        raise ConfigError(
            f"eval_distribute is {eval_distribute!r}",
            code="argument/bad-value",
            found=f"allowed: {', '.join(strategies.EVAL_NAMES)}; one process evaluates, also in a cluster",
            hint="mirrored spreads the evaluation over the devices of that process",
        )
    _check_saving(train_distribute, fields)
    tf = compat.tensorflow()
    train = eval_ = None
    make = {"tf_config": cluster, "devices": devices, "num_devices": num_devices}
    if cluster.is_training_task:
        train = _strategy(train_distribute, communication=communication, **make)
    if not cluster.is_ps:
        # A strategy of only this process: a chief that evaluates must not wait for the workers.
        eval_ = _strategy(eval_distribute, communication=None, **make)
    names = [name for name in (train_distribute, eval_distribute) if isinstance(name, str)]
    cpus = strategies.logical_cpus(names, devices=devices, num_devices=num_devices)
    session = _session_config(tf, session_config, intra_op_threads, inter_op_threads, cpus)
    if seed is not None:
        fields["tf_random_seed"] = seed
    try:
        with tf_config_environ(cluster):
            return tf.estimator.RunConfig(
                model_dir=os.fspath(model_dir),
                train_distribute=train,
                eval_distribute=eval_,
                session_config=session,
                **fields,
            )
    except TypeError as error:
        import inspect

        allowed = sorted(set(inspect.signature(tf.estimator.RunConfig.__init__).parameters) - {"self"})
        unknown = sorted(set(fields) - set(allowed))
        if not unknown:
            raise
        raise ConfigError(
            f"RunConfig has no field {', '.join(unknown)}",
            code="argument/unknown-name",
            found=f"fields: {', '.join(allowed)}",
            hint=f"did you mean {close}?" if (close := nearest(unknown[0], allowed)) else None,
        ) from error


def _check_saving(train_distribute: Any, fields: Mapping[str, Any]) -> None:
    steps, secs = fields.get("save_checkpoints_steps"), fields.get("save_checkpoints_secs")
    if steps and secs:
        raise ConfigError(
            f"save_checkpoints_steps={steps} and save_checkpoints_secs={secs} were both given",
            code="argument/conflict",
            hint="give one of the two",
        )
    collective = train_distribute == "multi_worker_mirrored" or (
        type(train_distribute).__name__ in ("CollectiveAllReduceStrategy", "MultiWorkerMirroredStrategy")
    )
    if collective and not steps:
        interval = f"save_checkpoints_secs={secs}" if secs else "neither, and RunConfig's default is 600 seconds"
        raise ConfigError(
            "with multi_worker_mirrored checkpoints must be saved by steps: workers whose clocks differ would save "
            "at different steps and wait for each other for ever",
            code="training/unsupported",
            found=interval,
            hint="give save_checkpoints_steps",
        )


def _strategy(wanted: Any, **make: Any) -> Any:
    return strategies.make(wanted, **make) if isinstance(wanted, str) else wanted


def _session_config(tf: Any, config: Any, intra: int | None, inter: int | None, cpus: int) -> Any:
    if config is None and intra is None and inter is None and cpus == 1:
        return None
    if isinstance(config, Mapping):
        from google.protobuf import json_format

        try:
            config = json_format.ParseDict(dict(config), tf.compat.v1.ConfigProto())
        except json_format.ParseError as error:
            raise ConfigError(
                f"session_config cannot be read: {error}",
                code="argument/bad-value",
                hint="use the fields of tf.compat.v1.ConfigProto, such as gpu_options: {allow_growth: true}",
            ) from error
    session = tf.compat.v1.ConfigProto(allow_soft_placement=True) if config is None else config
    if intra is not None:
        session.intra_op_parallelism_threads = intra
    if inter is not None:
        session.inter_op_parallelism_threads = inter
    if cpus > 1 and "CPU" not in session.device_count:
        # A session counts its own devices; without this it lacks the logical CPUs of the replicas.
        session.device_count["CPU"] = cpus
    return session


@contextlib.contextmanager
def tf_config_environ(config: TFConfig) -> Iterator[None]:
    """Set TF_CONFIG, within the block, to the form that TensorFlow's own code expects for this task.

    A training task gets the canonical cluster (a `master` as `chief`, no evaluator). The evaluator and the parameter
    servers get an empty TF_CONFIG: TensorFlow's code would count them as workers, or reject a cluster without a
    `chief` job.
    """
    # RunConfig reads only os.environ.
    before = os.environ.get("TF_CONFIG")
    if config.is_training_task and not config.is_single_process:
        os.environ["TF_CONFIG"] = config.to_json()
    else:
        os.environ["TF_CONFIG"] = json.dumps({})
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TF_CONFIG", None)
        else:
            os.environ["TF_CONFIG"] = before
