"""A real Slurm on this machine, for tests: slurmctld, and a slurmd for each of several virtual nodes.

Each node has a host name of its own (a UTS namespace) and an /etc/hosts in which all of them are 127.0.0.1 (a mount
namespace). Nothing of the machine's own is touched: no user, no service, no file outside of one folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["PROGRAMS", "RealSlurm", "why_absent"]

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "unshare")

_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/pid/ctld.pid
SlurmdPidFile={folder}/pid/%n.pid
SlurmctldLogFile={folder}/log/ctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=60
MinJobAge=600
JobRequeue=1
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0,sched_min_interval=0
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_absent() -> str:
    """Why no Slurm can be started here; empty where one can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)} missing); `make test-slurm` installs it"
    if os.geteuid() != 0:
        return "nodes with host names of their own need root"
    done = subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


class RealSlurm:
    """A cluster that runs from `start` to `stop`.

    Args:
        folder: For its state, logs and configuration; short, since sockets lie in it.
        nodes: Names of the nodes.
        cpus: Of each node, whatever the machine has.
    """

    def __init__(self, folder: Path, nodes: Sequence[str], *, cpus: int = 4) -> None:
        self.folder, self.nodes, self.cpus = folder, tuple(nodes), cpus
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._namespaces: dict[str, str] = {}

    # -- its life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        for name in ("state", "spool", "pid", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        ports = _free_ports(len(self.nodes) + 1)
        lines = [_CONF.format(host=socket.gethostname(), ctld_port=ports[0], folder=self.folder)]
        for name, port in zip(self.nodes, ports[1:], strict=True):
            lines.append(
                f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} RealMemory=8000\n"
            )
        self.conf.write_text("".join(lines))
        hosts = "".join(f"127.0.0.1 {name}\n" for name in ("localhost", socket.gethostname(), *self.nodes))
        (self.folder / "hosts").write_text(hosts)
        self._daemons["slurmctld"] = self._popen(["slurmctld", "-D", "-c", "-f", str(self.conf)], "slurmctld")
        for name in self.nodes:
            self.start_node(name)
        self.wait(lambda: self.node_states().count("idle") == len(self.nodes), "all nodes are idle", timeout=180)

    def start_node(self, name: str) -> None:
        """Starts a node's daemon, also after `crash_node`."""
        inner = (
            f"hostname {name} && mount --bind {self.folder}/hosts /etc/hosts && "
            f"exec slurmd -D -N {name} -f {self.conf} {'-c' if name not in self._namespaces else ''}"
        )
        command = ["unshare", "--uts", "--mount", "sh", "-c", inner]
        process = self._popen(command, name)
        self._daemons[name] = process
        own = os.readlink("/proc/self/ns/uts")
        self.wait(lambda: _namespace(process.pid) not in ("", own), f"{name} has a namespace", timeout=20)
        self._namespaces[name] = _namespace(process.pid)

    def run_on(self, name: str, *command: str) -> None:
        """Runs a command among the mounts of a node."""
        self.run("nsenter", f"--mount=/proc/{self._daemons[name].pid}/ns/mnt", *command)

    def crash_node(self, name: str) -> None:
        """Kills everything that runs on a node, as if its power had gone, and tells Slurm that it is down."""
        self._kill_all_in({self._namespaces[name]})
        self._daemons.pop(name).wait(timeout=20)
        # Slurm notices by itself after SlurmdTimeout and a round of pings, some 30 seconds.
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=crashed")

    def revive_node(self, name: str) -> None:
        """Starts it again; Slurm takes it back by itself (ReturnToService=2)."""
        self.start_node(name)
        self.wait(lambda: "down" not in " ".join(self.node_states()), f"{name} is back", timeout=60)

    def stop(self) -> None:
        """Ends every job, daemon and process of every node."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--state=PENDING", "--user=root", check=False)
        self._kill_all_in(set(self._namespaces.values()))
        for process in self._daemons.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(timeout=20)
        self._daemons.clear()

    def processes(self) -> list[int]:
        """Everything that runs on any of the nodes."""
        return _members(set(self._namespaces.values()))

    def processes_on(self, name: str) -> list[int]:
        """Everything that runs on one node."""
        return _members({self._namespaces[name]})

    @staticmethod
    def command_of(pid: int) -> str:
        """A process's command line, or nothing where it has ended."""
        try:
            return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            return ""

    def _kill_all_in(self, namespaces: set[str]) -> None:
        deadline = time.monotonic() + 20
        while (pids := _members(namespaces)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        assert not _members(namespaces), "processes of a node outlive SIGKILL"

    def _popen(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        environ["PATH"] = f"{environ.get('PATH', '')}:/usr/sbin:/sbin"
        with open(self.folder / "log" / f"{name}.out", "ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environ)

    # -- what a person does -------------------------------------------------------------------------------------

    @property
    def environ(self) -> dict[str, str]:
        """What a client needs to find this Slurm."""
        return {"SLURM_CONF": str(self.conf)}

    def run(self, *command: str, check: bool = True, environ: Mapping[str, str] | None = None) -> str:
        base = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**base, **(environ or {}), **self.environ},
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def node_states(self) -> list[str]:
        return self.run("sinfo", "--Node", "--noheader", "--format=%T", check=False).split()

    def job(self, job_id: str) -> dict[str, str]:
        """What Slurm says of a job, as `scontrol show job` prints it."""
        text = self.run("scontrol", "show", "job", "--oneliner", job_id)
        pairs = (word.partition("=") for word in text.splitlines()[0].split())
        return {key: value for key, _, value in pairs}

    def wait(self, look: Callable[[], bool], what: str, *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not look():
            for name, process in self._daemons.items():
                said = (self.folder / "log" / f"{name}.out").read_text()[-2000:]
                assert process.poll() is None, f"{name} has ended with {process.returncode}: {said}"
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
            time.sleep(0.2)

    def wait_for(self, job_id: str, *states: str, timeout: float = 240) -> dict[str, str]:
        """Waits until a job is in one of the states, and no longer completing."""
        self.wait(
            lambda: self.job(job_id)["JobState"] in states, f"job {job_id} is {' or '.join(states)}", timeout=timeout
        )
        return self.job(job_id)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/uts")
    except OSError:
        return ""


def _members(namespaces: set[str]) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and _namespace(int(name)) in namespaces and not _is_zombie(int(name)):
            found.append(int(name))
    return found


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _free_ports(count: int) -> list[int]:
    # Below those that the tests' jobs and outgoing connections get.
    found: list[int] = []
    for port in range(6900, 9900):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")
