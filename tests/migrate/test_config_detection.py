"""Which format a file has is seen from its content; what may be two is refused by both names."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline.errors import ConfigError
from tests.support.config_cases import CONFIGS, EXAMPLES, converted

KNOWN = "run_config, hparams_json, hparams, flags_json, flags, cloud_ml_engine, sagemaker, sagemaker_estimator, "
KNOWN += "shell, tfjob"


def refused(path, **arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        converted(path, **arguments)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(str(path), path.name)


@pytest.fixture
def file(tmp_path):
    def write(text, name="config"):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else json.dumps(text, indent=1), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.path)
def test_by_content_and_not_by_name(example, tmp_path):
    path = tmp_path / "config"
    path.write_bytes((CONFIGS / example.path).read_bytes())
    for other in (CONFIGS / "flags").glob("common*"):
        (tmp_path / other.name).write_bytes(other.read_bytes())
    assert converted(path, **example.arguments).format == example.format


def test_hyperparameters_and_flags_look_alike(file):
    path = file({"learning_rate": 0.1, "hidden": [10, 20]})
    said = refused(path)
    assert "[migrate/unknown-format]" in said and "the fields learning_rate, hidden" in said
    assert "--format hparams_json or --format flags_json" in said
    taken = converted(path, wanted="hparams_json").job["model"]["params"]
    assert taken == {"hidden": [10, 20]}
    made = converted(path, wanted="flags_json")
    assert "params" not in made.job["model"] and made.counts()["needs a decision"] == 1
    # A flag of absl decides it, and so does a dash.
    assert converted(file({"learning_rate": 0.1, "showprefixforinfo": True})).format == "flags_json"
    assert converted(file({"learning-rate": 0.1})).format == "flags_json"


def test_two_services_at_once(file):
    both = {"trainingInput": {}, "kind": "TFJob", "apiVersion": "kubeflow.org/v1"}
    said = refused(file(both))
    assert "may be a job of Cloud ML Engine or AI Platform (cloud_ml_engine) or a TFJob of Kubeflow (tfjob)." in said
    documents = "apiVersion: kubeflow.org/v1\nkind: TFJob\nspec: {}\n---\ntrainingInput: {}\n"
    assert "cloud_ml_engine" in refused(file(documents)) and "tfjob" in refused(file(documents))
    twice = "apiVersion: kubeflow.org/v1\nkind: TFJob\nspec: {}\n"
    assert "has 2 documents of the format tfjob" in refused(file(f"{twice}---\n{twice}"))


def test_other_objects_beside_a_tfjob_are_left_alone(file):
    text = (CONFIGS / "tfjob" / "ps_v1beta2.yaml").read_text()
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: models}\n"
    made = converted(file(f"---\n{claim}---\n{text}"))
    assert made.format == "tfjob" and made.job["cluster"]["workers"] == 4


def test_no_format(file):
    said = refused(file({"a": {"b": 1}}))
    assert "[migrate/unknown-format]" in said and f"found: the fields a; known: {KNOWN}" in said
    assert "no mapping of names and values" in refused(file("[1, 2]"))
    assert "no mapping of names and values" in refused(file("just words\n"))
    said = refused(CONFIGS / "single.yaml")
    assert "is already a job file" in said and "estimator-pipeline launch" in said


def test_a_format_that_is_said(file):
    said = refused(file({"a": 1}), wanted="tfjbo")
    assert said.startswith("--format 'tfjbo': unknown format.") and "did you mean 'tfjob'?" in said
    assert "is not HParams as JSON" in refused(file({"a": {"b": 1}}), wanted="hparams_json")
    assert "the field 'a' is a mapping" in refused(file({"a": {"b": 1}}), wanted="hparams_json")
    assert "line 1" in refused(file("a: 1\n"), wanted="flags")
    assert "these are not hyperparameters" in refused(file("a: 1\n"), wanted="hparams")
    assert "is not a job of Cloud ML Engine" in refused(file({"a": 1}), wanted="cloud_ml_engine")
    assert "is not a training job of SageMaker" in refused(file({"a": 1}), wanted="sagemaker")
    # One that fits another format better is still read as the one that was said.
    assert converted(file({"model_dir": "x", "tf_random_seed": 1}), wanted="flags_json").format == "flags_json"


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("learning_rate=0.1", "hparams"),
        ("a=1,b=[1,2],c=x y", "hparams"),
        ("--a=1", "flags"),
        ("-a\n", "flags"),
        ("# only a comment first\n// and another\n--a", "flags"),
        ("trainingInput: {}", "cloud_ml_engine"),
        ('{"trainingInput": {}}', "cloud_ml_engine"),
        ("{trainingInput: {}}", "cloud_ml_engine"),
        ("{'_model_dir': '/x', '_tf_random_seed': 3}", "run_config"),
        ("{'model_dir': '/x', 'save_checkpoints_steps': 3}", "run_config"),
        ("model_dir: /x\nsave_checkpoints_steps: 3\n", "run_config"),
        ("I0612 12:00:01 estimator.py:201] Using config: {'_model_dir': '/x'}", "run_config"),
    ],
)
def test_small_ones(file, text, format):
    assert converted(file(text)).format == format
