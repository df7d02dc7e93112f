"""Files that nobody would write, and those that somebody did: one clear error with its line, or a whole job file."""

from __future__ import annotations

import json
import random

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.support.config_cases import CONFIGS, EXAMPLES, converted


def refused(tmp_path, content, name="config", **arguments) -> str:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        converted(path, **arguments)
    return str(caught.value).replace(str(tmp_path) + "/", "")


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(8)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{', '.join([f'*{chr(97 + i)}'] * 9)}]}}\n" for i in range(8)
)
TYPES = """apiVersion: kubeflow.org/v1
kind: TFJob
spec:
  backoffLimit: true
  tfReplicaSpecs:
    Worker: {replicas: -1, template: {spec: {containers: [{args: x, env: [a]}], nodeSelector: {a: 1}}}}
    PS: {template: {}}
"""


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        ("", ["config is empty.", "no text"]),
        (" \n\t\n", ["config is empty."]),
        (b"\x80\x04\x95\x1c\x00", ["is not UTF-8 text", "at byte 0", "pickle"]),
        ("a: 1\n".encode("utf-16"), ["is not UTF-8 text"]),
        (b"a: 1\nb: \x00\n", ["is not text: line 2 contains a null byte"]),
        ('{"model_dir": "x",\n "model_dir": "y"}', ["line 2: the key 'model_dir' appears twice", "line 1"]),
        ("trainingInput:\n  region: a\n  region: b\n", ["line 3", "the key 'region' appears twice"]),
        ('{"a": 1,\n "b": }', ["line 2, column 7: this is not JSON: expecting value"]),
        ('{"a": "\\ud800"}', ["an incomplete surrogate pair"]),
        ('{"a": ' + "9" * 5000 + "}", ["a number has too many digits"]),
        ('{"a": ' * 200 + "1" + "}" * 200, ["line 1: too long, too many values, or values nested too deeply"]),
        ("trainingInput: " + "[" * 5000, ["nested too deep"]),
        ("trainingInput:\n" + "".join(" " * i + "a:\n" for i in range(1, 200)), ["nested too deep"]),
        ("# " + "x" * 2**21, ["too long", "2097152 characters"]),
        ("trainingInput: {a: " + "9" * 5000 + "}", ["this is not YAML"]),
        ("trainingInput:\n\t- x\n", ["line 2", "this is not YAML"]),
        ("trainingInput: !!python/object:os.system {}\n", ["trainingInput", "the tag tag:yaml.org,2002:python/object"]),
        ("trainingInput: {}\n1: 2\n", ["line 2: the key 1 is not text"]),
        ("trainingInput: {region: !secret x}\n", ["trainingInput.region", "the tag !secret"]),
        (LAUGHS, ["line 1: too long, too many values", "100000 values"]),
        (MERGES, ["line 1: too long, too many values", "100000 values"]),
        ("trainingInput: &a {region: *a}\n", ["line 1: a value contains itself"]),
        ("trainingInput: {region: *nothing}\n", ["line 1", "found undefined alias"]),
        ("trainingInput: 3\n", ["is not a job of AI Platform", "trainingInput: 3"]),
        ("apiVersion: kubeflow.org/v1\nkind: TFJob\nspec: {tfReplicaSpecs: {}}\n", ["line 3", "tfReplicaSpecs"]),
        ("kind: TFJob\napiVersion: kubeflow.org/v1alpha1\n", ["line 2", "v1alpha1", "v1alpha2", "v1beta1"]),
        (
            TYPES,
            [
                "line 4: spec.backoffLimit: expected a number from 0 to 999999999 (found: True)",
                "line 6: spec.tfReplicaSpecs.Worker.replicas: expected a number",
                "containers[0].args: expected a list (found: 'x')",
                "env[0]: expected a mapping",
                "nodeSelector.a: expected text",
                "line 7: spec.tfReplicaSpecs.PS.template.spec: expected a value, which is missing",
            ],
        ),
        ("a=1,a=2", ["line 1: the hyperparameter 'a' has two values", "1 and 2"]),
        ("a[1]=3", ["line 1: a[1] is one item of a list", "a=[...]"]),
        ("--a=1\nb: 2\n", ["line 2: this is neither a flag nor the value of a flag"]),
        (
            "{'_model_dir': '/x', '_session_config': gpu_options {",
            ["line 1: the value of '_session_config' does not end"],
        ),
        ("{'_model_dir': '/x',\n '_is_chief' 3}", ["line 2", "this is not a printed RunConfig"]),
    ],
    ids=range(32),
)
def test_refused(tmp_path, content, fragments):
    said = refused(tmp_path, content)
    at = 0
    for fragment in fragments:
        assert fragment in said[at:], said
        at = said.index(fragment, at)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        converted(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        converted(tmp_path)


def test_a_file_that_is_too_large(tmp_path):
    assert "more than 16 MiB" in refused(tmp_path, b" " * (16 * 2**20 + 1))


def test_flag_files_that_contain_each_other(tmp_path):
    (tmp_path / "b").write_text("--x=1\n--flagfile=c\n")
    (tmp_path / "c").write_text("\n--flagfile a\n")
    said = refused(tmp_path, "--flagfile=b", name="a")
    assert said.startswith("c, line 2: the flag file 'a' contains itself.") and "a -> b -> c -> a" in said
    said = refused(tmp_path, "--y\n--flagfile=a\n", name="a")
    assert said.startswith("a, line 2") and "a -> a" in said
    assert "line 1: the flag file 'none' does not exist" in refused(tmp_path, "--flagfile=none", name="a")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "binary is not UTF-8" in refused(tmp_path, "--flagfile=binary", name="a")
    # The same file twice, one after the other, is no circle.
    (tmp_path / "d").write_text("--model_dir=/x\n")
    (tmp_path / "a").write_text("--flagfile=d\n--flagfile=d\n")
    assert converted(tmp_path / "a").job["run"]["model_dir"] == "/x"


def test_several_run_configs_in_one_log(tmp_path):
    line = "INFO:tensorflow:Using config: {'_model_dir': '/x', '_is_chief': True, '_c': <C object at 0x7f%d>}\n"
    path = tmp_path / "log"
    path.write_text(line % 1 + "INFO:tensorflow:loss = 0.1\n" + line % 2)
    assert converted(path).job["run"]["model_dir"] == "/x"
    said = refused(tmp_path, line % 1 + (line % 1).replace("/x", "/y"))
    assert "has several RunConfigs: line 1 and line 2 differ in _model_dir" in said and "'/x' and '/y'" in said


WHOLE = (
    "model.name=dnn",
    "input={source: tfds, name: digits, global_batch_size: 1}",
    "run.model_dir=/x",
    "train.max_steps=1",
)
UNICODE = [
    "größe",
    "模型",
    "🚀",
    "a\u2028b",
    "a\x85b",
    "\ufeffx",
    "a\x7f",
    '"quoted"',
    "a: b # c",
    "???",
    "- x",
    "~",
    "1e3",
]


@pytest.mark.parametrize("text", UNICODE, ids=range(len(UNICODE)))
def test_any_text_comes_through(tmp_path, text):
    """As a value, as a name, and in the comments, of a file that is loaded again as it was written."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"learning_rate": 0.1, "optimizer": "sgd", "x": text, text: [text, 1]}, ensure_ascii=False)
    )
    settings = list(WHOLE)
    if text == "???":
        made = converted(path, wanted="hparams_json", settings=settings)
        (tmp_path / "job.yaml").write_text(made.text)
        with pytest.raises(ConfigError, match=r"model\.params\.x: the value is missing"):
            load_job(tmp_path / "job.yaml")
        return
    made = converted(path, wanted="hparams_json", settings=settings)
    (tmp_path / "job.yaml").write_text(made.text)
    params = load_job(tmp_path / "job.yaml").model.params
    assert params["x"] == text and [text, 1] in params.values()


def test_numbers_come_through(tmp_path):
    path = tmp_path / "config.json"
    given = {"a": 1e-7, "b": 10**40, "c": -0.0, "d": 1e300, "e": 123456789.123, "f": True, "g": None, "h": 1e22}
    path.write_text(json.dumps(given))
    settings = list(WHOLE)
    settings += ["model.optimizer={name: sgd, learning_rate: 0.1}"]
    made = converted(path, wanted="hparams_json", settings=settings)
    (tmp_path / "job.yaml").write_text(made.text)
    assert load_job(tmp_path / "job.yaml").model.params == given
    # A value that a field does not take is no crash and no job that fails later: it is a decision.
    path.write_text('{"learning_rate": NaN, "batch_size": -3, "train_steps": 1e400}')
    made = converted(path, wanted="hparams_json")
    assert made.counts() == {"taken": 0, "needs a decision": 3, "no longer needed": 0}
    assert set(made.placeholders) >= {("model", "optimizer", "learning_rate"), ("input", "global_batch_size")}


def test_anchors_and_merges(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "base: &base {region: us-central1, runtimeVersion: '1.15'}\n"
        "trainingInput:\n  <<: *base\n  scaleTier: BASIC\n  args: &args [--batch_size, 3]\n"
    )
    made = converted(path)
    assert made.job["input"]["global_batch_size"] == 3
    assert [f.item.name for f in made.findings if f.state == "needs a decision"][:1] == ["base"]
    assert "trainingInput.region" in [f.item.name for f in made.findings]


def _mutants(text: str, rng: random.Random):
    """The text cut, with a piece doubled, with bytes changed, and with values of other types."""
    values = [
        "null",
        "true",
        "-1",
        "1e999",
        '""',
        "[]",
        "{}",
        '"x"',
        "99999999999999999999",
        "[[1]]",
        '{"a": {"b": 1}}',
    ]
    for _ in range(5):
        a, b = sorted(rng.sample(range(len(text)), 2))
        yield text[:a]
        yield text[:a] + text[b:]
        yield text[:a] + text[a:b] * 2 + text[b:]
        yield text[:a] + rng.choice("{}[]:,'\"#&*!|>-\t\n\\%é\x01") + text[a + 1 :]
    lines = text.split("\n")
    for _ in range(10):
        i = rng.randrange(len(lines))
        head, colon, tail = lines[i].partition(":")
        if colon:
            comma = "," if tail.rstrip().endswith(",") else ""
            yield "\n".join([*lines[:i], f"{head}: {rng.choice(values)}{comma}", *lines[i + 1 :]])
        yield "\n".join(lines[:i] + lines[i + 1 :])


@pytest.mark.gate(
    "cloud_ml_engine/census.yaml", "flags/census.flags", "hparams/dnn.txt", "run_config/estimator_1_15.log",
    "sagemaker/create_training_job.json", "tfjob/ps_v1beta2.yaml",
)  # fmt: skip
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.path)
def test_damaged_files_are_refused_or_converted_whole(example, tmp_path):
    """Never a crash, and never a job file that does not load but for what it says is still to be given."""
    for other in (CONFIGS / "flags").glob("common.flags"):
        (tmp_path / other.name).write_bytes(other.read_bytes())
    rng = random.Random(example.path)
    text = (CONFIGS / example.path).read_text()
    outcomes = {"refused": 0, "converted": 0}
    for mutant in _mutants(text, rng):
        path = tmp_path / "config"
        path.write_text(mutant)
        try:
            made = converted(path, **{**example.arguments, "params": ()})
        except ConfigError as error:
            assert str(error)
            outcomes["refused"] += 1
            continue
        outcomes["converted"] += 1
        (tmp_path / "job.yaml").write_text(made.text)
        with pytest.raises(ConfigError, match="the value is missing"):
            load_job(tmp_path / "job.yaml")
    assert outcomes["refused"] and outcomes["converted"], outcomes
