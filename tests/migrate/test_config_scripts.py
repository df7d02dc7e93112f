"""Command lines and scripts of a shell as job files; TPUs, and a program's own folders."""

from __future__ import annotations

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.formats.hyperparameters import NO_TPU
from tests.support.config_cases import converted

SCRIPT = """#!/bin/bash
set -e
BUCKET=gs://bucket
JOB="census_$(date +%Y%m%d)"
gcloud ai-platform jobs submit training $JOB \\
    --job-dir {job_dir} \\
    --module-name=trainer.task --package-path trainer/ \\
    --runtime-version 1.15 --scale-tier STANDARD_1 \\
    -- \\
    --train-files ${{BUCKET}}/adult.csv \\
    --train-steps 1000 --learning-rate=0.01  # of the model
"""


@pytest.fixture
def convert_text(tmp_path):
    def convert(text, **arguments):
        path = tmp_path / "source"
        path.write_text(text, encoding="utf-8")
        return converted(path, **arguments)

    return convert


def states(conversion):
    return {f.item.name: f.state for f in conversion.findings}


def lines(conversion):
    return {f.item.name: f.item.line for f in conversion.findings}


def test_a_job_that_gcloud_submits(convert_text):
    conversion = convert_text(SCRIPT.format(job_dir="gs://bucket/out"))
    job = conversion.job
    assert conversion.format == "shell"
    assert job["run"]["model_dir"] == "gs://bucket/out"
    assert job["cluster"] == {"workers": 4, "ps": 3, "chief": True, "dialect": "master"}
    assert job["train"]["max_steps"] == 1000 and job["model"]["optimizer"]["learning_rate"] == 0.01
    assert lines(conversion)["--package-path"] == 7 and lines(conversion)["--train-files"] == 10
    assert states(conversion)["--train-files"] == "needs a decision"


def test_what_only_the_shell_knows_is_a_decision(convert_text):
    conversion = convert_text(SCRIPT.format(job_dir="$BUCKET/$JOB"))
    assert states(conversion)["--job-dir"] == "needs a decision"
    assert conversion.job["run"]["model_dir"] == "???"


def test_a_local_training_of_gcloud(convert_text):
    conversion = convert_text(
        "gcloud ml-engine local train --module-name trainer.task --package-path trainer --distributed "
        "--parameter-server-count 1 --worker-count 2 --job-dir out -- --batch_size 64 --verbose"
    )
    assert conversion.job["cluster"] == {"workers": 2, "ps": 1, "chief": True}
    assert conversion.job["input"]["global_batch_size"] == 64
    assert states(conversion)["--verbose"] == "needs a decision"


def test_python_under_srun_in_a_loop(convert_text):
    conversion = convert_text(
        "#SBATCH --nodes=4\nmodule load cuda\nfor lr in 0.1 0.01; do\n"
        "  srun -N 4 python -m trainer.task --lr $lr --model_dir=/m --use_tpu=False 2>&1 | tee log\ndone\n"
    )
    assert conversion.job["run"]["model_dir"] == "/m"
    found = states(conversion)
    names = ("#SBATCH", "srun", "--lr", "the program", "the rest of the line", "the other lines")
    assert {found[name] for name in names} == {"needs a decision"}
    assert found["--use_tpu"] == "no longer needed"


# A script -> the learning rate of its training command, or the line where the user must decide on it.
TAKEN = [
    "python t.py --learning_rate=0.1",
    "LR=0.2 python t.py --learning_rate 0.1",
    "#SBATCH --nodes=2\nset -euo pipefail\nsrun -n 2 python t.py --learning_rate=0.1 > log 2>&1",
    "mpirun -np 2 -x PATH python t.py --learning_rate=0.1",
    "python t.py \\\n  --learning_rate \\\n  '0.1' \\\n  --x='a b'",
    "python t.py --learning_rate=0.1 --name=$(date +%Y) # --learning_rate=0.5",
    "cat <<EOF > notes\nit's --learning_rate=0.5\nEOF\npython t.py --learning_rate=0.1 &",
    "for i in 1 2; do python t.py --learning_rate=0.1; done",
    "# sbatch \\\npython t.py --learning_rate=0.1",
]
USE = "python t.py --learning_rate=$LR"
DECIDED = [
    (f"LR=0.1\n{USE}", 2),
    (f"LR=0.1; {USE}", 1),
    ("python t.py --learning_rate='$LR'", 1),
    ("python t.py --learning_rate=${LR:-0.5}", 1),
    ("python t.py --learning_rate=$((LR*2))", 1),
    ("python t.py --learning_rate=`cat rate`", 1),
    ("python t.py --learning_rate=$(cat rate | head)", 1),
    ('python t.py --learning_rate=0.1 "$@"', 1),
    ("python t.py --learning_rate=0.1 --verbose $EXTRA", 1),
    ("python t.py --learning_rate=0.1 --learning_rate=$LR", 1),
    ("python t.py --learning_rate=0.1 --$NAME=0.5", 1),
    ("RATE=0.1\npython t.py \\\n --batch_size=8 \\\n --learning_rate $LR", 4),
]


