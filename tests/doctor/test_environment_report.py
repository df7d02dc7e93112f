"""`env`: what a bug report needs, without what is private."""

from __future__ import annotations

import json
import re
from importlib import metadata

from tests.support.command_line import call

_ENVIRON = {
    "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]},\n "task": {"type": "worker", "index": 1}}',
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "XLA_FLAGS": "--xla_dump_to=/tmp/`dump`",
    "TF_STORE": "https://me:hunter2@store/models",
    "ESTIMATOR_PIPELINE_TOKEN": "hunter2",
    "https_proxy": "http://me:hunter2@proxy",
    "SLURM_JOB_USER": "hunter2",
    "MY_PASSWORD": "hunter2",
    "TF_VAR_database": "hunter2",
    "CUDA_VISIBLE_DEVICES": "",
}


def test_a_block_for_an_issue():
    done = call("env", env=_ENVIRON)
    first, *lines, last = done.stdout.splitlines()
    assert done.returncode == 0 and (first, last) == ("```text", "```")
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in lines)
    for name in ("tensorflow-estimator", "protobuf", "numpy", "pyarrow", "tf-keras", "keras"):
        assert rows[name] == metadata.version(name)
    assert {"estimator_pipeline", "python", "platform", "CPUs", "memory", "limits", "GPUs"} <= set(rows)
    assert rows["scheduler"] == "tf_config, worker:1" and rows["GPUs"].startswith("0 visible")
    assert json.loads(rows["TF_CONFIG"])["task"]["index"] == 1 and rows["CUDA_VISIBLE_DEVICES"] == '""'
    assert rows["TF_STORE"] == "https://…@store/models"


def test_what_is_private_is_named_only():
    done = call("env", env=_ENVIRON)
    document = json.loads(call("env", "--json", env=_ENVIRON).stdout)
    assert "hunter2" not in done.stdout + json.dumps(document)
    hidden = [name for name, value in document["variables"].items() if value is None]
    assert {"ESTIMATOR_PIPELINE_TOKEN", "https_proxy", "SLURM_JOB_USER"} <= set(hidden)
    assert not {"MY_PASSWORD", "TF_VAR_database"} & document["variables"].keys() and document["cpus"]["usable"] >= 1


def test_a_broken_tf_config_is_reported_and_no_error():
    document = json.loads(call("env", "--json", env={"TF_CONFIG": "{"}).stdout)
    assert document["scheduler"].startswith("not read: ") and document["variables"]["TF_CONFIG"] == "{"
