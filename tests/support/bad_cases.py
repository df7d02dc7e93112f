"""Wrong job files and TF_CONFIG documents, with what each message must say.

One table for two tests: of the Python API, and of the command line, which must print the same message and
leave with code 2. Each case is (id, kind, text, fragments): kind is "job" or "tf_config", text the whole file
or variable, fragments the parts of the message in their order: what is wrong, what was found, the mend.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CASES", "GOOD_JOB", "BadCase"]


class BadCase(NamedTuple):
    """One wrong input and the parts of its message."""

    id: str
    kind: str
    text: str
    fragments: tuple[str, ...]


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


_JOBS: list[tuple[str, str, tuple[str, ...]]] = [
    # The file as a whole.
    ("empty", "", ("is empty", "no text", "at least the sections model, input and run")),
    ("comments_only", "# nothing\n", ("does not hold a mapping", "None", "write `model:`")),
    ("a_list", "- model\n- input\n", ("does not hold a mapping", "['model', 'input']", "write `model:`")),
    (
        "not_yaml",
        _job("  name: cnn\n", "  name: [cnn\n"),
        ("line 3, column 12: this is not YAML", "optimizer: {name", "indent with spaces"),
    ),
    (
        "tab",
        _job("  name: cnn\n", "\tname: cnn\n"),
        ("line 2, column 1: this is not YAML", r"'\t'", "spaces"),
    ),
    (
        "key_twice",
        _job("  max_steps: 100\n", "  max_steps: 100\n  max_steps: 200\n"),
        ("line 10, column 3: the key 'max_steps' stands twice", "max_steps: 200", "keep one of the two"),
    ),
    (
        "key_not_text",
        _job("  name: digits\n", "  name: digits\n  5: x\n"),
        ("line 7, column 3: the key 5 is not text", "a key of type int in input", '"5"'),
    ),
    (
        "a_date",
        _job("  name: digits\n", "  name: 2024-01-31\n"),
        ("line 6, column 3: input.name: a value of a kind", "allowed: text, numbers", "in quotes"),
    ),
    # Fields that are not there, or not known.
    (
        "section_missing",
        _job("run:\n  model_dir: runs/test\n  train_distribute: multi_worker_mirrored\n", ""),
        (
            "run: the section is missing",
            "in the job: model, input, train, cluster",
            "add run, with model_dir",
        ),
    ),
    (
        "model_dir_missing",
        _job("  model_dir: runs/test\n", ""),
        ("line 10, column 1: run.model_dir: the field is missing", "train_distribute", "add model_dir"),
    ),
    (
        "section_misspelt",
        _job("train:\n", "trian:\n"),
        (
            "line 8, column 1: trian: unknown field",
            "allowed: name, model, input, train",
            "did you mean 'train'?",
        ),
    ),
    (
        "field_misspelt",
        _job("max_steps", "max_step"),
        (
            "line 9, column 3: train.max_step: unknown",
            "allowed: max_steps, epochs, steps_per_execution",
            "did you mean 'max_steps'?",
        ),
    ),
    (
        "field_of_another_section",
        _job("  max_steps: 100\n", "  max_steps: 100\n  model_dir: x\n"),
        ("line 10, column 3: train.model_dir: unknown field", "allowed: max_steps, epochs", "move it"),
    ),
    (
        "section_is_text",
        _job("  workers: 2\n  evaluator: true\n", "  two\n"),
        (
            "cluster: 'two' is not a mapping",
            "allowed: a mapping with the fields workers, chief, ps",
            "indented",
        ),
    ),
    # Values of the wrong kind or out of range.
    (
        "number_in_quotes",
        _job("max_steps: 100", 'max_steps: "100"'),
        ("train.max_steps: '100' is not a whole number", "a value of type text", "without quotes"),
    ),
    (
        "part_of_a_step",
        _job("max_steps: 100", "max_steps: 1.5"),
        ("train.max_steps: 1.5 is not a whole number", "a value of type number", "write a whole number"),
    ),
    (
        "zero_steps",
        _job("max_steps: 100", "max_steps: 0"),
        (
            "line 9, column 3: train.max_steps: this value is not allowed",
            "0; allowed: more than 0",
            "another",
        ),
    ),
    (
        "negative_batch",
        _job("global_batch_size: 64", "global_batch_size: -64"),
        ("line 7, column 3: input.global_batch_size: this value", "-64; allowed: more than 0", "another"),
    ),
    (
        "yes_for_true",
        _job("evaluator: true", "evaluator: yes"),
        ("line 15, column 3: cluster.evaluator: 'yes' is not true or false", "type text", "write true"),
    ),
    (
        "learning_rate_is_nan",
        _job("learning_rate: 0.05", "learning_rate: .nan"),
        ("line 3, column 31: model.optimizer.learning_rate: nan is not", "allowed: a"),
    ),
    # Choices.
    (
        "unknown_strategy",
        _job("multi_worker_mirrored", "multiworker_mirrored"),
        (
            "run.train_distribute: this value is not allowed",
            "'multiworker_mirrored'; allowed: none, mirrored, multi_worker_mirrored",
            "did you mean 'multi_worker_mirrored'?",
        ),
    ),
    (
        "unknown_optimizer",
        _job("name: momentum", "name: adamq"),
        (
            "line 3, column 15: model.optimizer.name: this value",
            "'adamq'; allowed: sgd, momentum",
            "did you mean 'adam'?",
        ),
    ),
    (
        "unknown_schedule",
        _job("learning_rate: 0.05", "learning_rate: {kind: cosin, decay_steps: 5}"),
        (
            "model.optimizer.learning_rate.kind: this value is not allowed",
            "'cosin'; allowed",
            ": constant, exponential",
            "did you mean 'cosine'?",
        ),
    ),
    (
        "schedule_without_steps",
        _job("learning_rate: 0.05", "learning_rate: {kind: cosine, initial_learning_rate: 1}"),
        ("model.optimizer.learning_rate.decay_steps: the field is missing", "kind", "add decay_steps"),
    ),
    (
        "unknown_option",
        _job("learning_rate: 0.05", "learning_rate: 0.05, options: {momentun: 0.9}"),
        (
            "the optimizer 'momentum' (v1) has no such option",
            "'momentun'; allowed: momentum",
            "did you mean 'momentum'?",
        ),
    ),
    (
        "unknown_source",
        _job("source: tfds", "source: tfrecords"),
        (
            "line 5, column 3: input.source: this value",
            "'tfrecords'; allowed: tfds, tfrecord, csv",
            "did you mean 'tfrecord'?",
        ),
    ),
    (
        "source_missing",
        _job("  source: tfds\n", ""),
        ("input.source: the field is missing", "allowed: tfds, tfrecord, csv", "add source"),
    ),
    # Fields that do not go together.
    (
        "model_twice",
        _job("  name: cnn\n", "  name: cnn\n  function: a.b:c\n"),
        (
            "line 3, column 3: model.function: the model is given by name and by function",
            "'cnn'",
            "exactly one",
        ),
    ),
    (
        "no_model",
        _job("  name: cnn\n", ""),
        ("model: the model is not given", "neither name nor function", "add"),
    ),
    (
        "not_a_function",
        _job("  name: cnn\n", "  function: my_model.py\n"),
        ("model.function: this does not name a function", '"path/to/file.py:function"', "a colon"),
    ),
    (
        "steps_and_epochs",
        _job("  max_steps: 100\n", "  max_steps: 100\n  epochs: 2\n"),
        ("train.epochs: the end of training is given twice", "max_steps 100 and epochs 2", "keep one"),
    ),
    (
        "label_not_a_column",
        _input("  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {x: float32, y: int64}\n  label_key: z\n"),
        (
            "input.label_key: the label is not one of the columns",
            "allowed: x, y",
            "name one of the columns",
        ),
    ),
    (
        "default_of_another_type",
        _input(
            "  source: csv\n  train: a.csv\n  eval: b.csv\n"
            "  columns: {x: [float32, old], y: {dtype: int64, default: 1.5}, label: int64}\n"
        ),
        (
            "input.columns.x.default: this is no value of a column of the type float32",
            "'old'",
            "input.columns.y.default",
        ),
    ),
    (
        "type_of_a_column",
        _input("  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {x: {dtype: float}, label: int64}\n"),
        ("input.columns.x.dtype: this value is not allowed", "float32, float64, int32", "hint: "),
    ),
    (
        "weight_not_a_column",
        _input(
            "  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {x: float32, label: int64}\n  weight_key: w\n"
        ),
        ("input.weight_key: the weight is not one of the columns", "allowed: x, label", "name one of the columns"),
    ),
    (
        "weight_is_the_label",
        _input("  source: arrays\n  train: a.npz\n  eval: b.npz\n  weight_key: label\n"),
        ("input.weight_key: the label cannot be the weight as well", "'label' for both", "name another"),
    ),
    (
        "weight_is_a_feature",
        _input(
            "  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {x: float32, w: float32, label: int64}\n"
            "  weight_key: w\n  features_key: [x, w]\n"
        ),
        ("input.features_key: the weight cannot be an input of the model as well", "'w' for both", "leave it out"),
    ),
    (
        "nothing_but_label_and_weight",
        _input(
            "  source: csv\n  train: a.csv\n  eval: b.csv\n  columns: {w: float32, label: int64}\n  weight_key: w\n"
        ),
        ("input.columns: there is nothing but the label and the weight in columns", "'w', 'label' alone", "name"),
    ),
    (
        "a_class_that_weighs_less_than_nothing",
        _job("  name: cnn\n", '  name: cnn\n  class_weights: {"3": -1}\n'),
        ("model.class_weights", "-1"),
    ),
    (
        "a_class_that_there_is_not",
        _job("  name: cnn\n", "  name: cnn\n  class_weights: {owl: 2}\n  label_vocabulary: [cat, dog]\n"),
        ("model.class_weights.owl: this is no class", "'owl'; allowed: whole numbers from 0 on, cat, dog"),
    ),
    (
        "a_class_named_twice",
        _job("  name: cnn\n", "  name: cnn\n  label_vocabulary: [cat, dog, cat]\n"),
        ("model.label_vocabulary: a class is named twice", "cat", "once"),
    ),
    (
        "not_an_npz",
        _input("  source: arrays\n  train: a.npy\n  eval: b.npz\n"),
        ("input.train: this is not an .npz file", "ends in .npz", "numpy.savez"),
    ),
    (
        "distinct_seeds_with_shards",
        _input("  source: tfds\n  name: digits\n  worker_seeds: distinct\n  shard_policy: file\n"),
        ("input.worker_seeds: distinct seeds are for workers that all read", "shard_policy file", "off"),
    ),
    (
        "a_backup_on_one_device",
        _job("multi_worker_mirrored", "one_device\n  engine: keras").replace(
            "cluster:\n  workers: 2", "cluster:\n  workers: 1"
        )
        + "keras:\n  backup: {every: 5}\n",
        ("keras.backup: Keras backs up no training under one_device", "train_distribute one_device", "mirrored"),
    ),
    (
        "ps_strategy_without_ps",
        _job("multi_worker_mirrored", "parameter_server"),
        (
            "run.train_distribute: parameter_server needs a parameter server",
            "cluster.ps 0",
            "set cluster.ps to 1",
        ),
    ),
    (
        "ps_without_ps_strategy",
        _job("  workers: 2\n", "  workers: 2\n  ps: 1\n"),
        (
            "line 15, column 3: cluster.ps: train_distribute 'multi_worker_mirrored' uses no",
            "ps 1",
            "set cluster.ps to 0",
        ),
    ),
    (
        "mirrored_on_two_workers",
        _job("multi_worker_mirrored", "mirrored"),
        (
            "line 14, column 3: cluster.workers: train_distribute 'mirrored' trains in one process",
            "workers 2",
            "set run.train_distribute: multi_worker_mirrored",
        ),
    ),
    (
        "batch_not_divisible",
        _job("global_batch_size: 64", "global_batch_size: 65"),
        (
            "line 7, column 3: input.global_batch_size: a batch of 65 records",
            "2 training tasks",
            "such as 64 or 66",
        ),
    ),
    (
        "checkpoints_timed_twice",
        _job(
            "  model_dir: runs/test\n",
            "  model_dir: runs/test\n  save_checkpoints_secs: 9\n  save_checkpoints_steps: 9\n",
        ),
        ("run.save_checkpoints_secs: checkpoints are timed by steps and by seconds", "9 and", "keep one"),
    ),
    (
        "checkpoints_by_the_clock",
        _job("  model_dir: runs/test\n", "  model_dir: runs/test\n  save_checkpoints_secs: 60\n"),
        ("cannot save by the clock", "save_checkpoints_secs 60", "set save_checkpoints_steps instead"),
    ),
    (
        "evaluator_waits_for_others",
        _job("  model_dir: runs/test\n", "  model_dir: runs/test\n  eval_distribute: multi_worker_mirrored\n"),
        (
            "run.eval_distribute: the evaluator evaluates, which is one process",
            "cluster.evaluator true",
            "mirrored",
        ),
    ),
    (
        "master_with_evaluator",
        _job("  workers: 2\n", "  workers: 1\n  chief: true\n  dialect: master\n"),
        (
            "cluster.evaluator: the dialect 'master' has no evaluator",
            "dialect master with evaluator true",
            "canonical",
        ),
    ),
    (
        "unknown_session_field",
        _job(
            "  model_dir: runs/test\n",
            "  model_dir: runs/test\n  session_config: {allow_soft_placment: true}\n",
        ),
        (
            "line 12, column 20: run.session_config.allow_soft_placment",
            "allowed: allow_soft_placement",
            "did you mean 'allow_soft_placement'?",
        ),
    ),
    (
        "two_exporters_in_one_folder",
        _job("train:\n", "eval:\n  exporters:\n    - kind: best\n    - kind: best\ntrain:\n"),
        (
            "line 11, column 7: eval.exporters.1: two exporters write to the folder 'best'",
            "best, best",
            "name of its own",
        ),
    ),
    (
        "several_mistakes",
        _job("max_steps: 100", "max_stops: 100").replace("workers: 2", "workers: two").replace("cnn", "cnn.py"),
        (
            "has 3 mistakes:",
            "line 2, column 3: model.name: this is not a name",
            "line 9, column 3: train.max_stops: unknown field",
            "did you mean 'max_steps'?",
            "line 14, column 3: cluster.workers: 'two' is not a whole number",
        ),
    ),
    (
        "hint_for_an_estimator",
        _job("  name: digits\n", "  name: digits\n  shard_policy: hint\n"),
        ("input.shard_policy: an Estimator calls", "engine estimator", "shard_policy: data"),
    ),
    (
        "steps_per_execution",
        _job("train:\n", "train:\n  steps_per_execution: 0\n"),
        ("train.steps_per_execution: this is no number of steps", "0; allowed: auto, or a number", "one of these"),
    ),
    # Callbacks of the engine keras.
    (
        "backup_interval",
        _job("train:\n", "keras:\n  backup: {every: epochs}\ntrain:\n"),
        ("keras.backup.every: this is no interval", "'epochs'; allowed: epoch", "one of these"),
    ),
    (
        "rates_and_boundaries",
        _job("train:\n", "keras:\n  learning_rate_by_epoch: {boundaries: [3, 7], values: [0.1, 0.01]}\ntrain:\n"),
        ("2 boundaries need 3 values", "2 values", "from the last one on"),
    ),
    (
        "epochs_by_the_clock",
        _job("  train_distribute: multi_worker_mirrored\n", "  engine: keras\n")
        .replace("  workers: 2\n", "  workers: 1\n")
        .replace("train:\n", "keras:\n  backup: {every: 5}\ntrain:\n"),
        ("keras.backup: epochs are counted", "every 600 seconds", "set run.save_checkpoints_steps"),
    ),
    (
        "rate_by_epoch_and_by_step",
        _job("  model_dir: runs/test\n", "  model_dir: runs/test\n  engine: keras\n")
        .replace("learning_rate: 0.05", "learning_rate: {kind: cosine, initial_learning_rate: 0.1, decay_steps: 9}")
        .replace("train:\n", "keras:\n  learning_rate_by_epoch: {boundaries: [3], values: [0.1, 0.01]}\ntrain:\n"),
        ("given by epoch and by step", "of kind cosine", "keep one of them"),
    ),
    (
        "checkpoints_among_the_engines",
        _job("  model_dir: runs/test\n", "  model_dir: runs/test\n  engine: keras\n").replace(
            "train:\n", "keras:\n  model_checkpoint: {path: 'runs/test/ckpt_{epoch}'}\ntrain:\n"
        ),
        ("keras.model_checkpoint.path: this is where the engine keeps its own", "runs/test", "name another folder"),
    ),
    (
        "raw_text",
        _input(
            "  source: tfrecord\n  train: a\n  eval: b\n  features: {x: {dtype: string, kind: raw}, "
            "label: {dtype: uint8}}\n"
        ),
        (
            "2 mistakes",
            "a raw feature is not of the type string",
            "all but string",
            "kind: fixed",
            "a fixed feature is not of the type uint8",
            "allowed: float32, int64, string",
            "or kind: raw",
        ),
    ),
]

_TWO = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'


def _two(old: str, new: str) -> str:
    assert _TWO.count(old) == 1, old
    return _TWO.replace(old, new)


def _cluster(jobs: str, task: str = '{"type": "worker", "index": 0}') -> str:
    return f'{{"cluster": {jobs}, "task": {task}}}'


_TF_CONFIGS: list[tuple[str, str, tuple[str, ...]]] = [
    # The document.
    (
        "not_json",
        _two('"b:1"]', '"b:1"'),
        ("TF_CONFIG is not JSON", "line 1, column 37", "near there", "json.dumps"),
    ),
    ("python_quotes", "{'cluster': {}}", ("TF_CONFIG is not JSON", "{'cluster'", "JSON wants double quotes")),
    ("not_an_object", '["a:1", "b:1"]', ("is not a JSON object", "a value of type list", '{"cluster"')),
    (
        "key_twice",
        '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}}',
        ("the key 'worker' twice", "'a:1'", "one list"),
    ),
    (
        "cluster_misspelt",
        _two('"cluster"', '"clusters"'),
        ("unknown key 'clusters'", "allowed: cluster, task", "'cluster'?"),
    ),
    (
        "sparse_cluster",
        '{"sparseCluster": {"worker": {"1": "a:1"}}, "task": {"type": "worker", "index": 1}}',
        (
            "a sparse cluster",
            "'sparseCluster'",
            "enableDynamicWorker",
        ),
    ),
    (
        "environment_not_text",
        '{"environment": 3}',
        ("environment is 3", "allowed: text", "leave environment out"),
    ),
    # Jobs.
    (
        "cluster_not_an_object",
        _cluster('["a:1"]'),
        ("cluster is ['a:1']", "type list", '"cluster": {"worker"'),
    ),
    (
        "unknown_job",
        _cluster('{"wroker": ["a:1", "b:1"]}'),
        (
            "unknown job 'wroker'",
            "allowed: chief (or master), worker, ps, evaluator",
            "did you mean 'worker'?",
        ),
    ),
    ("job_not_a_list", _cluster('{"worker": "a:1"}'), ("job 'worker' is 'a:1'", "type str", "with brackets")),
    (
        "job_empty",
        _cluster('{"worker": ["a:1"], "ps": []}'),
        ("job 'ps' is an empty list", "0 addresses", "leave the key"),
    ),
    (
        "job_with_a_hole",
        _cluster('{"worker": {"0": "a:1", "2": "c:1"}}'),
        ("leaves out the index 1", "[0, 2]", "name all"),
    ),
    (
        "job_by_name",
        _cluster('{"worker": {"first": "a:1"}}'),
        ("the index 'first'", "0, 1, ...", "as a list"),
    ),
    (
        "two_chiefs",
        _cluster('{"chief": ["a:1", "b:1"], "worker": ["c:1"]}'),
        (
            "2 tasks of the job 'chief'",
            "['a:1', 'b:1']; allowed: one",
            "keep one chief",
        ),
    ),
    (
        "chief_and_master",
        _cluster('{"chief": ["a:1"], "master": ["b:1"], "worker": ["c:1"]}'),
        (
            "a chief and a master",
            "chief ['a:1'] and master ['b:1']",
            "keep chief",
        ),
    ),
    (
        "two_evaluators",
        _cluster('{"worker": ["a:1"], "evaluator": ["b:1", "c:1"]}'),
        (
            "2 tasks of the job 'evaluator'",
            "allowed: one",
            "keep one evaluator",
        ),
    ),
    (
        "only_ps",
        _cluster('{"ps": ["a:1"]}', '{"type": "ps", "index": 0}'),
        ("no task that trains", "only ps", "add"),
    ),
    ("only_evaluator", _cluster('{"evaluator": ["a:1"]}'), ("no task that trains", "only evaluator", "add")),
    # Addresses.
    (
        "no_port",
        _two('"b:1"', '"b"'),
        ("worker:1 has the address 'b', which has no port", '"host:port"', '"b:2222"'),
    ),
    (
        "port_not_a_number",
        _two('"b:1"', '"b:http"'),
        ("worker:1", "port 'http'", "1 to 65535", "write the port"),
    ),
    ("port_zero", _two('"b:1"', '"b:0"'), ("port '0' cannot be one", "from 1 to 65535", "0 (any)")),
    (
        "port_too_large",
        _two('"b:1"', '"b:65536"'),
        ("port '65536' cannot be one", "from 1 to 65535", "write the port"),
    ),
    ("no_host", _two('"b:1"', '":1"'), ("whose host '' cannot be one", "a host name", "node-1:2222")),
    ("scheme", _two('"b:1"', '"grpc://b:1"'), ("begins with a scheme", '"host:port" alone', "write 'b:1'")),
    ("bare_ipv6", _two('"b:1"', '"fd00::2:2222"'), ("more than one colon", "in brackets", '"[::1]:2222"')),
    (
        "address_not_text",
        _two('"b:1"', "2222"),
        ("the address 2222, which is not text", "type int", "in quotes"),
    ),
    (
        "same_address",
        _two('"b:1"', '"a:1"'),
        ("worker:0 and worker:1 have the same address 'a:1'", "one port", "give worker:1"),
    ),
    (
        "same_address_in_two_jobs",
        _cluster('{"worker": ["a:1"], "ps": ["A:1"]}'),
        (
            "worker:0 and ps:0 have the same address",
            "an address of its own",
            "give ps:0",
        ),
    ),
    # The task.
    (
        "no_task",
        '{"cluster": {"worker": ["a:1", "b:1"]}}',
        (
            "there is a cluster, but no task",
            "no task, in a cluster of worker:0 to worker:1",
            "say which",
        ),
    ),
    (
        "task_not_an_object",
        _cluster('{"worker": ["a:1"]}', '"worker:0"'),
        ("task is 'worker:0'", "type str", '"task": {'),
    ),
    (
        "task_without_type",
        _cluster('{"worker": ["a:1", "b:1"]}', '{"index": 1}'),
        (
            "the task has no type",
            "{'index': 1}",
            "say which of them this process is",
        ),
    ),
    (
        "unknown_task_type",
        _two('"type": "worker"', '"type": "wroker"'),
        (
            "unknown task type 'wroker'",
            "allowed: chief",
            "did you mean 'worker'?",
        ),
    ),
    (
        "type_not_in_cluster",
        _two('"type": "worker"', '"type": "ps"'),
        (
            "the task type 'ps' is not a job of the cluster",
            "worker:0 to worker:1",
            "correct the task's type",
        ),
    ),
    (
        "index_too_large",
        _two('"index": 0', '"index": 2'),
        (
            "the task index 2 is out of range for the task type 'worker'",
            "has 2 of this type; allowed: 0 to 1",
            "from 0",
        ),
    ),
    (
        "index_negative",
        _two('"index": 0', '"index": -1'),
        ("the task index -1 is out of range", "0 to 1", "from 0"),
    ),
    (
        "index_not_a_number",
        _two('"index": 0', '"index": "first"'),
        ("'first' is not a whole number", "0 to 1", "own index"),
    ),
    (
        "index_is_a_fraction",
        _two('"index": 0', '"index": 0.5'),
        ("0.5 is not a whole number", "0 to 1", "own index"),
    ),
    (
        "index_is_true",
        _two('"index": 0', '"index": true'),
        ("True is not a whole number", "0 to 1", "own index"),
    ),
    (
        "index_missing",
        _two(', "index": 0', ""),
        ("the task has no index", "'worker'; allowed: 0 to 1", "own index"),
    ),
    (
        "second_evaluator",
        _cluster('{"worker": ["a:1"]}', '{"type": "evaluator", "index": 1}'),
        (
            "the task index 1 is out of range for the task type 'evaluator'",
            "one evaluator",
            "the index 0",
        ),
    ),
    (
        "second_master",
        _cluster('{"master": ["a:1"], "worker": ["b:1"]}', '{"type": "master", "index": 1}'),
        (
            "the task index 1 is out of range for the task type 'master'",
            "one master",
            "the index 0",
        ),
    ),
    (
        "ps_without_cluster",
        '{"task": {"type": "ps", "index": 0}}',
        (
            "the task is a ps, and there is no cluster",
            "allowed: chief, worker, evaluator",
            "name the cluster's addresses",
        ),
    ),
    (
        "worker_1_without_cluster",
        '{"task": {"type": "worker", "index": 1}}',
        ("the task index 1 is out of range", "allowed: 0", "add"),
    ),
]

CASES = [BadCase(f"job-{name}", "job", text, fragments) for name, text, fragments in _JOBS]
CASES += [BadCase(f"tf_config-{name}", "tf_config", text, fragments) for name, text, fragments in _TF_CONFIGS]
