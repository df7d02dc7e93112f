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
    conversion = convert_text(SCRIPT.format(job_dir="$BUCKET/out"))
    job = conversion.job
    assert conversion.format == "shell"
    assert job["run"]["model_dir"] == "gs://bucket/out"
    assert job["cluster"] == {"workers": 4, "ps": 3, "chief": True, "dialect": "master"}
    assert job["train"]["max_steps"] == 1000 and job["model"]["optimizer"]["learning_rate"] == 0.01
    assert lines(conversion)["--package-path"] == 7 and lines(conversion)["--train-files"] == 10
    assert states(conversion)["--train-files"] == "needs a decision"
    assert states(conversion)["BUCKET"] == "no longer needed"


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
    assert {found[name] for name in ("#SBATCH", "for", "srun", "--lr", "the program")} == {"needs a decision"}
    assert {found[name] for name in ("--use_tpu", "tee", "2>&1", "module")} == {"no longer needed"}


USE = "python t.py --learning_rate=$LR"
# A script -> the learning rate of its training command, or the line where the user must decide on it.
TAKEN = [
    (f"LR=0.1\n{USE}", 0.1),
    (f"LR=0.1\nLR=0.2 {USE}", 0.1),
    (f"LR=0.1\nenv LR=0.2 {USE}", 0.1),
    (f"LR=0.1\nmkdir -p out\nLR=0.2\n{USE}", 0.2),
    (f"A=0.1; LR=$A; {USE}", 0.1),
    (f"export A=1 LR='0.1' B=2\n{USE}", 0.1),
    (f"#SBATCH --nodes=2\nset -euo pipefail\nLR=0.1 # it's a rate\nsrun -n 2 {USE} > log 2>&1", 0.1),
    (f"LR=0.1\nmpirun -np 2 -x PATH {USE}", 0.1),
    ("LR=0.1\npython t.py \\\n  --learning_rate \\\n  \"${LR}\" \\\n  --x='a b'", 0.1),
    ("ARGS='--learning_rate=0.1 --batch_size=8'\npython t.py --learning_rate=0.5 $ARGS", 0.1),
    ("python t.py --learning_rate=$LR --learning_rate=0.1", 0.1),
    ('DIR="$(cd "$(dirname "$0")" && pwd)"\nLR=0.1\npython "$DIR/t.py" --learning_rate=$LR', 0.1),
    (f"source env.sh\nLR=0.1\n{USE}", 0.1),
    (f"LR=0.1\nif [ ! -d data ]; then mkdir data; fi\nfor i in 1 2; do echo $i; done\n{USE}", 0.1),
    (f"LR=0.1\ncat <<EOF > notes\nLR=0.5\nEOF\n{USE}", 0.1),
    (f"LR=0.1\ncat <<-EOF\n\tLR=0.5\n\tEOF\n{USE}", 0.1),
    (f"LR=0.1\ncat <<'E F' | tee x\nLR=0.5\nE F\n{USE}", 0.1),
    (f"LR=0.1\ncat <<A <<\\B\nA\nLR=0.5\nB\n{USE}", 0.1),
    (f"LR=0.1\ncat <<EOF; LR=0.2\nLR=0.5\nEOF\n{USE}", 0.2),
    (f"LR=0.1\n# cat <<EOF\necho '<<EOF'\nLR=0.2\ncat <<EOF \\\n > x\nit's\nEOF\n{USE}", 0.2),
    (f"LR=0.1\npython - <<EOF\nLR=0.5\nprint('python t.py')\nEOF\n{USE}", 0.1),
    (f"LR=0.1\n# LR=0.5\necho 'LR=0.5; x'\n{USE} &", 0.1),
]
DECIDED = [
    ("LR=0.1\npython t.py --learning_rate='$LR'", 2),
    ("LR=0.1\npython t.py --learning_rate=\\$LR", 2),
    (f"LR=0.1\nfor LR in 0.2 0.3; do\n  {USE}\ndone", 3),
    (f"LR=0.1\nfor LR in 0.2 0.3; do {USE}; done", 2),
    (f"LR=0.1\nfor i in 1 2; do\n  {USE}\n  LR=0.5\ndone", 3),
    (f"LR=0.1\nwhile true\ndo\nLR=0.5\nbreak\ndone\n{USE}", 7),
    (f'LR=0.1\nif [ -n "$BIG" ]; then LR=0.5; fi\n{USE}', 3),
    (f'LR=0.1\nif [ -n "$BIG" ]\nthen\n  export LR=0.5\nfi\n{USE}', 6),
    (f"case $1 in\n  big) LR=0.5;;\n  *) LR=0.1;;\nesac\n{USE}", 5),
    (f"LR=0.1\ncase $1 in (big) LR=0.5;; esac\n{USE}", 3),
    (f"LR=0.1\nf() {{ LR=0.5; }}\nLR=0.2\nf\n{USE}", 5),
    (f"function f {{\n  LR=0.5\n}}\nLR=0.1\nf\n{USE}", 6),
    ("train() {\n  python t.py --learning_rate=$1\n}\ntrain 0.1", 2),
    (f'LR=0.1\n[ -n "$BIG" ] && LR=0.5\n{USE}', 3),
    (f'LR=0.1\ntest -z "$BIG" || LR=0.5\n{USE}', 3),
    (f'LR=0.1\ntest -z "$BIG" ||\n  LR=0.5\n{USE}', 4),
    (f"LR=0.1\ntrue |& LR=0.5\n{USE}", 3),
    (f"LR=0.1\nif {USE}; then LR=0.5; fi", 2),
    (f"cat <<E\n E\nLR=0.5\nE\n{USE}", 5),
    (f"LR=0.1\ncat <<E\n${{LR:=0.5}}\nE\n{USE}", 5),
    (f"LR=0.1\nsource /dev/stdin <<E\nLR=0.5\nE\n{USE}", 5),
    (f"LR=0.1\nread LR <<< 0.5\n{USE}", 3),
    (f"LR=0.1 && {USE}", 1),
    (f"LR=0.1\n(LR=0.5)\n{USE}", 3),
    (f"LR=0.1\n{{ LR=0.5; }}\n{USE}", 3),
    (f"LR=$(cat rate)\n{USE}", 2),
    (f"LR=`cat rate`\n{USE}", 2),
    (f"LR=0.1\n. ./rates.sh\n{USE}", 3),
    (f"LR=0.1\nsource rates.sh\n{USE}", 3),
    (f"LR=0.1\neval LR=0.5\n{USE}", 3),
    (f"LR=0.1\nread LR\n{USE}", 3),
    (f"LR=0.1\necho 0.5 | read LR\n{USE}", 3),
    (f"LR=0.1\nwhile getopts 'l:' o; do LR=$OPTARG; done\n{USE}", 3),
    (f"LR=0.1\nprintf -v LR 0.5\n{USE}", 3),
    (f"LR=0.1\nunset LR\n{USE}", 3),
    (f"LR=0.1\ntrap 'LR=0.5' DEBUG\nLR=0.2\n{USE}", 4),
    (f"declare -n R=LR\nLR=0.1\nR=0.5\n{USE}", 4),
    (f"set -- 0.1\nLR=$1\n{USE}", 3),
    ("python t.py --learning_rate=$1", 1),
    (f"LR=${{LR:-0.1}}\n{USE}", 2),
    ("LR=0.1\npython t.py --learning_rate=${LR:-0.5}", 2),
    (f"LR=0.1\necho ${{LR:=0.5}}\n{USE}", 3),
    (f"LR=0.1\necho $((LR=2))\n{USE}", 3),
    (f"LR=0.1\n((LR++))\n{USE}", 3),
    (f"LR=0.1\nlet LR=2\n{USE}", 3),
    ("LR=1\npython t.py --learning_rate=$((LR*2))", 2),
    ("LR=(0.1 0.5)\npython t.py --learning_rate=${LR[0]}", 2),
    (f"LR=(0.1 0.5)\n{USE}", 2),
    (f"LR=0.1\nLR+=5\n{USE}", 3),
    (f"{USE}\nLR=0.1", 1),
    (f"A=0.5\nA=0.1 LR=$A\n{USE}", 3),
    (f"IFS=.\nLR=0.1\n{USE}", 3),
    ('python t.py --learning_rate=0.1 "$@"', 1),
    ("python t.py --learning_rate=0.1 $EXTRA", 1),
    ("python t.py --learning_rate=0.1 --verbose $EXTRA", 1),
    ("python t.py --learning_rate=0.1 --learning_rate=$LR", 1),
    ("python t.py --learning_rate=0.1 --$NAME=0.5", 1),
    ("RATE=0.1\npython t.py \\\n --batch_size=8 \\\n --learning_rate $LR", 4),
]


