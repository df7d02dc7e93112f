"""Distribution strategies by name, for the task of this process.

================================ =============================================================================
`none`                           one device, no strategy
`one_device`                     `tf.distribute.OneDeviceStrategy`
`mirrored`                       `tf.distribute.MirroredStrategy` over the devices of this machine
`multi_worker_mirrored`          `tf.distribute.MultiWorkerMirroredStrategy` over the chief and the workers
`parameter_server`               `tf.compat.v1.distribute.experimental.ParameterServerStrategy`, asynchronous
================================ =============================================================================

Strategies are built from `TFConfig`, never from the environment. All dialects of
TF_CONFIG therefore work with all strategies, and an evaluator can never join the training cluster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.process_state import STATE
from estimator_pipeline.utils.text import nearest

NAMES = ("none", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server")
# One process evaluates, so a strategy that needs the whole cluster cannot be used.
EVAL_NAMES = ("none", "one_device", "mirrored")
IMPLEMENTATIONS = ("auto", "ring", "nccl")


@dataclass(frozen=True, kw_only=True)
class Communication:
    """How the workers of `multi_worker_mirrored` exchange gradients.

    Attributes:
        implementation: "auto", "ring" (gRPC between hosts) or "nccl" (GPUs only).
        bytes_per_pack: Size in bytes to which gradients are packed for an all-reduce; 0: chosen by TensorFlow.
        timeout_secs: Seconds after which a collective fails; None: no limit.

    Raises:
        ConfigError: A value is not allowed.
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
        """Return the `tf.distribute.experimental.CommunicationOptions` for these values."""
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
    tf_config: TFConfig,
    devices: Sequence[str] | None = None,
    num_devices: int | None = None,
    communication: Communication | None = None,
) -> Any:
    """Return the strategy `name` for this task, or None for "none".

    Args:
        name: One of `NAMES`.
        tf_config: Cluster and task of this process.
        devices: Devices of `mirrored` (all of them) or `one_device` (the first), such as `["GPU:0", "GPU:1"]`.
        num_devices: Number of devices of this task, if they are not named. On a machine without GPUs `mirrored` splits
            the CPU into that many logical devices.
        communication: Options of `multi_worker_mirrored`.

    Raises:
        ConfigError: The name is unknown, or the strategy cannot run in this cluster.
    """
    if name not in NAMES:
        # "MultiWorkerMirroredStrategy", or with its modules.
        word = str(name).rpartition(".")[2].removesuffix("Strategy")
        close = nearest(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word), NAMES)
        raise ConfigError(
            f"the distribution strategy {name!r} is not known",
            code="argument/unknown-name",
            found=f"allowed: {', '.join(NAMES)}",
            hint=f"did you mean {close!r}?" if close else None,
        )
    if name == "none":
        return None
    if name == "one_device":
        tf = compat.tensorflow()
        if devices:
            split_cpu(logical_cpus([name], devices=devices))
        return tf.distribute.OneDeviceStrategy(devices[0] if devices else _default_device(tf))
    if name == "mirrored":
        return _mirrored(devices, num_devices)
    if name == "multi_worker_mirrored":
        return _multi_worker_mirrored(tf_config, num_devices, communication or Communication())
    return _parameter_server(tf_config)


def of_this_process(strategy: Any) -> Any:
    """Return a strategy with local device names, for a session of only this process.

    In a process that has joined a cluster (MultiWorkerMirroredStrategy), every strategy has cluster device names
    (`/job:worker/task:0/...`), which only a session of the cluster knows. The returned strategy uses the same devices
    by their local names; MultiWorkerMirroredStrategy becomes MirroredStrategy.

    Args:
        strategy: The evaluation strategy. None, a strategy of a different kind and one that already has local device
            names are returned unchanged.
    """
    tf = compat.tensorflow()
    if strategy is None or not type(strategy).__name__.startswith(_OF_ONE_PROCESS):
        return strategy
    devices = [tf.DeviceSpec.from_string(device) for device in strategy.extended.worker_devices]
    if all(device.job in (None, "localhost") for device in devices):
        return strategy
    names = [f"/device:{device.device_type}:{device.device_index}" for device in devices]
    with tf.Graph().as_default():  # in graph mode devices are not resolved in the cluster
        if type(strategy).__name__.startswith("OneDevice"):
            return tf.distribute.OneDeviceStrategy(names[0])
        local = tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())
    # A strategy created in graph mode would not handle the last partial batch as one created in eager mode does.
    local.extended.experimental_enable_get_next_as_optional = True
    return local


# Class names; those of TensorFlow 1's API have a suffix. (The third is MultiWorkerMirroredStrategy.)
_OF_ONE_PROCESS = ("MirroredStrategy", "OneDeviceStrategy", "CollectiveAllReduceStrategy")


