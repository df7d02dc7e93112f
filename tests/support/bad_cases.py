"""Wrong job files and TF_CONFIG documents, with the code of each one's error.

One table for three tests: of the Python API, of the command line, which must print the same message and leave with
code 2, and of the words (tests/messages). Each case is (id, kind, text, code): kind is "job" or "tf_config", text the
whole file or variable.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CASES", "GOOD_JOB", "BadCase"]


class BadCase(NamedTuple):
    """One wrong input and the code of its error."""

    id: str
    kind: str
    text: str
    code: str


GOOD_JOB = """\
model:
  name: cnn
  optimizer: {name: momentum, learning_rate: 0.05}
input:
  source: tfds
  name: digits
  global_batch_size: 64
train:
  max_steps: 100
run:
  model_dir: runs/test
  train_distribute: multi_worker_mirrored
cluster:
  workers: 2
  evaluator: true
"""


def _job(old: str, new: str) -> str:
    assert GOOD_JOB.count(old) == 1, old
    return GOOD_JOB.replace(old, new)


def _input(text: str) -> str:
    return _job("  source: tfds\n  name: digits\n", text)


def _table(model: str, more: str = "") -> str:
    text = _input(f"  source: csv\n  train: a.csv\n  eval_fraction: 0.2\n{more}")
    return text.replace("  name: cnn\n  optimizer: {name: momentum, learning_rate: 0.05}\n", model)


_JOBS: list[tuple[str, str, str]] = [
    # The file as a whole.
    ("empty", "", "job/not-yaml"),
    ("comments_only", "# nothing\n", "job/not-yaml"),
    ("a_list", "- model\n- input\n", "job/not-yaml"),
    ("not_yaml", _job("  name: cnn\n", "  name: [cnn\n"), "job/not-yaml"),
    ("tab", _job("  name: cnn\n", "\tname: cnn\n"), "job/not-yaml"),
    ("key_twice", _job("  max_steps: 100\n", "  max_steps: 100\n  max_steps: 200\n"), "job/not-yaml"),
    ("key_not_text", _job("  name: digits\n", "  name: digits\n  5: x\n"), "job/not-yaml"),
    ("a_date", _job("  name: digits\n", "  name: 2024-01-31\n"), "job/wrong-type"),
    # Fields that are not there, or not known.
    (
        "section_missing",
        _job("run:\n  model_dir: runs/test\n  train_distribute: multi_worker_mirrored\n", ""),
        "job/missing-field",
    ),
    ("model_dir_missing", _job("  model_dir: runs/test\n", ""), "job/missing-field"),
    ("section_misspelt", _job("train:\n", "trian:\n"), "job/unknown-field"),
    ("field_misspelt", _job("max_steps", "max_step"), "job/unknown-field"),
    ("field_of_another_section", _job("  max_steps: 100\n", "  max_steps: 100\n  model_dir: x\n"), "job/unknown-field"),
    ("section_is_text", _job("  workers: 2\n  evaluator: true\n", "  two\n"), "job/wrong-type"),
    # Values of the wrong kind or out of range.
    ("number_in_quotes", _job("max_steps: 100", 'max_steps: "100"'), "job/wrong-type"),
    ("part_of_a_step", _job("max_steps: 100", "max_steps: 1.5"), "job/wrong-type"),
    ("zero_steps", _job("max_steps: 100", "max_steps: 0"), "job/bad-value"),
    ("negative_batch", _job("global_batch_size: 64", "global_batch_size: -64"), "job/bad-value"),
    ("yes_for_true", _job("evaluator: true", "evaluator: yes"), "job/wrong-type"),
    ("learning_rate_is_nan", _job("learning_rate: 0.05", "learning_rate: .nan"), "job/wrong-type"),
    # Choices.
    ("unknown_strategy", _job("multi_worker_mirrored", "multiworker_mirrored"), "job/bad-value"),
    ("unknown_optimizer", _job("name: momentum", "name: adamq"), "job/bad-value"),
    ("unknown_schedule", _job("learning_rate: 0.05", "learning_rate: {kind: cosin, decay_steps: 5}"), "job/bad-value"),
    (
        "schedule_without_steps",
        _job("learning_rate: 0.05", "learning_rate: {kind: cosine, initial_learning_rate: 1}"),
        "job/missing-field",
    ),
    (
        "unknown_option",
        _job("learning_rate: 0.05", "learning_rate: 0.05, options: {momentun: 0.9}"),
        "job/unknown-field",
    ),
    ("unknown_source", _job("source: tfds", "source: tfrecords"), "job/bad-value"),
    ("source_missing", _job("  source: tfds\n", ""), "job/missing-field"),
    # Fields that do not go together.
    ("model_twice", _job("  name: cnn\n", "  name: cnn\n  function: a.b:c\n"), "job/conflict"),
    ("no_model", _job("  name: cnn\n", ""), "job/conflict"),
    ("not_a_function", _job("  name: cnn\n", "  function: my_model.py\n"), "job/bad-value"),
    ("steps_and_epochs", _job("  max_steps: 100\n", "  max_steps: 100\n  epochs: 2\n"), "job/conflict"),
    (
        "features_of_no_table",
        _job("  name: cnn\n", "  name: cnn\n  features: {age: numeric}\n"),
        "job/conflict",
    ),
    (
        "a_function_without_columns",
        _table("  function: my.models:build\n  loss: binary_crossentropy\n"),
        "job/missing-field",
    ),
    (
        "columns_twice",
        _table("  name: wide_deep\n  params: {numeric: [age]}\n"),
        "job/conflict",
    ),
    ("an_image_model_of_a_table", _table("  name: cnn\n"), "job/conflict"),
    ("no_header_and_no_columns", _table("  name: dnn\n", "  header: false\n"), "job/missing-field"),
    (
        "kinds_of_features",
        _table(
            "  name: dnn\n  features:\n    age: {kind: number}\n    a: {kind: numeric, hash_buckets: 3}\n"
            "    b: bucketized\n    c: {kind: crossed, sources: [x]}\n    d: {kind: bucketized, boundaries: [2, 1]}\n"
            "    e: {kind: categorical, vocabulary: [x], hash_buckets: 3}\n    f: {kind: numeric, missing: least}\n"
        ),
        "job/several-mistakes",
    ),
    (
        "csv_without_evaluation",
        _input("  source: csv\n  train: a.csv\n  columns: {x: float32, label: int64}\n"),
        "job/missing-field",
    ),
    (
        "parquet_evaluated_twice",
        _input(
            "  source: parquet\n  train: a.parquet\n  eval: b.parquet\n  eval_fraction: 0.2\n"
            "  columns: {x: float32, label: int64}\n"
        ),
        "job/conflict",
    ),
    (
        "csv_encoding",
        _input(
            "  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {x: float32, label: int64}\n  encoding: utf8mb4\n"
        ),
        "job/bad-value",
    ),
    (
        "label_not_a_column",
        _input("  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {x: float32, y: int64}\n  label_key: z\n"),
        "job/bad-value",
    ),
    (
        "default_of_another_type",
        _input(
            "  source: csv\n  train: a.csv\n  eval: b.csv\n"
            "  columns: {x: [float32, old], y: {dtype: int64, default: 1.5}, label: int64}\n"
        ),
        "job/several-mistakes",
    ),
    (
        "kinds_of_example_features",
        _input(
            "  source: tfrecord\n  train: a.tfrecord\n  eval: b.tfrecord\n"
            "  features:\n    a: {dtype: float32, default: old}\n    b: {dtype: int64, shape: [2], default: 1}\n"
            "    c: {shape: [2]}\n    d: {kind: image, shape: [8, 8]}\n"
            "    e: {kind: varlen, dtype: int64, shape: [2]}\n    f: {dtype: int64, resize: true}\n"
            "    label: {dtype: int64}\n"
        ),
        "job/several-mistakes",
    ),
    (
        "images",
        _input("  source: images\n  train: a\n  size: [8]\n  channels: 2\n"),
        "job/several-mistakes",
    ),
    (
        "weights_of_images",
        _input("  source: images\n  train: a\n  size: [8, 8]\n  weight_key: w\n"),
        "job/several-mistakes",
    ),
    (
        "type_of_a_column",
        _input("  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {x: {dtype: float}, label: int64}\n"),
        "job/bad-value",
    ),
    (
        "weight_not_a_column",
        _input(
            "  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {x: float32, label: int64}\n  weight_key: w\n"
        ),
        "job/bad-value",
    ),
    (
        "weight_is_the_label",
        _input("  source: arrays\n  train: a.npz\n  eval: b.npz\n  weight_key: label\n"),
        "job/conflict",
    ),
    (
        "weight_is_a_feature",
        _input(
            "  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {x: float32, w: float32, label: int64}\n"
            "  weight_key: w\n  features_key: [x, w]\n"
        ),
        "job/conflict",
    ),
    (
        "nothing_but_label_and_weight",
        _input(
            "  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {w: float32, label: int64}\n  weight_key: w\n"
        ),
        "job/conflict",
    ),
    (
        "a_class_that_weighs_less_than_nothing",
        _job("  name: cnn\n", '  name: cnn\n  class_weights: {"3": -1}\n'),
        "job/bad-value",
    ),
    (
        "a_class_that_there_is_not",
        _job("  name: cnn\n", "  name: cnn\n  class_weights: {owl: 2}\n  label_vocabulary: [cat, dog]\n"),
        "job/bad-value",
    ),
    (
        "a_class_named_twice",
        _job("  name: cnn\n", "  name: cnn\n  label_vocabulary: [cat, dog, cat]\n"),
        "job/bad-value",
    ),
    ("not_an_npz", _input("  source: arrays\n  train: a.npy\n  eval: b.npz\n"), "job/bad-value"),
    (
        "distinct_seeds_with_shards",
        _input("  source: tfds\n  name: digits\n  worker_seeds: distinct\n  shard_policy: file\n"),
        "job/conflict",
    ),
    (
        "a_backup_on_one_device",
        _job("multi_worker_mirrored", "one_device\n  engine: keras").replace(
            "cluster:\n  workers: 2", "cluster:\n  workers: 1"
        )
        + "keras:\n  backup: {every: 5}\n",
        "job/several-mistakes",
    ),
    ("ps_strategy_without_ps", _job("multi_worker_mirrored", "parameter_server"), "job/conflict"),
    ("ps_without_ps_strategy", _job("  workers: 2\n", "  workers: 2\n  ps: 1\n"), "job/conflict"),
    ("mirrored_on_two_workers", _job("multi_worker_mirrored", "mirrored"), "job/conflict"),
    ("batch_not_divisible", _job("global_batch_size: 64", "global_batch_size: 65"), "job/conflict"),
    (
        "checkpoints_timed_twice",
        _job(
            "  model_dir: runs/test\n",
            "  model_dir: runs/test\n  save_checkpoints_secs: 9\n  save_checkpoints_steps: 9\n",
        ),
        "job/conflict",
    ),
    (
        "checkpoints_by_the_clock",
        _job("  model_dir: runs/test\n", "  model_dir: runs/test\n  save_checkpoints_secs: 60\n"),
        "job/conflict",
    ),
    (
        "evaluator_waits_for_others",
        _job("  model_dir: runs/test\n", "  model_dir: runs/test\n  eval_distribute: multi_worker_mirrored\n"),
        "job/conflict",
    ),
    (
        "master_with_evaluator",
        _job("  workers: 2\n", "  workers: 1\n  chief: true\n  dialect: master\n"),
        "job/conflict",
    ),
    (
        "unknown_session_field",
        _job("  model_dir: runs/test\n", "  model_dir: runs/test\n  session_config: {allow_soft_placment: true}\n"),
        "job/unknown-field",
    ),
    (
        "two_exporters_in_one_folder",
        _job("train:\n", "eval:\n  exporters:\n    - kind: best\n    - kind: best\ntrain:\n"),
        "job/conflict",
    ),
    (
        "several_mistakes",
        _job("max_steps: 100", "max_stops: 100").replace("workers: 2", "workers: two").replace("cnn", "cnn.py"),
        "job/several-mistakes",
    ),
    ("hint_for_an_estimator", _job("  name: digits\n", "  name: digits\n  shard_policy: hint\n"), "job/conflict"),
    ("steps_per_execution", _job("train:\n", "train:\n  steps_per_execution: 0\n"), "job/bad-value"),
    # Callbacks of the engine keras.
    ("backup_interval", _job("train:\n", "keras:\n  backup: {every: epochs}\ntrain:\n"), "job/bad-value"),
    (
        "rates_and_boundaries",
        _job("train:\n", "keras:\n  learning_rate_by_epoch: {boundaries: [3, 7], values: [0.1, 0.01]}\ntrain:\n"),
        "job/bad-value",
    ),
    (
        "epochs_by_the_clock",
        _job("  train_distribute: multi_worker_mirrored\n", "  engine: keras\n")
        .replace("  workers: 2\n", "  workers: 1\n")
        .replace("train:\n", "keras:\n  backup: {every: 5}\ntrain:\n"),
        "job/conflict",
    ),
    (
        "rate_by_epoch_and_by_step",
        _job("  model_dir: runs/test\n", "  model_dir: runs/test\n  engine: keras\n")
        .replace("learning_rate: 0.05", "learning_rate: {kind: cosine, initial_learning_rate: 0.1, decay_steps: 9}")
        .replace("train:\n", "keras:\n  learning_rate_by_epoch: {boundaries: [3], values: [0.1, 0.01]}\ntrain:\n"),
        "job/conflict",
    ),
    (
        "checkpoints_among_the_engines",
        _job("  model_dir: runs/test\n", "  model_dir: runs/test\n  engine: keras\n").replace(
            "train:\n", "keras:\n  model_checkpoint: {path: 'runs/test/ckpt_{epoch}'}\ntrain:\n"
        ),
        "job/conflict",
    ),
    (
        "raw_text",
        _input(
            "  source: tfrecord\n  train: a\n  eval: b\n  features: {x: {dtype: string, kind: raw}, "
            "label: {dtype: uint8}}\n"
        ),
        "job/several-mistakes",
    ),
]

_TWO = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'


def _two(old: str, new: str) -> str:
    assert _TWO.count(old) == 1, old
    return _TWO.replace(old, new)


def _cluster(jobs: str, task: str = '{"type": "worker", "index": 0}') -> str:
    return f'{{"cluster": {jobs}, "task": {task}}}'


_TF_CONFIGS: list[tuple[str, str, str]] = [
    # The document.
    ("not_json", _two('"b:1"]', '"b:1"'), "cluster/bad-tf-config"),
    ("python_quotes", "{'cluster': {}}", "cluster/bad-tf-config"),
    ("not_an_object", '["a:1", "b:1"]', "cluster/bad-tf-config"),
    ("key_twice", '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}}', "cluster/bad-tf-config"),
    ("cluster_misspelt", _two('"cluster"', '"clusters"'), "cluster/bad-tf-config"),
    (
        "sparse_cluster",
        '{"sparseCluster": {"worker": {"1": "a:1"}}, "task": {"type": "worker", "index": 1}}',
        "cluster/bad-tf-config",
    ),
    ("environment_not_text", '{"environment": 3}', "cluster/bad-tf-config"),
    # Jobs.
    ("cluster_not_an_object", _cluster('["a:1"]'), "cluster/bad-tf-config"),
    ("unknown_job", _cluster('{"wroker": ["a:1", "b:1"]}'), "cluster/bad-tf-config"),
    ("job_not_a_list", _cluster('{"worker": "a:1"}'), "cluster/bad-address"),
    ("job_empty", _cluster('{"worker": ["a:1"], "ps": []}'), "cluster/bad-address"),
    ("job_with_a_hole", _cluster('{"worker": {"0": "a:1", "2": "c:1"}}'), "cluster/bad-address"),
    ("job_by_name", _cluster('{"worker": {"first": "a:1"}}'), "cluster/bad-address"),
    ("two_chiefs", _cluster('{"chief": ["a:1", "b:1"], "worker": ["c:1"]}'), "cluster/bad-tf-config"),
    ("chief_and_master", _cluster('{"chief": ["a:1"], "master": ["b:1"], "worker": ["c:1"]}'), "cluster/bad-tf-config"),
    ("two_evaluators", _cluster('{"worker": ["a:1"], "evaluator": ["b:1", "c:1"]}'), "cluster/bad-tf-config"),
    ("only_ps", _cluster('{"ps": ["a:1"]}', '{"type": "ps", "index": 0}'), "cluster/bad-tf-config"),
    ("only_evaluator", _cluster('{"evaluator": ["a:1"]}'), "cluster/bad-tf-config"),
    # Addresses.
    ("no_port", _two('"b:1"', '"b"'), "cluster/bad-address"),
    ("port_not_a_number", _two('"b:1"', '"b:http"'), "cluster/bad-address"),
    ("port_zero", _two('"b:1"', '"b:0"'), "cluster/bad-address"),
    ("port_too_large", _two('"b:1"', '"b:65536"'), "cluster/bad-address"),
    ("no_host", _two('"b:1"', '":1"'), "cluster/bad-address"),
    ("scheme", _two('"b:1"', '"grpc://b:1"'), "cluster/bad-address"),
    ("bare_ipv6", _two('"b:1"', '"fd00::2:2222"'), "cluster/bad-address"),
    ("address_not_text", _two('"b:1"', "2222"), "cluster/bad-address"),
    ("same_address", _two('"b:1"', '"a:1"'), "cluster/bad-address"),
    ("same_address_in_two_jobs", _cluster('{"worker": ["a:1"], "ps": ["A:1"]}'), "cluster/bad-address"),
    # The task.
    ("no_task", '{"cluster": {"worker": ["a:1", "b:1"]}}', "cluster/bad-tf-config"),
    ("task_not_an_object", _cluster('{"worker": ["a:1"]}', '"worker:0"'), "cluster/bad-tf-config"),
    ("task_without_type", _cluster('{"worker": ["a:1", "b:1"]}', '{"index": 1}'), "cluster/bad-tf-config"),
    ("unknown_task_type", _two('"type": "worker"', '"type": "wroker"'), "cluster/bad-tf-config"),
    ("type_not_in_cluster", _two('"type": "worker"', '"type": "ps"'), "cluster/bad-tf-config"),
    ("index_too_large", _two('"index": 0', '"index": 2'), "cluster/unknown-task"),
    ("index_negative", _two('"index": 0', '"index": -1'), "cluster/unknown-task"),
    ("index_not_a_number", _two('"index": 0', '"index": "first"'), "cluster/bad-tf-config"),
    ("index_is_a_fraction", _two('"index": 0', '"index": 0.5'), "cluster/bad-tf-config"),
    ("index_is_true", _two('"index": 0', '"index": true'), "cluster/bad-tf-config"),
    ("index_missing", _two(', "index": 0', ""), "cluster/bad-tf-config"),
    ("second_evaluator", _cluster('{"worker": ["a:1"]}', '{"type": "evaluator", "index": 1}'), "cluster/unknown-task"),
    (
        "second_master",
        _cluster('{"master": ["a:1"], "worker": ["b:1"]}', '{"type": "master", "index": 1}'),
        "cluster/unknown-task",
    ),
    ("ps_without_cluster", '{"task": {"type": "ps", "index": 0}}', "cluster/bad-tf-config"),
    ("worker_1_without_cluster", '{"task": {"type": "worker", "index": 1}}', "cluster/unknown-task"),
]

CASES = [BadCase(f"job-{name}", "job", text, code) for name, text, code in _JOBS]
CASES += [BadCase(f"tf_config-{name}", "tf_config", text, code) for name, text, code in _TF_CONFIGS]