@pytest.mark.parametrize("text", TAKEN)
def test_a_plain_command_is_taken(convert_text, text):
    conversion = convert_text(f"#!/bin/bash\n{text}\n")
    assert conversion.job["model"]["optimizer"]["learning_rate"] == 0.1


@pytest.mark.parametrize(("text", "line"), DECIDED)
def test_a_value_that_depends_on_the_shell_is_a_decision(convert_text, text, line):
    conversion = convert_text(f"#!/bin/bash\n{text}\n")
    assert conversion.job["model"]["optimizer"]["learning_rate"] == "???"
    rates = [f for f in conversion.findings if f.item.name == "--learning_rate"]
    assert ("needs a decision", line + 1) in [(f.state, f.item.line) for f in rates]
    assert "taken" not in [f.state for f in rates]


def test_every_line_of_a_script_is_listed(convert_text):
    conversion = convert_text(
        "#!/bin/bash\n#SBATCH -n 2\nexport TF_X=1\nif [ $A = 1 ]; then\n  ./prepare.sh 'x\ny'\nfi\n"
        "python t.py --x=1 > log | tee -a all\nLATER=$(date)\n"
    )
    found = {f.item.name: (f.item.line, f.item.value, f.state) for f in conversion.findings}
    decision = "needs a decision"
    assert found["#SBATCH"] == (2, "#SBATCH -n 2", decision)
    assert found["the program"] == (8, "python t.py", decision)
    assert found["the rest of the line"] == (8, ["python t.py --x=1 > log | tee -a all"], decision)
    others = ["export TF_X=1", "if [ $A = 1 ]; then", "./prepare.sh 'x", "y'", "fi", "LATER=$(date)"]
    assert found["the other lines"] == (3, others, decision)


@pytest.mark.parametrize(
    "text",
    [
        "kubectl apply -f tfjob.yaml\n",
        "python a.py --x=1\npython b.py --x=1\n",
        "python train.py --name='never ends\n",
        "import tensorflow as tf\nprint(tf.__version__)\n",
        "from sagemaker.tensorflow import TensorFlow\nTensorFlow(entry_point='train.py')\n",
        '{"cells": [], "nbformat": 4}',
        "eval 'python train.py --learning_rate=0.1'\n",
        "python train.py --learning_rate=0.1 --name=$(date (\n",
    ],
)
def test_scripts_and_programs_without_one_job_are_refused(convert_text, text):
    with pytest.raises(ConfigError) as caught:
        convert_text(text)
    assert caught.value.code in ("migrate/unknown-format", "file/bad-format")


@pytest.mark.parametrize("name", ["log_dir", "logdir", "train_dir", "checkpoint_dir"])
def test_a_folder_of_the_programs_own(convert_text, name):
    conversion = convert_text(f"--{name}=/logs\n")
    finding = next(f for f in conversion.findings if f.item.name == f"--{name}")
    assert (finding.state, finding.to) == ("needs a decision", ("run", "model_dir"))
    assert "/logs" in conversion.placeholders["run", "model_dir"]


def test_the_model_directory_goes_before_its_other_names(convert_text):
    conversion = convert_text("--output_dir=/exports\n--log_dir=/logs\n--model_dir=/m\n")
    assert conversion.job["run"]["model_dir"] == "/m"
    assert states(conversion) == {
        "--output_dir": "needs a decision", "--log_dir": "needs a decision", "--model_dir": "taken",
    }  # fmt: skip


POD = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: digits}
spec:
  tfReplicaSpecs:
    Worker:
      replicas: 1
      template:
        metadata: {annotations: {tf-version.cloud-tpus.google.com: "1.13"}}
        spec:
          containers:
          - name: tensorflow
            image: registry.example/digits:1
            resources: {limits: {cloud-tpus.google.com/v2: 8}}
"""


@pytest.mark.parametrize(
    "text",
    [
        POD,
        "--use_tpu=true\n",
        "trainingInput: {scaleTier: BASIC_TPU}\n",
        "trainingInput: {scaleTier: CUSTOM, masterType: n1-highcpu-16, workerType: cloud_tpu, workerCount: 1}\n",
    ],
)
def test_a_tpu_is_refused_by_name(convert_text, text):
    conversion = convert_text(text)
    assert NO_TPU in [f.why for f in conversion.findings]
    assert conversion.job["run"]["train_distribute"] == "???"
    # The worker of AI Platform is the TPU, and no task that trains.
    assert conversion.job.get("cluster", {}).get("workers") in (None, 1)
    assert "annotations" not in conversion.job.get("kubernetes", {})