@pytest.mark.parametrize(("text", "value"), TAKEN)
def test_a_plain_script_is_taken(convert_text, text, value):
    conversion = convert_text(f"#!/bin/bash\n{text}\n")
    assert conversion.job["model"]["optimizer"]["learning_rate"] == value


@pytest.mark.parametrize(("text", "line"), DECIDED)
def test_a_value_that_depends_on_the_shell_is_a_decision(convert_text, text, line):
    conversion = convert_text(f"#!/bin/bash\n{text}\n")
    assert conversion.job["model"]["optimizer"]["learning_rate"] == "???"
    rates = [f for f in conversion.findings if f.item.name == "--learning_rate"]
    assert ("needs a decision", line + 1) in [(f.state, f.item.line) for f in rates]
    assert "taken" not in [f.state for f in rates]


def test_every_line_of_a_script_is_listed(convert_text):
    conversion = convert_text(
        "#!/bin/bash\nexport TF_X=1\nA=1\nif [ $A = 1 ]; then\n  ./prepare.sh\nelse A=2; fi\n"
        "cd work\nfrobnicate all\npython t.py --x=1 > log | tee -a all\nLATER=$(date)\n"
    )
    found = [(f.item.line, f.item.value, f.state) for f in conversion.findings]
    for line, value in (
        (2, "TF_X=1"), (4, "if [ $A = 1 ]"), (5, "./prepare.sh"), (6, "else A=2"), (7, "cd work"),
        (8, "frobnicate all"), (9, "python t.py"), (10, "LATER=$(date)"),
    ):  # fmt: skip
        assert (line, value, "needs a decision") in found, found
    for line, value in ((3, "A=1"), (9, "> log"), (9, "tee -a all")):
        assert (line, value, "no longer needed") in found, found


