"""Names of distribution strategies, and how each is made for the task that this process is.

================================ =============================================================================
`none`                           one device, no strategy
`one_device`                     `tf.distribute.OneDeviceStrategy`
`mirrored`                       `tf.distribute.MirroredStrategy` over the devices of this machine
`multi_worker_mirrored`          `tf.distribute.MultiWorkerMirroredStrategy` over the chief and the workers
`parameter_server`               `tf.compat.v1.distribute.experimental.ParameterServerStrategy`, asynchronous
================================ =============================================================================

The strategy is always built from our own :class:`~estimator_pipeline.cluster.TFConfig`, never from the environment:
so all dialects of TF_CONFIG work with all strategies, and an evaluator can never join the training cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.errors import ConfigError

NAMES = ("none", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server")
# One process evaluates; a strategy that needs the whole cluster has no place there.
EVAL_NAMES = ("none", "one_device", "mirrored")
IMPLEMENTATIONS = ("auto", "ring", "nccl")


@dataclass(frozen=True, kw_only=True)
class Communication:
    """How the workers of `multi_worker_mirrored` exchange gradients.

    Attributes:
        implementation: "auto", "ring" (gRPC between hosts) or "nccl" (GPUs alone).
        bytes_per_pack: gradients are packed into all-reduces of about this many bytes; 0: chosen by TensorFlow.
        timeout_secs: a collective that takes longer fails instead of waiting for ever; None: no limit.

    Raises:
        ConfigError: a value that is not allowed.
    """

    implementation: str = "auto"
    bytes_per_pack: int = 0
    timeout_secs: float | None = None

    def __post_init__(self) -> None:
        if self.implementation not in IMPLEMENTATIONS:
            raise ConfigError(
                f"communication.implementation is {self.implementation!r}",
                code="argument/bad-value",
                found=f"allowed: {', '.join(IMPLEMENTATIONS)}",
                hint="ring works everywhere; nccl needs GPUs",
            )
        if self.bytes_per_pack < 0:
            raise ConfigError(
                f"communication.bytes_per_pack is {self.bytes_per_pack}",
                code="argument/bad-value",
                hint="0 or more bytes",
            )
        if self.timeout_secs is not None and self.timeout_secs <= 0:
            raise ConfigError(
                f"communication.timeout_secs is {self.timeout_secs}",
                code="argument/bad-value",
                hint="seconds above 0, or none for no limit",
            )

    def options(self) -> Any:
        """The `tf.distribute.experimental.CommunicationOptions` for these values."""
        tf = compat.tensorflow()
        kinds = tf.distribute.experimental.CommunicationImplementation
        return tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=self.bytes_per_pack,
            timeout_seconds=self.timeout_secs,
            implementation=getattr(kinds, self.implementation.upper()),
        )


def make(
    name: str,
    *,
    tf_config: TFConfig | None = None,
    devices: Sequence[str] | None = None,
    num_devices: int | None = None,
    communication: Communication | None = None,
    environ: Mapping[str, str] | None = None,
) -> Any:
    """The strategy `name` for this task, or None for "none".

    Args:
        name: one of :data:`NAMES`.
        tf_config: which task this is; read from `environ` where it is not given.
        devices: devices of `mirrored` (all of them) or `one_device` (the first), such as `["GPU:0", "GPU:1"]`.
        num_devices: how many devices this task uses, where they are not named. On a machine without GPUs
            `mirrored` splits the CPU into that many logical devices.
        communication: options of `multi_worker_mirrored`.
        environ: where TF_CONFIG is looked up; `os.environ` by default.

    Raises:
        ConfigError: an unknown name, or a strategy that cannot work in this cluster.
    """
    if name not in NAMES:
        raise ConfigError(
            f"the distribution strategy {name!r} is not known",
            code="argument/unknown-name",
            found=f"allowed: {', '.join(NAMES)}",
        )
    if name == "none":
        return None
    config = tf_config if tf_config is not None else from_environ(os.environ if environ is None else environ)
    if name == "one_device":
        tf = compat.tensorflow()
        if devices:
            split_cpu(logical_cpus([name], devices=devices))
        return tf.distribute.OneDeviceStrategy(devices[0] if devices else _default_device(tf))
    if name == "mirrored":
        return _mirrored(devices, num_devices)
    if name == "multi_worker_mirrored":
        return _multi_worker_mirrored(config, num_devices, communication or Communication())
    return _parameter_server(config)


def of_this_process(strategy: Any) -> Any:
    """A strategy of one process for a session that knows this process alone.

    In a process that has joined a cluster (MultiWorkerMirroredStrategy) the devices of every strategy bear the names
    that they have there, `/job:worker/task:0/...`, which only a session of the cluster knows. The strategy that this
    gives is over the same devices by their names in the process; MultiWorkerMirroredStrategy becomes MirroredStrategy.

    Args:
        strategy: such as is given for an evaluation. None, or one of another kind, is given back, and so is one whose
            devices are named as those of a process by itself.
    """
    tf = compat.tensorflow()
    if strategy is None or not type(strategy).__name__.startswith(_OF_ONE_PROCESS):
        return strategy
    devices = [tf.DeviceSpec.from_string(device) for device in strategy.extended.worker_devices]
    if all(device.job in (None, "localhost") for device in devices):
        return strategy
    own = [f"/device:{device.device_type}:{device.device_index}" for device in devices]
    with tf.Graph().as_default():  # where a device is not looked up in the cluster
        if type(strategy).__name__.startswith("OneDevice"):
            return tf.distribute.OneDeviceStrategy(own[0])
        made = tf.distribute.MirroredStrategy(own, cross_device_ops=tf.distribute.ReductionToOneDevice())
    # A graph's strategy would leave out what one made in eager mode makes of the end of the data.
    made.extended.experimental_enable_get_next_as_optional = True
    return made


# Names of classes; those of TensorFlow 1's API have an ending more. (The third is MultiWorkerMirroredStrategy.)
_OF_ONE_PROCESS = ("MirroredStrategy", "OneDeviceStrategy", "CollectiveAllReduceStrategy")


def logical_cpus(names: Sequence[str], *, devices: Sequence[str] | None = None, num_devices: int | None = None) -> int:
    """How many logical devices of this machine's CPU these strategies need, in the runtime and in each session.

    Args:
        names: of the strategies.
        devices: see :func:`make`.
        num_devices: the same.
    """
    used = []
    if "mirrored" in names:
        used = list(devices or [])
        if not used and num_devices and not compat.tensorflow().config.list_physical_devices("GPU"):
            return num_devices
    elif "one_device" in names:
        used = list(devices or [])[:1]
    return max((number + 1 for number in map(_cpu_number, used) if number is not None), default=1)


def _cpu_number(device: str) -> int | None:
    """1 of "CPU:1", "/cpu:1" or "/job:worker/task:0/device:CPU:1"; None of another device."""
    found = re.search(r"(?:^|[/:])cpu:(\d+)$", device, re.IGNORECASE)
    return int(found[1]) if found else None


def _default_device(tf: Any) -> str:
    return "/gpu:0" if tf.config.list_physical_devices("GPU") else "/cpu:0"


def _mirrored(devices: Sequence[str] | None, num_devices: int | None) -> Any:
    tf = compat.tensorflow()
    if devices and None not in map(_cpu_number, devices):
        split_cpu(logical_cpus(["mirrored"], devices=devices))
        return _over_cpus(devices)
    if devices:
        return tf.distribute.MirroredStrategy(list(devices))
    if num_devices is None:
        return tf.distribute.MirroredStrategy()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if num_devices > len(gpus):
            raise ConfigError(
                f"mirrored over {num_devices} devices was asked for",
                code="strategy/not-possible",
                found=f"{len(gpus)} GPUs on this machine",
                hint=f"num_devices at most {len(gpus)}",
            )
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(num_devices)])
    split_cpu(num_devices)
    return _over_cpus([f"CPU:{i}" for i in range(num_devices)])


def _over_cpus(devices: Sequence[str]) -> Any:
    # TensorFlow would choose ring collectives between the CPU's devices, as it does for eager code; run by an
    # Estimator's session, they wait for each other for ever.
    tf = compat.tensorflow()
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=tf.distribute.ReductionToOneDevice())


def split_cpu(num_devices: int) -> None:
    """Makes `num_devices` logical devices of this machine's CPU. Must come before TensorFlow uses the CPU.

    More of them that are there already are left as they are.

    Raises:
        ConfigError: TensorFlow has set its devices up already, with fewer.
    """
    if num_devices == 1:
        return  # as it is by itself
    tf = compat.tensorflow()
    cpu = tf.config.list_physical_devices("CPU")[0]
    have = tf.config.get_logical_device_configuration(cpu)
    if have is not None and len(have) >= num_devices:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    except RuntimeError as error:
        found = len(tf.config.list_logical_devices("CPU"))
        if found >= num_devices:
            return
        raise ConfigError(
            f"the CPU cannot be split into {num_devices} logical devices any more",
            code="strategy/not-possible",
            found=f"TensorFlow is running with {found} already",
            hint="make the strategy before any other TensorFlow operation, once per process",
        ) from error


# The strategy of a process in its cluster, by the task and the cluster, with its options. A second one would have
# TensorFlow set its collectives up anew, at the port that the first one holds, and wait for ever.
_made: dict[tuple[str, str], tuple[Any, Any]] = {}


def _multi_worker_mirrored(config: TFConfig, num_devices: int | None, communication: Communication) -> Any:
    tf = compat.tensorflow()
    if config.is_single_process and config.is_training_task:
        alone = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
        return tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=alone, communication_options=communication.options()
        )
    if config.cluster is None or not config.is_training_task:
        raise ConfigError(
            f"multi_worker_mirrored was asked for on {config.task}",
            code="strategy/not-possible",
            found="only the chief and the workers take part in it; the strategy would wait for this task for ever",
            hint="make the strategy through build_run_config or train_and_evaluate, which leave it out here",
        )
    if config.cluster.num_ps:
        raise ConfigError(
            "multi_worker_mirrored was asked for in a cluster with a `ps` job",
            code="strategy/not-possible",
            found=f"ps: {', '.join(config.cluster.jobs['ps'])}",
            hint="remove the ps job from TF_CONFIG, or use parameter_server",
        )
    gpus = len(tf.config.list_physical_devices("GPU")) if num_devices is None else num_devices
    place = (str(config.task), repr(config.cluster.as_dict()))
    options = (gpus, config.rpc_layer, communication)
    if place in _made:
        made, strategy = _made[place]
        if made != options:
            raise ConfigError(
                f"multi_worker_mirrored was asked for again on {config.task}, with (devices, RPC layer, communication) "
                f"= {options}",
                code="strategy/not-possible",
                found=f"this process has it already, with {made}, and TensorFlow sets it up once in a process",
                hint="the same options for every training of a process, or a process for each",
            )
        _number_collectives_anew(strategy)
        return strategy
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(config.cluster.as_dict()),
        task_type=config.task.type,
        task_id=config.task.index,
        num_accelerators={"GPU": gpus} if gpus else {},
        rpc_layer=config.rpc_layer,
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        cluster_resolver=resolver, communication_options=communication.options()
    )
    _made[place] = (options, strategy)
    return strategy


def _number_collectives_anew(strategy: Any) -> None:
    """Has the next training of a process use other numbers for its collectives than those before.

    An Estimator trains with a copy of its strategy that is told its cluster anew, and then numbers its collectives from
    the first one on, while the runtime remembers what shapes belonged to each number. Every worker comes here for the
    same training.
    """
    strategy.extended._collective_key_base += _GROUPS_OF_A_TRAINING


# More groups than a training makes, which are sets of devices.
_GROUPS_OF_A_TRAINING = 1000


def _parameter_server(config: TFConfig) -> Any:
    tf = compat.tensorflow()
    if config.cluster is None or not config.cluster.num_ps:
        raise ConfigError(
            "parameter_server was asked for without parameter servers",
            code="strategy/not-possible",
            found="no TF_CONFIG" if config.cluster is None else f"jobs: {', '.join(config.cluster.jobs)}",
            hint="add a `ps` job to the cluster (launch --ps N), or use multi_worker_mirrored",
        )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(config.cluster.as_dict()),
        task_type=config.task.type,
        task_id=config.task.index,
        rpc_layer=config.rpc_layer,
    )
    return tf.compat.v1.distribute.experimental.ParameterServerStrategy(resolver)
