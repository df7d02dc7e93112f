"""The first week with a table, by the commands of the README: train, kill, resume, predict, new data each day."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.support.processes import environment, tensorflow_with_three_cpus
from tests.support.tables import write_table

tf = tensorflow_with_three_cpus()

DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday"]
# With these neither the features nor the order of the records depend on how the records are divided into files.
SETTINGS = [
    "model.features={tenure: {kind: numeric, normalize: log, missing: 30}, "
    "monthly charges: {kind: numeric, normalize: log, missing: 55}, "
    "plan: {kind: categorical, vocabulary: [basic, plus, 'pro, yearly']}}",
    *("input.eval=sunday.csv", "input.eval_fraction=null", "input.shuffle=false", "input.global_batch_size=64"),
    *("train.max_steps=null", "train.epochs=1", "run.save_checkpoints_steps=100", "run.ledger=true"),
]


class Shell:
    """Runs `estimator-pipeline` in a folder."""

    def __init__(self, folder):
        self.folder, self.environ = folder, environment({"HOME": str(folder)})

    def start(self, *arguments):
        line = [sys.executable, "-m", "estimator_pipeline", *map(str, arguments)]
        return subprocess.Popen(
            line, cwd=self.folder, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *arguments):
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, f"{arguments}\n{output[-3000:]}\n{errors[-3000:]}"
        return output

    def variables(self, run):
        reader = tf.train.load_checkpoint(str(self.folder / "runs" / run))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    def records(self, name):
        with open(self.folder / name, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def with_settings(*changes):
    return [word for change in (*SETTINGS, *changes) for word in ("--set", change)]


@pytest.mark.nightly  # Nine launches of three tasks.
@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_a_week(tmp_path):
    shell, settings = Shell(tmp_path), with_settings()
    for seed, (day, records) in enumerate([("saturday", 25600), ("sunday", 300), *((day, 128) for day in DAYS)]):
        write_table("churn", tmp_path / f"{day}.csv", records=records, seed=seed)
    assert "saturday.yaml was written" in shell.run("new", "saturday.csv", "--label", "churned")

    killed = shell.start("launch", "saturday.yaml", *settings)
    assert any("evaluator:0 evaluated" in line for line in killed.stdout)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=120)
    output = shell.run("launch", "saturday.yaml", *settings)
    assert "restoring the checkpoint of step " in output and "result at step 400:" in output, output

    shell.run("predict", "saturday.yaml", "sunday.csv", "-o", "predictions.csv", *settings)
    customers = [row["customer id"] for row in shell.records("sunday.csv")]
    assert [row["customer id"] for row in shell.records("predictions.csv")] == customers
    evaluated = json.loads(shell.run("evaluate", "saturday.yaml", "--checkpoint", "300", "--json", *settings))
    assert evaluated["metrics"]["global_step"] == 300

    for number, day in enumerate(DAYS, 1):
        command = ["launch", "saturday.yaml", "--continue-with", f"{day}.csv", *settings]
        assert f"result at step {400 + 2 * number}:" in shell.run(*command)
        assert shell.run(*command).startswith("nothing new")
    inspected = shell.run("inspect", "runs/saturday")
    assert (
        f"continuation 5: steps 409 to 410, 128 records of {DAYS[-1]}.csv" in inspected and "all is well" in inspected
    )

    files = ", ".join(f"{day}.csv" for day in ["saturday", *DAYS])
    shell.run("launch", "saturday.yaml", *with_settings(f"input.train=[{files}]", "run.model_dir=runs/whole"))
    whole, each_day = shell.variables("whole"), shell.variables("saturday")
    assert whole.keys() == each_day.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(each_day[name], value, err_msg=name)

    compared = json.loads(shell.run("compare", "runs/saturday", "runs/whole", "--json"))["runs"]
    assert {run["global_step"] for run in compared} == {410} and compared[0]["metrics"] == compared[1]["metrics"]
    shell.run("report", "runs/saturday", "-o", "report.html")
    assert "friday.csv" in (tmp_path / "report.html").read_text(encoding="utf-8")
