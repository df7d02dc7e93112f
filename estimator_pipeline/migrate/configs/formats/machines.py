"""Machine types of training services, as Google and Amazon document them, and the resources of a job for them.

The number of GPUs is converted. CPUs and memory are left to the user. A pod that requests all of a machine fits on no
node of that size, because the node reserves a part. A vCPU of a service is a thread, but Slurm counts cores.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from estimator_pipeline.migrate.configs.documents import Item
from estimator_pipeline.migrate.configs.findings import JobDraft

__all__ = ["Machine", "machine_of", "take_deadline", "take_gpus", "take_machine"]


class Machine(NamedTuple):
    """A machine type.

    Attributes:
        cpus: Number of vCPUs.
        memory: Memory in GB.
        gpus: Number of GPUs.
        gpu: GPU model.
    """

    cpus: int
    memory: float
    gpus: int = 0
    gpu: str = ""

    def __str__(self) -> str:
        gpus = f", {self.gpus} {self.gpu} GPU{'s'[: self.gpus > 1]}" if self.gpus else ""
        return f"{self.cpus} vCPUs, {self.memory:g} GB{gpus}"


# https://cloud.google.com/ai-platform/training/docs/machine-types
_GOOGLE = {
    "standard": Machine(4, 15),
    "large_model": Machine(8, 52),
    "complex_model_s": Machine(8, 7.2),
    "complex_model_m": Machine(16, 14.4),
    "complex_model_l": Machine(32, 28.8),
    "standard_gpu": Machine(8, 30, 1, "K80"),
    "complex_model_m_gpu": Machine(16, 60, 4, "K80"),
    "complex_model_l_gpu": Machine(32, 120, 8, "K80"),
    "standard_p100": Machine(8, 30, 1, "P100"),
    "complex_model_m_p100": Machine(16, 60, 4, "P100"),
    "standard_v100": Machine(8, 30, 1, "V100"),
    "large_model_v100": Machine(16, 104, 1, "V100"),
    "complex_model_m_v100": Machine(16, 60, 4, "V100"),
    "complex_model_l_v100": Machine(32, 120, 8, "V100"),
}
_GOOGLE_FAMILIES = {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}  # GB per vCPU, for n1
# https://aws.amazon.com/sagemaker/pricing/ and https://aws.amazon.com/ec2/instance-types/
_AMAZON = {
    "p2.xlarge": Machine(4, 61, 1, "K80"),
    "p2.8xlarge": Machine(32, 488, 8, "K80"),
    "p2.16xlarge": Machine(64, 732, 16, "K80"),
    "p3.2xlarge": Machine(8, 61, 1, "V100"),
    "p3.8xlarge": Machine(32, 244, 4, "V100"),
    "p3.16xlarge": Machine(64, 488, 8, "V100"),
    "p3dn.24xlarge": Machine(96, 768, 8, "V100"),
    "p4d.24xlarge": Machine(96, 1152, 8, "A100"),
    "g4dn.xlarge": Machine(4, 16, 1, "T4"),
    "g4dn.2xlarge": Machine(8, 32, 1, "T4"),
    "g4dn.4xlarge": Machine(16, 64, 1, "T4"),
    "g4dn.8xlarge": Machine(32, 128, 1, "T4"),
    "g4dn.12xlarge": Machine(48, 192, 4, "T4"),
    "g4dn.16xlarge": Machine(64, 256, 1, "T4"),
    "g5.xlarge": Machine(4, 16, 1, "A10G"),
    "g5.2xlarge": Machine(8, 32, 1, "A10G"),
    "g5.12xlarge": Machine(48, 192, 4, "A10G"),
    "g5.48xlarge": Machine(192, 768, 8, "A10G"),
    "m4.xlarge": Machine(4, 16),
    "m4.2xlarge": Machine(8, 32),
    "m4.4xlarge": Machine(16, 64),
    "m4.10xlarge": Machine(40, 160),
    "m4.16xlarge": Machine(64, 256),
    "m5.large": Machine(2, 8),
    "m5.xlarge": Machine(4, 16),
    "m5.2xlarge": Machine(8, 32),
    "m5.4xlarge": Machine(16, 64),
    "m5.12xlarge": Machine(48, 192),
    "m5.24xlarge": Machine(96, 384),
    "c4.xlarge": Machine(4, 7.5),
    "c4.2xlarge": Machine(8, 15),
    "c4.4xlarge": Machine(16, 30),
    "c4.8xlarge": Machine(36, 60),
    "c5.xlarge": Machine(4, 8),
    "c5.2xlarge": Machine(8, 16),
    "c5.4xlarge": Machine(16, 32),
    "c5.9xlarge": Machine(36, 72),
    "c5.18xlarge": Machine(72, 144),
}


def machine_of(name: str) -> Machine | None:
    """Return a machine type, or None if it is unknown."""
    if name in _GOOGLE:
        return _GOOGLE[name]
    family = re.fullmatch(r"n1-(standard|highmem|highcpu)-(\d{1,3})", name)
    if family:
        cpus = int(family[2])
        return Machine(cpus, round(cpus * _GOOGLE_FAMILIES[family[1]], 1))
    return _AMAZON.get(name.removeprefix("ml."))


def take_machine(draft: JobDraft, item: Item, role: str) -> int:
    """Convert a machine type.

    Returns:
        Its number of GPUs.
    """
    section = draft.scheduler
    machine = machine_of(str(item.value))
    cpu, memory = ("cpu", "memory") if section == "kubernetes" else ("cpus_per_task", "mem")
    to = (section, "roles", role, cpu)
    if machine is None:
        draft.decide(item, f"unknown machine type: set {cpu}, {memory} and GPUs of the {role}", to)
        return 0
    why = f"{machine}: set how much of it the {role} requests as {cpu} and {memory}"
    if machine.gpus:
        take_gpus(draft, item, role, machine.gpus, why=f"GPUs of a {item.value}")
    draft.decide(item, why, to)
    return machine.gpus


def take_gpus(draft: JobDraft, item: Item, role: str, count: int, *, why: str) -> None:
    """Set the number of GPUs of a role."""
    name = "gpus" if draft.scheduler == "kubernetes" else "gpus_per_task"
    draft.take(item, (draft.scheduler, "roles", role, name), count, why=why)


def take_deadline(draft: JobDraft, item: Item, seconds: int) -> None:
    """Convert a limit on the running time."""
    if seconds == 0:
        draft.drop(item, "no limit")
    elif draft.scheduler == "kubernetes":
        draft.take(item, ("kubernetes", "active_deadline_seconds"), seconds, why="seconds")
    else:
        minutes = -(-seconds // 60)
        draft.take(
            item, ("slurm", "time"), minutes, why=f"{seconds} seconds in minutes, for one run; a requeue restarts it"
        )


def need_devices(draft: JobDraft, gpus: int) -> None:
    """Require a strategy for several GPUs in one training task."""
    if gpus > 1 and draft.training_tasks == 1 and not draft.current("cluster", "ps"):
        draft.need(
            ("run", "train_distribute"),
            f"mirrored trains on all {gpus} GPUs, none on one of them; set in the program",
        )
