"""Programs of SageMaker's SDK and command lines of a shell as job files; TPUs, and a program's own folders."""

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
PROGRAM = """
import sagemaker
from sagemaker.tensorflow import TensorFlow as TF
hyperparameters = {'batch-size': 64, 'steps': steps()}
TF(entry_point='train.py', role=sagemaker.get_execution_role(), train_instance_count=2,
   train_instance_type='ml.p3.2xlarge', framework_version='1.14', hyperparameters=hyperparameters,
   distributions={'parameter_server': {'enabled': True}}).fit('s3://bucket/data')
"""


@pytest.fixture
def made(tmp_path):
    def convert(text, **arguments):
        path = tmp_path / "source"
        path.write_text(text, encoding="utf-8")
        return converted(path, **arguments)

    return convert


def states(conversion):
    return {f.item.name: f.state for f in conversion.findings}


def lines(conversion):
    return {f.item.name: f.item.line for f in conversion.findings}


def test_a_job_that_gcloud_submits(made):
    conversion = made(SCRIPT.format(job_dir="$BUCKET/out"))
    job = conversion.job
    assert conversion.format == "shell"
    assert job["run"]["model_dir"] == "gs://bucket/out"
    assert job["cluster"] == {"workers": 4, "ps": 3, "chief": True, "dialect": "master"}
    assert job["train"]["max_steps"] == 1000 and job["model"]["optimizer"]["learning_rate"] == 0.01
    assert lines(conversion)["--package-path"] == 7 and lines(conversion)["--train-files"] == 10
    assert states(conversion)["--train-files"] == "needs a decision"
    assert states(conversion)["BUCKET"] == "no longer needed"


def test_what_only_the_shell_knows_is_a_decision(made):
    conversion = made(SCRIPT.format(job_dir="$BUCKET/$JOB"))
    assert states(conversion)["--job-dir"] == "needs a decision"
    assert conversion.job["run"]["model_dir"] == "???"


def test_a_local_training_of_gcloud(made):
    conversion = made(
        "gcloud ml-engine local train --module-name trainer.task --package-path trainer --distributed "
        "--parameter-server-count 1 --worker-count 2 --job-dir out -- --batch_size 64 --verbose"
    )
    assert conversion.job["cluster"] == {"workers": 2, "ps": 1, "chief": True}
    assert conversion.job["input"]["global_batch_size"] == 64
    assert states(conversion)["--verbose"] == "needs a decision"


def test_python_under_srun_in_a_loop(made):
    conversion = made(
        "#SBATCH --nodes=4\nmodule load cuda\nfor lr in 0.1 0.01; do\n"
        "  srun -N 4 python -m trainer.task --lr $lr --model_dir=/m --use_tpu=False 2>&1 | tee log\ndone\n"
    )
    assert conversion.job["run"]["model_dir"] == "/m"
    found = states(conversion)
    assert {found[name] for name in ("#SBATCH", "for", "srun", "--lr", "the program", "tee")} == {"needs a decision"}
    assert found["--use_tpu"] == "no longer needed"


@pytest.mark.parametrize(
    "text",
    [
        "kubectl apply -f tfjob.yaml\n",
        "python a.py --x=1\npython b.py --x=1\n",
        "python train.py --name='never ends\n",
        "import tensorflow as tf\nprint(tf.__version__)\n",
        '{"cells": [], "nbformat": 4}',
    ],
)
def test_scripts_and_programs_without_one_job_are_refused(made, text):
    with pytest.raises(ConfigError) as caught:
        made(text)
    assert caught.value.code in ("migrate/unknown-format", "file/bad-format")


def test_a_program_of_sagemaker(made):
    conversion = made(PROGRAM)
    job = conversion.job
    assert conversion.format == "sagemaker_program"
    assert job["cluster"] == {"workers": 1, "ps": 2, "chief": True, "dialect": "master"}
    assert job["input"]["global_batch_size"] == 64
    found = states(conversion)
    assert {found[name] for name in ("role", "hyperparameters.steps", "fit", "entry_point")} == {"needs a decision"}
    assert lines(conversion)["hyperparameters.steps"] == 4 and lines(conversion)["train_instance_count"] == 5


@pytest.mark.parametrize("name", ["log_dir", "logdir", "train_dir", "checkpoint_dir"])
def test_a_folder_of_the_programs_own(made, name):
    conversion = made(f"--{name}=/logs\n")
    finding = next(f for f in conversion.findings if f.item.name == f"--{name}")
    assert (finding.state, finding.to) == ("needs a decision", ("run", "model_dir"))
    assert "/logs" in conversion.placeholders["run", "model_dir"]


def test_the_model_directory_goes_before_its_other_names(made):
    conversion = made("--output_dir=/exports\n--log_dir=/logs\n--model_dir=/m\n")
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
def test_a_tpu_is_refused_by_name(made, text):
    conversion = made(text)
    assert NO_TPU in [f.why for f in conversion.findings]
    assert conversion.job["run"]["train_distribute"] == "???"
    # The worker of AI Platform is the TPU, and no task that trains.
    assert conversion.job.get("cluster", {}).get("workers") in (None, 1)
    assert "annotations" not in conversion.job.get("kubernetes", {})