def test_a_here_document_is_text_and_a_decision(convert_text):
    conversion = convert_text(
        "#!/bin/bash\n#SBATCH -n 2\ntee job.sh <<EOF\n#SBATCH -n 4\npython a.py\nEOF\npython - <<-'E'\nx = 1\n\tE\n"
        "python t.py --x=1 <<END\nyes\nEND\n"
    )
    decisions = [(f.item.line, f.item.value) for f in conversion.findings if "here-document" in f.why]
    assert decisions == [
        (3, "tee job.sh <<EOF\n#SBATCH -n 4\npython a.py\nEOF\n"), (7, "python - <<-'E'\nx = 1\n\tE\n"),
        (10, "<<END\nyes\nEND\n"),
    ]  # fmt: skip
    assert [f.item.line for f in conversion.findings if f.item.name == "#SBATCH"] == [2]


@pytest.mark.parametrize(
    "text",
    [
        "cat <<EOF\npython train.py --learning_rate=0.1\n",
        "python train.py --learning_rate=0.1\nA=$(cat <<EOF\nx) y\nEOF\n)\n",
        "kubectl apply -f tfjob.yaml\n",
        "python a.py --x=1\npython b.py --x=1\n",
        "python train.py --name='never ends\n",
        "import tensorflow as tf\nprint(tf.__version__)\n",
        "from sagemaker.tensorflow import TensorFlow\nTensorFlow(entry_point='train.py')\n",
        '{"cells": [], "nbformat": 4}',
        "eval 'python train.py --learning_rate=0.1'\n",
        "#!/bin/bash\ncat <<EOF > run.sh\npython train.py --learning_rate=0.1\nEOF\n",
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
