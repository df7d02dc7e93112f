"""Slurm: a task of a job step, started by `srun`.

Variables: https://slurm.schedmd.com/srun.html (output environment variables), het jobs:
https://slurm.schedmd.com/heterogeneous_jobs.html. Recorded on Slurm 22.05.

**What is a task.** `salloc` and `sbatch` set SLURM_* too, and `sbatch` even SLURM_PROCID=0, for a shell that runs
once. Only a step has SLURM_STEP_ID with a usual number (the batch script, the external step and an interactive shell
have numbers from 4294967290 on) and SLURM_PROCID. A step of one task with a terminal (`srun --pty`) is a shell.
`sbatch` in a step hands that step's variables on to the new job, where they mean nothing: they name other nodes or
another number of tasks than the job's own variables do.

The host of each rank: no variable has it. It follows from SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE and
SLURM_DISTRIBUTION, and is checked against Slurm's variables for this task (SLURM_GTIDS, SLURM_NODEID). In a
step over several components of a het job the node list is sorted, while ranks follow the components, each with its
own distribution. Other distributions than block and cyclic (plane, arbitrary) are not computed: the tasks then agree on
ports.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from estimator_pipeline.cluster.environments.base import Allocation, contradiction, required, whole_number
from estimator_pipeline.cluster.environments.hostlist import expand_counts, expand_hosts

__all__ = ["FIRST_SPECIAL_STEP", "Slurm"]

FIRST_SPECIAL_STEP = 4294967290
"""From here on step ids are names: 0xfffffffa interactive, 0xfffffffb batch, 0xfffffffc external, and so on."""

_DISTRIBUTIONS = ("block", "cyclic")


class Slurm:
    """A task of a Slurm job step."""

    name = "slurm"
    variables = (
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_NODELIST",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_DISTRIBUTION",
        "SLURM_GTIDS",
        "SLURM_NODEID",
        "SLURM_NTASKS",
        "SLURMD_NODENAME",
        "SLURM_PTY_PORT",
        "SLURM_HET_SIZE",
        "SLURM_JOB_NODELIST_HET_GROUP_n",
        "SLURM_RESTART_COUNT",
        "SLURM_ARRAY_JOB_ID",
        "SLURM_ARRAY_TASK_ID",
    )

    def matches(self, environ: Mapping[str, str]) -> bool:
        step = environ.get("SLURM_STEP_ID", "")
        if not step.isdigit() or int(step) >= FIRST_SPECIAL_STEP or "SLURM_PROCID" not in environ:
            return False
        tasks = environ.get("SLURM_STEP_NUM_TASKS")
        if tasks == "1" and "SLURM_PTY_PORT" in environ:
            return False
        return not _of_another_job(environ)

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        job = required(environ, "SLURM_JOB_ID", source=self.name)
        step = required(environ, "SLURM_STEP_ID", source=self.name)
        rank = whole_number(environ, "SLURM_PROCID", source=self.name)
        size = whole_number(environ, "SLURM_STEP_NUM_TASKS", source=self.name)
        hosts = self._hosts(environ, size)
        if hosts is not None:
            self._check_own(environ, hosts, rank)
        restart = whole_number(environ, "SLURM_RESTART_COUNT", source=self.name, default=0)
        notes = []
        if "SLURM_ARRAY_TASK_ID" in environ:
            notes.append(
                f"a task of the job array {environ.get('SLURM_ARRAY_JOB_ID')}, "
                f"whose element {environ['SLURM_ARRAY_TASK_ID']} is a separate cluster"
            )
        if hosts is None:
            notes.append("Slurm does not report the host of each rank here")
        return Allocation(
            environment=self.name,
            job_id=f"{job}.{step}",
            rank=rank,
            size=size,
            hosts=hosts,
            own_host=environ.get("SLURMD_NODENAME") or None,
            restart=restart,
            start_id=f"slurm-{job}.{step}-{restart}",
            notes=tuple(notes),
        )

    def _hosts(self, environ: Mapping[str, str], size: int) -> tuple[str, ...] | None:
        """Return the host of each rank, or None where no variable settles it."""
        nodes, counts = _step_nodes(environ, source=self.name)
        if sum(counts) != size:
            raise contradiction(
                self.name,
                f"SLURM_STEP_NUM_TASKS={size} is not the sum of "
                f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']!r}",
                found=f"{sum(counts)} tasks on {len(nodes)} nodes",
                hint="unset SLURM_* variables that you have exported yourself, and start the tasks by one srun.",
            )
        kind = environ.get("SLURM_DISTRIBUTION", "").lower().split(",")[0].split(":")[0] or "block"
        groups = _het_groups(environ, nodes, source=self.name)
        if groups is None or kind not in _DISTRIBUTIONS:
            return None
        tasks_of = dict(zip(nodes, counts, strict=True))
        placed: list[str] = []
        for group in groups:
            placed += distribute(group, [tasks_of[node] for node in group], kind=kind)
        return tuple(placed)

    def _check_own(self, environ: Mapping[str, str], hosts: Sequence[str], rank: int) -> None:
        """Check Slurm's variables for this task against the computed hosts of all tasks."""
        ranks = environ.get("SLURM_GTIDS", "")
        node = environ.get("SLURMD_NODENAME")
        if not ranks or rank >= len(hosts):
            return
        on_host = [i for i, host in enumerate(hosts) if host == hosts[rank]]
        if on_host != [int(i) for i in ranks.split(",") if i.isdigit()] or (node is not None and node != hosts[rank]):
            raise contradiction(
                self.name,
                f"the ranks on this node are SLURM_GTIDS={ranks!r} (SLURMD_NODENAME={node}), "
                f"and not those that SLURM_DISTRIBUTION={environ.get('SLURM_DISTRIBUTION', '')!r} makes",
                found=f"the ranks {','.join(map(str, on_host))} on {hosts[rank]}, computed from "
                f"SLURM_STEP_NODELIST={environ['SLURM_STEP_NODELIST']!r} and "
                f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']!r}",
                hint="set cluster.ports: agreed, so that the tasks publish their addresses.",
            )


