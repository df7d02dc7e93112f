"""Job files: every example loads, goes through YAML and back, takes overrides, and tells its mistakes."""

from __future__ import annotations

import pathlib
import re

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import (
    ArraysInput,
    CsvInput,
    FunctionInput,
    ImagesInput,
    Job,
    ParquetInput,
    TfdsInput,
    TFRecordInput,
    dump_job,
    load_job,
    make_job,
)
from estimator_pipeline.job.error_messages import MistakesError
from tests.support.bad_cases import GOOD_JOB

CONFIGS = pathlib.Path(__file__).parents[2] / "legacy_configs"
FILES = sorted(CONFIGS.glob("*.yaml"))


@pytest.fixture
def job_file(tmp_path):
    """Writes a job file and gives its path."""

    def write(text: str = GOOD_JOB, name: str = "digits.yaml") -> pathlib.Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def _error(path, **arguments) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_job(path, **arguments)
    return caught.value


def _refused(path, **arguments) -> str:
    return str(_error(path, **arguments)).replace(str(path), path.name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_example_loads_and_goes_through_yaml(path, job_file):
    job = load_job(path)
    assert job.name == path.stem
    for defaults in (False, True):
        assert load_job(job_file(dump_job(job, defaults=defaults))) == job


def test_the_readme_names_every_example():
    readme = (CONFIGS / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w.]+)` \|", readme, flags=re.MULTILINE))
    assert named == {path.name for path in [*FILES, *(CONFIGS / "tf_config").glob("*.json")]}


# file, training tasks, ps, evaluator, training and evaluation strategy
EXAMPLES = [
    ("digits_cnn_two_workers", 2, 0, True, "multi_worker_mirrored", "none"),
    ("multi_worker_estimator", 2, 0, True, "multi_worker_mirrored", "none"),
    ("chief_workers", 3, 0, False, "multi_worker_mirrored", "none"),
    ("chief_workers_ps", 2, 2, True, "parameter_server", "none"),
    ("master_worker", 2, 0, False, "multi_worker_mirrored", "none"),
    ("evaluator_in_cluster", 2, 0, True, "multi_worker_mirrored", "none"),
    # Row E5: training alone, evaluation alone, both.
    ("mirrored_train_only", 1, 0, False, "mirrored", "none"),
    ("mirrored_eval_only", 1, 0, False, "none", "mirrored"),
    ("mirrored_eval_distribute", 1, 0, False, "mirrored", "mirrored"),
    ("one_device", 1, 0, False, "one_device", "none"),
    ("single", 1, 0, False, "none", "none"),
]


@pytest.mark.parametrize("case", EXAMPLES, ids=lambda case: case[0])
def test_what_an_example_asks_for(case):
    name, tasks, ps, evaluator, train, evaluate = case
    job = load_job(CONFIGS / f"{name}.yaml")
    assert (job.cluster.num_training_tasks, job.cluster.ps, job.cluster.evaluator) == (tasks, ps, evaluator)
    assert (job.run.train_distribute, job.run.eval_distribute) == (train, evaluate)
    assert isinstance(job.input, TfdsInput) and job.input.name == "digits"


def test_e8_e9_e2_examples():
    ring = load_job(CONFIGS / "ring.yaml").run.communication
    assert (ring.implementation, ring.bytes_per_pack, ring.timeout_secs) == ("ring", 52428800, 120)
    bigger = load_job(CONFIGS / "bigger_batch_mixed_precision.yaml")
    assert bigger.model.mixed_precision and bigger.input.global_batch_size == 256
    seeds = load_job(CONFIGS / "distinct_seeds.yaml").input
    assert (seeds.worker_seeds, seeds.shard_policy) == ("distinct", "off")


def test_defaults(job_file):
    job = load_job(
        job_file("model: {name: cnn}\nrun: {model_dir: m}\ninput: {source: tfds, name: digits, global_batch_size: 8}\n")
    )
    assert job.name == "digits"
    assert (job.model.optimizer.name, job.model.optimizer.api) == ("sgd", "v1")
    assert job.input.evaluation_batch_size == 8
    assert (job.train.max_steps, job.train.epochs, job.eval.steps) == (None, None, None)
    assert job.cluster.workers == job.cluster.num_training_tasks == 1
    assert job.run.checkpoint_interval == ("secs", 600)


def test_checkpoint_interval(job_file):
    """Without a word in the file, workers of a collective strategy count steps, not seconds."""
    assert load_job(job_file()).run.checkpoint_interval == ("steps", 1000)
    steps = load_job(job_file(), overrides=["run.save_checkpoints_steps=7"])
    assert steps.run.checkpoint_interval == ("steps", 7)
    single = ["run.train_distribute=none", "cluster.workers=1", "run.save_checkpoints_secs=9"]
    assert load_job(job_file(), overrides=single).run.checkpoint_interval == ("secs", 9)


def test_an_empty_section_is_one_with_nothing_set(job_file):
    assert load_job(job_file(GOOD_JOB + "eval:\n")).eval == load_job(job_file()).eval


def test_jobs_cannot_be_changed(job_file):
    with pytest.raises(ValueError, match="frozen"):
        load_job(job_file()).train.max_steps = 5


SOURCES = [
    (
        "{source: tfds, name: mnist, data_dir: d, features_key: image, label_key: label, scale: 1/255}",
        TfdsInput,
    ),
    (
        "{source: tfrecord, train: 'a-*.tfrecord', eval: [b, c], compression: gzip, label_key: y,"
        " features: {x: {dtype: float32, shape: [8, 8]}, w: {dtype: int64, kind: varlen},"
        " i: {kind: image, shape: [8, 8, 3], resize: true}, d: {dtype: string, shape: [2], default: [a, b]},"
        " y: {dtype: int64, default: 0}}}",
        TFRecordInput,
    ),
    (
        "{source: csv, train: a.csv, eval: b.csv, columns: {x: float32, n: float32, label: int64}, weight_key: n,"
        " delimiter: ';', header: false}",
        CsvInput,
    ),
    (
        "{source: csv, train: a.csv, eval: b.csv, columns: {x: {dtype: float32, default: 40}, n: [int64, -1],"
        " s: [string, none], label: int64}}",
        CsvInput,
    ),
    (
        "{source: csv, train: 'a-*.csv.gz', eval_fraction: 0.2, columns: {x: float32, label: int64}, encoding: latin-1,"
        " null_words: ['-', unknown]}",
        CsvInput,
    ),
    ("{source: parquet, train: a.parquet, eval: b.parquet, columns: {x: float32, label: int64}}", ParquetInput),
    ("{source: arrays, train: a.npz, eval: b.npz}", ArraysInput),
    ("{source: images, train: a, eval_fraction: 0.2, size: [96, 128], channels: 1}", ImagesInput),
    ("{source: function, train: 'a.b:train_fn', eval: path/to/in.py:eval_fn, params: {n: 3}}", FunctionInput),
]


@pytest.mark.parametrize(("text", "kind"), SOURCES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_source(text, kind, job_file):
    rest = "model: {function: my.models:build}\nrun: {model_dir: gs://bucket/m}\n"
    text = f"{rest}input: {text[:-1]}, global_batch_size: 4}}\n"
    job = load_job(job_file(text))
    assert type(job.input) is kind
    assert load_job(job_file(dump_job(job))) == job
    if kind is TFRecordInput:
        assert job.input.train == ["a-*.tfrecord"]
        assert job.input.features["x"].shape == [8, 8]
    if kind is TfdsInput:
        assert job.input.scale == 1 / 255


def test_text_that_yaml_escapes(job_file):
    """U+0085 is a line break to ruamel, unless it is escaped."""
    params = {"x": "a\x85b", "\x85": ["é", "? a", "<<", "2020-01-01", "1e5", " x\n"]}
    source = {"source": "function", "train": "a:b", "eval": "a:b", "global_batch_size": 4, "params": params}
    job = make_job({"model": {"name": "linear"}, "input": source, "run": {"model_dir": "m"}})
    assert load_job(job_file(dump_job(job))) == job


def test_a_job_that_is_too_large_for_its_file():
    """Aliases may have repeated a long value."""
    source = {"source": "function", "train": "a:b", "eval": "a:b", "global_batch_size": 4, "params": {"x": "x" * 2**20}}
    job = make_job({"model": {"name": "linear"}, "input": source, "run": {"model_dir": "m"}})
    with pytest.raises(ConfigError) as caught:
        dump_job(job)
    assert (caught.value.code, caught.value.found.split(" with ")[0]) == ("file/unreadable", "more than 1024 KiB")


SCHEDULES = [
    "0.5",
    "1",
    "{kind: constant, learning_rate: 0.5}",
    "{kind: exponential, initial_learning_rate: 0.1, decay_steps: 10, decay_rate: 0.5, staircase: true}",
    "{kind: piecewise, boundaries: [10, 20], values: [1, 0.1, 0.01]}",
    "{kind: cosine, initial_learning_rate: 0, decay_steps: 10, warmup_steps: 5, warmup_target: 0.1}",
    "{kind: inverse_time, initial_learning_rate: 0.1, decay_steps: 10, decay_rate: 0.5}",
    "{kind: polynomial, initial_learning_rate: 1e-1, decay_steps: 10, power: 2}",
]


@pytest.mark.parametrize("text", SCHEDULES)
def test_every_schedule(text, job_file):
    job = load_job(job_file(), overrides=[f"model.optimizer.learning_rate={text}"])
    rate = job.model.optimizer.learning_rate
    assert isinstance(rate, float) if text[0] != "{" else f"kind: {rate.kind}," in text
    assert load_job(job_file(dump_job(job))) == job


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("{warmup_steps: 10, warmup_from: 0.001}", None),
        ("{name: adamw, exclude_from_weight_decay: [bias], options: {beta1: 0.8}, warmup_steps: 10}", None),
        ("{name: momentum, weight_decay: 0.01, exclude_from_weight_decay: [bias], warmup_steps: 10}", None),
        ("{weight_decay: -1}", "weight_decay"),
        ("{name: ftrl, weight_decay: 0.1}", "ftrl recomputes each weight"),
        ("{exclude_from_weight_decay: [bias]}", "there is no weight decay"),
        ("{gradient_accumulation_steps: 4, warmup_steps: 10}", None),
        ("{gradient_accumulation_steps: 0}", "gradient_accumulation_steps"),
        ("{warmup_steps: -1}", "warmup_steps"),
        ("{warmup_from: 0.001}", "warmup_from 0.001 without warmup_steps"),
        (
            "{warmup_steps: 5, learning_rate: {kind: cosine, initial_learning_rate: 0, decay_steps: 10, "
            "warmup_steps: 5, warmup_target: 0.1}}",
            "the learning rate is warmed up twice",
        ),
    ],
)
def test_optimizers(optimizer, words, job_file):
    if words is None:
        job = load_job(job_file(), overrides=[f"model.optimizer={optimizer}"])
        assert load_job(job_file(dump_job(job))).model.optimizer.warmup_steps == 10
        return
    with pytest.raises(ConfigError, match=words):
        load_job(job_file(), overrides=[f"model.optimizer={optimizer}"])


def test_gradients_are_not_added_up_with_parameter_servers(job_file):
    settings = ["run.train_distribute=parameter_server", "cluster.ps=1", "cluster.workers=1", "cluster.chief=true"]
    load_job(job_file(), overrides=settings)
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps: workers with parameter servers.*\n.*2 with"):
        load_job(job_file(), overrides=[*settings, "model.optimizer={gradient_accumulation_steps: 2}"])


def test_overrides(job_file):
    job = load_job(
        job_file(),
        overrides=[
            "name=other",
            "train.max_steps=5",
            "train.max_steps=7",
            "run.devices=[/cpu:0]",
            "model.optimizer={name: adam, learning_rate: 1e-3}",
            "model.optimizer.options.beta1=0.8",
            "eval.exporters=[{kind: best}, {kind: final}]",
            "eval.exporters.0.name=first",
            "run.model_dir=gs://bucket/a=b",
            "run.seed=",
        ],
    )
    assert job.name == "other"
    assert job.train.max_steps == 7
    assert job.run.devices == ["/cpu:0"]
    assert (job.model.optimizer.name, job.model.optimizer.options) == ("adam", {"beta1": 0.8})
    assert [exporter.folder for exporter in job.eval.exporters] == ["first", "final"]
    assert (job.run.model_dir, job.run.seed) == ("gs://bucket/a=b", None)


def test_an_override_mends_a_mistake_of_the_file(job_file):
    path = job_file(GOOD_JOB.replace("max_steps: 100", "max_steps: none"))
    assert "line 9, column 3: train.max_steps" in _refused(path)
    assert load_job(path, overrides=["train.max_steps=5"]).train.max_steps == 5


def test_a_list_item_that_is_not_there(job_file):
    error = _error(job_file(), overrides=["eval.exporters=[{kind: best}]", "eval.exporters.1.name=x"])
    assert error.code == "job/bad-override" and "--set eval.exporters.1.name=x" in error.what
    assert error.found == "1 items; allowed: 0 to 0"


def test_all_mistakes_in_one_message_sorted_by_line(job_file):
    text = GOOD_JOB.replace("name: cnn", "nmae: cnn").replace("workers: 2", "workers: -1").replace("runs/test", "[]")
    error = _error(job_file(text), overrides=["train.max_steps=-1"])
    assert isinstance(error, MistakesError) and error.code == "job/several-mistakes"
    assert [(mistake.code, mistake.what.partition(": ")[0]) for mistake in error.mistakes] == [
        ("job/unknown-field", "line 2, column 3"),
        ("job/wrong-type", "line 11, column 3"),
        ("job/bad-value", "line 14, column 3"),
        ("job/bad-value", "--set train.max_steps=-1"),
    ]
    assert all(str(mistake).splitlines()[0] in str(error) for mistake in error.mistakes)


def test_no_such_file(job_file):
    error = _error(job_file().with_name("digit.yaml"))
    assert error.code == "file/not-found" and "digit.yaml' cannot be read" in error.what
    assert error.found.endswith(": digits.yaml"), "what is there is named"


def test_not_utf8(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: caf\xe9\n")
    assert _error(path).code == "file/unreadable"


def test_anchors_and_merges(job_file):
    text = (
        GOOD_JOB.replace("train:\n", "train: &t\n")
        + "eval:\n  exporters:\n    - &e {kind: best, metric: a}\n    - {<<: *e, name: b}\n"
    )
    assert [(e.folder, e.metric) for e in load_job(job_file(text)).eval.exporters] == [
        ("best", "a"),
        ("b", "a"),
    ]
    message = _refused(job_file(text.replace("kind: best", "kind: bset")))
    # The merged copy has no line of its own for the kind; its mapping's is named.
    assert "line 18, column 11: eval.exporters.0.kind" in message
    assert "line 19, column 7: eval.exporters.1.kind" in message


def test_a_value_that_contains_itself():
    params: dict = {"a": [1]}
    params["a"].append(params)
    data = {"model": {"name": "cnn", "params": params}}
    with pytest.raises(ConfigError) as caught:
        make_job(data)
    assert str(caught.value).startswith("the job: model.params.a.1: the value contains itself.")


def test_tags_make_no_objects(job_file):
    message = _refused(job_file(GOOD_JOB.replace("name: cnn", "name: !!python/object/apply:os.system [true]")))
    assert "model.name" in message


def test_make_job_from_a_mapping():
    data = {
        "model": {"name": "cnn"},
        "input": {"source": "arrays", "train": "a.npz", "eval": "b.npz", "global_batch_size": 4},
        "run": {"model_dir": "m"},
    }
    before = repr(data)
    job = make_job(data, overrides=["name=x", "train.epochs=1.5"])
    assert isinstance(job, Job) and (job.name, job.train.epochs) == ("x", 1.5)
    assert repr(data) == before
    with pytest.raises(ConfigError) as caught:
        make_job({**data, "run": {}})
    assert caught.value.code == "job/missing-field" and "the job: run.model_dir" in caught.value.what
    assert (caught.value.found, caught.value.hint) == ("in run: nothing", "add model_dir.")


# overrides of GOOD_JOB, and a part of the message; None: accepted
STRATEGY_CASES = [
    # Parameter servers.
    (["run.train_distribute=parameter_server", "cluster.ps=2", "cluster.chief=true"], None),
    (["run.train_distribute=parameter_server"], "needs a parameter server"),
    (["cluster.ps=1"], "uses no parameter servers"),
    # One process or several.
    (["run.train_distribute=none"], "trains in one process, but the cluster has 2"),
    (["run.train_distribute=one_device"], "trains in one process"),
    (["run.train_distribute=mirrored", "cluster.workers=1", "cluster.chief=true"], "trains in one process"),
    (["run.train_distribute=mirrored", "cluster.workers=1"], None),
    (["cluster.workers=1"], None),
    (
        ["run.train_distribute=one_device", "cluster.workers=1", "run.num_devices=2"],
        "on one device, but 2 are configured",
    ),
    # Batches.
    (["cluster.workers=3"], "such as 63 or 66"),
    (["cluster.workers=3", "input.global_batch_size=66"], None),
    (["cluster.chief=true"], "among 3 replicas"),
    (["run.num_devices=3"], "global_batch_size 64, 2 training tasks of 3 devices"),
    (
        ["run.train_distribute=mirrored", "cluster.workers=1", "run.devices=[a, b, c]"],
        "1 training task of 3 devices",
    ),
    (
        ["run.eval_distribute=mirrored", "run.num_devices=2", "input.eval_batch_size=7"],
        "input.eval_batch_size",
    ),
    (["input.global_batch_size=1"], "to a multiple of 2, such as 2."),
    # Evaluation.
    (["run.eval_distribute=multi_worker_mirrored"], "the evaluator evaluates in one process"),
    (
        ["run.eval_distribute=parameter_server", "cluster.evaluator=false"],
        "the chief evaluates in one",
    ),
    (["run.eval_distribute=mirrored"], None),
    (["eval.during_training=true"], "the chief must not"),
    (["eval.during_training=true", "cluster.evaluator=false"], None),
    # Dialects.
    (["cluster.dialect=master", "cluster.evaluator=false"], "renames the chief"),
    (["cluster.dialect=master", "cluster.evaluator=false", "cluster.workers=1", "cluster.chief=true"], None),
    (["cluster.dialect=evaluator_in_cluster"], None),
    (["cluster.dialect=evaluator_in_cluster", "cluster.evaluator=false"], "needs an evaluator"),
    # Fields of one section.
    (["run.save_checkpoints_secs=5"], "cannot save checkpoints by time"),
    (["run.devices=[a]", "run.num_devices=1"], "by name and by number"),
    (["model.clip_norm=1", "model.clip_value=1"], "clipped twice"),
    (["model.export.signatures=[predict, predict]"], "named twice"),
    (["eval.exporters=[{kind: final, metric: loss}]"], "an exporter of kind 'final' has no metric"),
    (["eval.exporters=[{kind: latest, exports_to_keep: 2}]"], None),
    (["input.scale=1/0"], "input.scale: '1/0' is not a number"),
    (["input.scale=0"], "0; allowed: more than 0"),
    (["input.worker_seeds=distinct"], "worker_seeds distinct with shard_policy auto"),
    (["input.worker_seeds=distinct", "input.shard_policy=off"], None),
    (["input.worker_seeds=distinct", "input.shuffle=false"], "do nothing without a shuffle"),
    (["model.optimizer.learning_rate={kind: piecewise, boundaries: [5, 2], values: [1, 2]}"], "not increasing"),
    (
        ["model.optimizer.learning_rate={kind: piecewise, boundaries: [5, 2], values: [1, 2]}"],
        "2 boundaries need 3",
    ),
    (
        ["model.optimizer.learning_rate={kind: cosine, initial_learning_rate: 1, decay_steps: 1, warmup_steps: 1}"],
        "a warm-up has no target",
    ),
    (["model.optimizer.api=keras", "model.optimizer.options.momentum=0.5"], None),
    (["model.optimizer.name=adam", "model.optimizer.options.beta_1=0.5"], "did you mean 'beta1'?"),
    (["model.optimizer.name=adam", "model.optimizer.api=keras", "model.optimizer.options.beta_1=0.5"], None),
]


@pytest.mark.parametrize(
    ("overrides", "fragment"),
    STRATEGY_CASES,
    ids=lambda value: " ".join(value or ["ok"]) if isinstance(value, list) else None,
)
def test_fields_that_go_together_and_not(overrides, fragment, job_file):
    if fragment is None:
        job = load_job(job_file(), overrides=overrides)
        assert load_job(job_file(dump_job(job))) == job
    else:
        assert fragment in _refused(job_file(), overrides=overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:\n" + "# " + "x" * 2**20, "is too large"),
        ("model: " + "[" * 20_000 + "]" * 20_000, "nested too deep"),
        ("model: " + '{"a":' * 5_000 + "1" + "}" * 5_000, "nested too deep"),
        ("".join(" " * i + "a:\n" for i in range(1_400)), "nested too deep"),
        (
            "x:\n  - &a0 [l, l, l, l, l, l, l, l, l]\n"
            + "".join(f"  - &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
            + "model: *a9\n",
            "x: there are too many values below it",
        ),
    ],
    ids=["large", "lists", "mappings", "indented", "aliases"],
)
def test_a_file_that_would_fill_the_memory_is_refused(tmp_path, text, message):
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_job(tmp_path / "job.yaml")