def logical_cpus(names: Sequence[str], *, devices: Sequence[str] | None = None, num_devices: int | None = None) -> int:
    """Return the number of logical CPU devices that these strategies need.

    Args:
        names: Names of the strategies.
        devices: See `make`.
        num_devices: See `make`.
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
    """Return 1 for "CPU:1", "/cpu:1" or "/job:worker/task:0/device:CPU:1"; None for other devices."""
    match = re.search(r"(?:^|[/:])cpu:(\d+)$", device, re.IGNORECASE)
    return int(match[1]) if match else None


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
                f"mirrored over {num_devices} devices was requested",
                code="strategy/not-possible",
                found=f"{len(gpus)} GPUs on this machine",
                hint=f"num_devices at most {len(gpus)}",
            )
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(num_devices)])
    split_cpu(num_devices)
    return _over_cpus([f"CPU:{i}" for i in range(num_devices)])


def _over_cpus(devices: Sequence[str]) -> Any:
    # TensorFlow would choose ring collectives between logical CPU devices, as for eager code. In an Estimator's
    # session they deadlock.
    tf = compat.tensorflow()
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=tf.distribute.ReductionToOneDevice())


def split_cpu(num_devices: int) -> None:
    """Split this machine's CPU into `num_devices` logical devices, before TensorFlow uses the CPU.

    If there are more already, they are unchanged.

    Raises:
        ConfigError: TensorFlow has initialized fewer devices already.
    """
    if num_devices == 1:
        return  # the default
    tf = compat.tensorflow()
    cpu = tf.config.list_physical_devices("CPU")[0]
    have = tf.config.get_logical_device_configuration(cpu)
    if have is not None and len(have) >= num_devices:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    except RuntimeError as error:
        count = len(tf.config.list_logical_devices("CPU"))
        if count >= num_devices:
            return
        raise ConfigError(
            f"the CPU cannot be split into {num_devices} logical devices any more",
            code="strategy/not-possible",
            found=f"TensorFlow is running with {count} already",
            hint="make the strategy before any other TensorFlow operation, once per process",
        ) from error


# The options and the strategy of this process, by task and cluster. A second strategy would make TensorFlow initialize
# its collectives again, at the port that the first one holds, and hang.


def _multi_worker_mirrored(config: TFConfig, num_devices: int | None, communication: Communication) -> Any:
    tf = compat.tensorflow()
    if config.is_single_process and config.is_training_task:
        alone = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
        return tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=alone, communication_options=communication.options()
        )
    if config.cluster is None or not config.is_training_task:
        raise ConfigError(
            f"multi_worker_mirrored was requested on {config.task}",
            code="strategy/not-possible",
            found="only the chief and the workers take part in it; the strategy would wait for this task forever",
            hint="create the strategy through build_run_config or train_and_evaluate, which leave it out here",
        )
    if config.cluster.num_ps:
        raise ConfigError(
            "multi_worker_mirrored was requested in a cluster with a `ps` job",
            code="strategy/not-possible",
            found=f"ps: {', '.join(config.cluster.jobs['ps'])}",
            hint="remove the ps job from TF_CONFIG, or use parameter_server",
        )
    gpus = len(tf.config.list_physical_devices("GPU")) if num_devices is None else num_devices
    place = (str(config.task), repr(config.cluster.as_dict()))
    options = (gpus, config.rpc_layer, communication)
    if place in STATE.strategies:
        before, strategy = STATE.strategies[place]
        if before != options:
            raise ConfigError(
                f"multi_worker_mirrored was requested again on {config.task}, with (devices, RPC layer, communication) "
                f"= {options}",
                code="strategy/not-possible",
                found=f"this process has it already, with {before}, and TensorFlow initializes it once per process",
                hint="use the same options for every training in a process, or one process for each",
            )
        _renumber_collectives(strategy)
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
    STATE.strategies[place] = (options, strategy)
    return strategy


def _renumber_collectives(strategy: Any) -> None:
    """Give the collectives of the next training in this process different keys.

    An Estimator trains with a copy of its strategy that is configured for the cluster again and numbers its collectives
    from the first key, while the runtime remembers the shapes of each key. Every worker calls this for the same
    training.
    """
    strategy.extended._collective_key_base += _GROUPS_OF_A_TRAINING


# More groups (sets of devices) than one training creates.
_GROUPS_OF_A_TRAINING = 1000


def _parameter_server(config: TFConfig) -> Any:
    tf = compat.tensorflow()
    if config.cluster is None or not config.cluster.num_ps:
        raise ConfigError(
            "parameter_server was requested without parameter servers",
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