def distribute(nodes: Sequence[str], counts: Sequence[int], *, kind: str) -> list[str]:
    """Return the node of each rank, as `srun --distribution` places them.

    Args:
        nodes: In Slurm's order.
        counts: How many tasks each has.
        kind: "block" fills one node after the other; "cyclic" goes round and gives one each to those that are not full.
    """
    of_nodes = [[node] * count for node, count in zip(nodes, counts, strict=True)]
    if kind == "block":
        return list(itertools.chain(*of_nodes))
    return [node for each in itertools.zip_longest(*of_nodes) for node in each if node is not None]


def _step_nodes(environ: Mapping[str, str], *, source: str) -> tuple[list[str], list[int]]:
    text = required(environ, "SLURM_STEP_NODELIST", source=source)
    nodes = expand_hosts(text, source=source, variable="SLURM_STEP_NODELIST")
    per_node = required(environ, "SLURM_STEP_TASKS_PER_NODE", source=source)
    counts = expand_counts(per_node, source=source, variable="SLURM_STEP_TASKS_PER_NODE")
    if len(nodes) != len(counts):
        raise contradiction(
            source,
            f"SLURM_STEP_NODELIST={text!r} and SLURM_STEP_TASKS_PER_NODE={per_node!r} are of different lengths",
            found=f"{len(nodes)} nodes and the tasks of {len(counts)}",
            hint="unset SLURM_* variables that you have exported yourself, and start the tasks by one srun.",
        )
    return nodes, counts


def _het_groups(environ: Mapping[str, str], nodes: Sequence[str], *, source: str) -> list[list[str]] | None:
    """Return the step's nodes by component: one component if there are none, None if it is not clear."""
    size = whole_number(environ, "SLURM_HET_SIZE", source=source, default=1)
    if size <= 1:
        return [list(nodes)]
    groups: list[list[str]] = []
    for i in range(size):
        variable = f"SLURM_JOB_NODELIST_HET_GROUP_{i}"
        if not environ.get(variable):
            return None
        members = expand_hosts(environ[variable], source=source, variable=variable)
        groups.append([node for node in members if node in nodes])
    together = [node for group in groups for node in group]
    return groups if sorted(together) == sorted(nodes) else None


def _of_another_job(environ: Mapping[str, str]) -> bool:
    """Whether the step's variables came from the shell in which this job was submitted."""
    tasks, of_job = environ.get("SLURM_STEP_NUM_TASKS"), environ.get("SLURM_NTASKS")
    if tasks is not None and of_job is not None and tasks != of_job:
        return True
    node, text = environ.get("SLURMD_NODENAME"), environ.get("SLURM_STEP_NODELIST")
    if not node or not text:
        return False
    return node not in expand_hosts(text, source="slurm", variable="SLURM_STEP_NODELIST")
