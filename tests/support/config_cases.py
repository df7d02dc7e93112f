"""The examples of other eras in legacy_configs, and how each becomes a job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from estimator_pipeline.migrate.configs import Conversion, convert_config

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "legacy_configs"
FOLDERS = ("cloud_ml_engine", "flags", "hparams", "run_config", "sagemaker", "tfjob")


class Example(NamedTuple):
    """A file, its format, and the arguments with which it is read."""

    path: str
    format: str
    arguments: dict[str, Any] = {}

    @property
    def golden(self) -> Path:
        """The job file that it gives."""
        return (CONFIGS / self.path).with_suffix(".job.yaml")


EXAMPLES = (
    Example("cloud_ml_engine/census.yaml", "cloud_ml_engine"),
    Example("cloud_ml_engine/hptuning.yaml", "cloud_ml_engine", {}),
    Example("cloud_ml_engine/ai_platform_gpus.json", "cloud_ml_engine"),
    Example("flags/census.flags", "flags"),
    Example("flags/between_graph.flags", "flags"),
    Example("flags/flag_values.json", "flags_json"),
    Example("hparams/dnn.txt", "hparams"),
    Example("hparams/transformer.json", "hparams_json", {"wanted": "hparams_json"}),
    Example("run_config/estimator_1_15.log", "run_config"),
    Example("run_config/contrib_learn_1_4.json", "run_config"),
    Example("run_config/mirrored_2_0.json", "run_config"),
    Example("sagemaker/create_training_job.json", "sagemaker", {"scheduler": "slurm"}),
    Example("sagemaker/estimator_kwargs.json", "sagemaker_estimator"),
    Example("tfjob/mnist_v1.yaml", "tfjob"),
    Example("tfjob/ps_v1beta2.yaml", "tfjob"),
    Example("tfjob/old_v1alpha2.json", "tfjob"),
)
# What a person would give, whatever the file says.
GIVEN = {
    "model.function": "trainer.model:model_fn",
    "model.optimizer.name": "adam",
    "model.optimizer.learning_rate": "0.01",
    "input.source": "tfds",
    "input.name": "digits",
    "input.global_batch_size": "1200",
    "run.model_dir": "/models/x",
    "train.epochs": "3",
    "train.max_steps": "10",
    "run.train_distribute": "multi_worker_mirrored",
}


def converted(path: Any, **arguments: Any) -> Conversion:
    """The conversion of a file, named as a person in the repository would."""
    return convert_config(path, **arguments)


def found(made: Conversion, name: str) -> list[tuple[str, str | None, Any]]:
    """(state, field of the job, its value) of all that was said of a field."""
    return [
        (f["state"], f["to"], f.get("job_value"))
        for f in made.document()["fields"]
        if name in (f["field"], f["name"])
    ]  # fmt: skip
