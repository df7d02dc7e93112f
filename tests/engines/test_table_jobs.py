"""Tables from a file as it is to a model that answers: `new`, `launch` on two workers, and plain TensorFlow."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline.engines.jobs.build import build
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.job import load_job, make_job
from estimator_pipeline.models.features.table import TableFeatures
from tests.support.command_line import call
from tests.support.tables import ANSWER, TABLES, write_table


@pytest.fixture
def environ(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def new(tmp_path, name, environ, *options):
    """The job file that `new` writes for a table."""
    write_table(name, tmp_path / f"{name}.csv")
    done = call("new", f"{name}.csv", "--label", TABLES[name][2], *options, cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    return tmp_path / f"{name}.yaml"


def answers(run_python, model_dir, table, label):
    done = run_python(["-c", ANSWER, model_dir / "export" / "final", table, label])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


ENGINES = [
    pytest.param(table, engine, id=f"{table}-{engine}", marks=[pytest.mark.keras_3] * (engine == "keras3"))
    for table in TABLES
    for engine in ("estimator", "keras", "keras3")
]


@pytest.mark.cluster
@pytest.mark.gate("churn-estimator", "titanic-keras3")
@pytest.mark.parametrize(("name", "engine"), ENGINES)
def test_a_table_on_two_workers_is_exported_and_answers(tmp_path, run_python, environ, name, engine):
    """It takes the columns of the file; its answers for the file are good."""
    new(tmp_path, name, environ)
    settings = ["run.engine=" + engine, "train.max_steps=400", "model.optimizer.learning_rate=0.02"]
    settings += ["run.save_checkpoints_steps=400"]
    options = [word for setting in settings for word in ("--set", setting)]
    command = ["-m", "estimator_pipeline", "launch", f"{name}.yaml", *options]
    done = run_python(command, environ, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    model_dir = tmp_path / "runs" / name
    features = TableFeatures.loads((model_dir / "features.json").read_text(encoding="utf-8"))
    answered = answers(run_python, model_dir, tmp_path / f"{name}.csv", TABLES[name][2])
    assert answered.pop("inputs") == sorted(column.replace(" ", "_") for column in features.raw)
    metric, is_good = TABLES[name][3:]
    assert is_good(answered[metric]), answered


@pytest.mark.tf
def test_a_run_keeps_its_features_and_refuses_others(tmp_path, run_python, environ, monkeypatch):
    """With more data a resumed run has the statistics of its beginning; other features are another run."""
    new(tmp_path, "churn", environ, "--workers", "1")
    job = ["-m", "estimator_pipeline", "train", "churn.yaml", "--set", "run.save_checkpoints_steps=5"]

    def train(steps, *options):
        return run_python([*job, "--set", f"train.max_steps={steps}", *options], environ, cwd=tmp_path)

    assert train(5).returncode == 0
    kept = (tmp_path / "runs/churn/features.json").read_text(encoding="utf-8")
    write_table("churn", tmp_path / "churn.csv", records=700)
    done = train(10)
    assert done.returncode == 2 and "model-dir/other-run" in done.stderr, done.stderr
    done = train(10, "--accept-changes")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/churn/features.json").read_text(encoding="utf-8") == kept
    rows = (tmp_path / "churn.csv").read_text(encoding="utf-8").split("\n", 1)
    (tmp_path / "churn.csv").write_text(f"{rows[0]}\nC1,new,20,basic,text,no\n{rows[1]}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=r"(?s)'tenure'.*line 2: 'new'"):
        _ = build(load_job("churn.yaml")).data
    (tmp_path / "churn.csv").write_text("\n".join(rows), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"(?s)the features are not those with which this run began.*plan"):
        _ = build(load_job("churn.yaml", overrides=["model.features.plan=ignored"])).data


@pytest.mark.tf
def test_balanced_class_weights(tmp_path, monkeypatch):
    """They are those of scikit-learn: records / (classes * records of the class)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "t.csv").write_text(
        "x,y,k\n" + "".join(f"{i % 7},{'no' if i % 4 else 'yes'},{i % 3}\n" for i in range(84))
    )
    job = {
        "model": {"name": "linear", "class_weights": "balanced", "loss": "sparse_categorical_crossentropy"},
        "input": {"source": "csv", "train": str(tmp_path / "t.csv"), "eval": str(tmp_path / "t.csv"),
                  "global_batch_size": 8},
        "run": {"model_dir": str(tmp_path / "model")},
    }  # fmt: skip
    for label, vocabulary, weights in (("y", ["no", "yes"], [2 / 3, 2.0]), ("k", [], [1.0, 1.0, 1.0])):
        job["input"]["label_key"], job["model"]["label_vocabulary"] = label, vocabulary
        options = build(make_job(job)).model_options
        assert options["class_weights"] == pytest.approx(weights)
    job["input"]["columns"] = {"x": "float32", "k": "int64"}
    with pytest.raises(ConfigError, match="the number of records of each class is not known"):
        make_job(job)


def canned(tmp_path, name, **model):
    """A job for a canned Estimator: of classes, or of a number."""
    table = "churn" if name.endswith("Classifier") else "price"
    model |= {"label_vocabulary": ["no", "yes"]} if table == "churn" else {}
    return {
        "model": {"estimator": name, **model},
        "input": {"source": "csv", "train": str(tmp_path / "t.csv"), "eval_fraction": 0.2, "global_batch_size": 32,
                  "label_key": TABLES[table][2]},
        "train": {"max_steps": 2},
        "run": {"model_dir": str(tmp_path / "model")},
    }  # fmt: skip


@pytest.mark.tf
@pytest.mark.gate("DNNLinearCombinedClassifier", "LinearRegressor")
@pytest.mark.parametrize(
    "name", [f"{kind}{use}" for kind in ("Linear", "DNN", "DNNLinearCombined") for use in ("Classifier", "Regressor")]
)
def test_a_canned_estimator_takes_the_columns(tmp_path, monkeypatch, name):
    """Its feature columns are the numbers and ids of the table, with a weight or an embedding each."""
    from estimator_pipeline import compat

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table, text = ("churn", "plan") if name.endswith("Classifier") else ("price", "town")
    write_table(table, tmp_path / "t.csv")
    params = {"embedding_dim": 3} if "DNN" in name else {}
    if "Combined" in name:
        params |= {"dnn_hidden_units": [4], "dnn_optimizer": {"name": "adam", "learning_rate": 0.1}}
    features = {text: {"kind": "categorical", "vocabulary": ["basic", "Oslo"]}}
    job = make_job(canned(tmp_path, name, params=params, features=features))
    assert make_job(job.model_dump(mode="json", exclude_unset=True)).model == job.model
    result = run_job(job, environ={})
    assert result.metrics["global_step"] == 2 and ("auc" in result.metrics) == (table == "churn")
    shapes = dict(compat.tensorflow().train.list_variables(str(tmp_path / "model")))
    if "DNN" in name:
        assert [3, 3] in [shape for key, shape in shapes.items() if f"{text}_embedding" in key], shapes
    if "Linear" in name:
        assert [3, 1] in [shape for key, shape in shapes.items() if f"/{text}/" in key], shapes


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["model.name=dnn"], "the model is set both by name and by estimator"),
        (["model.loss=mse"], "model.loss: this is fixed in a canned Estimator"),
        (["model.optimizer.name=adam"], "model.optimizer: this is fixed in a canned Estimator"),
        (["run.engine=keras"], "Keras does not train a canned Estimator"),
        (["input.weight_key=w"], "takes a single label, without weights"),
        (["input.columns={tenure: float32, churned: string}"], "follow from the features of a table"),
        (["model.estimator=BaselineClassifier"], "model.estimator"),
        (["model.params={hidden_unit: [4]}"], "model.params.hidden_unit: DNNClassifier has no such parameter"),
    ],
)
def test_a_canned_estimator_that_is_refused(tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        make_job(canned(tmp_path, "DNNClassifier"), overrides=settings)


@pytest.mark.tf
def test_declared_features_reach_a_function(tmp_path, run_python, environ):
    """Layers get the names and the numbers of ids; ranges, combinations, a hash and a vocabulary in a file."""
    write_table("churn", tmp_path / "churn.csv")
    (tmp_path / "plans.txt").write_text("basic\nplus\n")
    (tmp_path / "layers.py").write_text(
        "import tensorflow as tf\n"
        "def layers(params):\n"
        "    keras = tf.keras\n"
        "    assert params['numeric'] == ['tenure', 'monthly_charges'], params\n"
        "    assert params['categorical'] == {'plan': 4, 'group': 3, 'both': 10, 'customer_id': 7}, params\n"
        "    inputs = {name: keras.Input((1,), name=name) for name in params['numeric']}\n"
        "    parts = list(inputs.values())\n"
        "    for name, ids in params['categorical'].items():\n"
        "        inputs[name] = keras.Input((1,), dtype='int64', name=name)\n"
        "        parts.append(keras.layers.Flatten()(keras.layers.Embedding(ids, 2)(inputs[name])))\n"
        "    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))\n"
    )
    (tmp_path / "job.yaml").write_text(
        """
model:
  function: layers.py:layers
  loss: binary_crossentropy
  label_vocabulary: ["no", "yes"]
  features:
    tenure: {kind: numeric, normalize: log, missing: mean}
    monthly charges: {kind: numeric, normalize: min_max, missing: 10}
    plan: {kind: categorical, vocabulary: plans.txt, oov_buckets: 2}
    group: {kind: bucketized, source: tenure, boundaries: [10, 40]}
    both: {kind: crossed, sources: [plan, group], hash_buckets: 10}
    customer id: {kind: categorical, hash_buckets: 7}
    note: ignored
input: {source: csv, train: churn.csv, eval_fraction: 0.2, label_key: churned, global_batch_size: 20}
train: {max_steps: 3}
eval: {exporters: [{kind: final}]}
run: {model_dir: model}
"""
    )
    done = run_python(["-m", "estimator_pipeline", "train", "job.yaml"], environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answered = answers(run_python, tmp_path / "model", tmp_path / "churn.csv", "churned")
    assert answered["inputs"] == ["customer_id", "monthly_charges", "plan", "tenure"]


def test_what_new_writes(tmp_path, environ):
    """It is a job file with a table of the columns."""
    job = load_job(new(tmp_path, "churn", environ))
    assert (job.model.loss, job.model.label_vocabulary) == ("binary_crossentropy", ["no", "yes"])
    assert (job.cluster.workers, job.cluster.evaluator, job.input.eval_fraction) == (2, True, 0.2)
    text = (tmp_path / "churn.yaml").read_text()
    assert '# auc and probabilities are those of "yes"' in text
    assert "#  customer id      key" in text and "#  plan             categorical  3 values: " in text
    for name, loss in (("classes", "sparse_categorical_crossentropy"), ("price", "mean_squared_error")):
        assert load_job(new(tmp_path, name, environ, "--workers", "1")).model.loss == loss
    assert load_job(tmp_path / "price.yaml").run.train_distribute == "none"


@pytest.mark.tf
def test_whole_numbers_are_predicted_as_numbers(tmp_path, run_python, environ):
    rows = "".join(f"{i % 97},{'ab'[i % 2]},{(i % 97) * 3 + 100 * (i % 2)}\n" for i in range(400))
    (tmp_path / "t.csv").write_text("x,w,price\n" + rows)
    done = call("new", "t.csv", "--label", "price", "--workers", "1", cwd=tmp_path, env=environ)
    assert done.returncode == 0 and "price  label        0 to 388" in done.stdout, done.stdout + done.stderr
    assert load_job(tmp_path / "t.yaml").model.loss == "mean_squared_error"
    command = ["-m", "estimator_pipeline", "train", "t.yaml", "--set", "train.max_steps=5"]
    done = run_python(command, environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_other_notations_are_found(tmp_path, environ):
    text = "größe;stadt;preis\n" + "".join(f"{i % 7},5;{'Köln' if i % 2 else 'Bonn'};{i % 3}\n" for i in range(60))
    (tmp_path / "häuser.csv").write_bytes(text.replace(",", ".").encode("cp1252"))
    done = call("new", "häuser.csv", "--label", "preis", "--output", "job.yaml", cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    job = load_job(tmp_path / "job.yaml")
    assert (job.input.delimiter, job.input.encoding) == (";", "cp1252")
    assert job.model.loss == "sparse_categorical_crossentropy" and not job.model.label_vocabulary


# Arguments of `new`, the error.
REFUSED = {
    "no label": (["t.csv"], "the column to predict is not given [argument/missing]\n  found: columns: a, b, yes\n"),
    "a label that is not there": (["t.csv", "--label", "yess"], "did you mean --label 'yes'?"),
    "a label with one value": (["t.csv", "--label", "b"], "the label 'b' has one value only"),
    "no file": (["none.csv", "--label", "b"], "none.csv: nothing there"),
    "a job file that exists": (["t.csv", "--label", "yes", "--output", "there.yaml"], "there.yaml exists already"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_new_refuses(tmp_path, environ, case):
    arguments, words = REFUSED[case]
    (tmp_path / "t.csv").write_text("a,b,yes\n" + "".join(f"{i},x,{i % 2}\n" for i in range(60)))
    (tmp_path / "there.yaml").write_text("mine\n")
    done = call("new", *arguments, cwd=tmp_path, env=environ)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert (tmp_path / "there.yaml").read_text() == "mine\n" and not (tmp_path / "t.yaml").exists()


@pytest.mark.nightly
@pytest.mark.cluster
def test_engines_agree_on_a_table(tmp_path, run_python, environ):
    """Estimator and Keras, two workers each: the same bits, also of the answers of the exports."""
    new(tmp_path, "churn", environ)
    done = run_python(["-m", "estimator_pipeline", "parity", "churn.yaml", "--steps", "5"], environ, cwd=tmp_path)
    assert done.returncode == 0 and "equal: 5 steps" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("bit-equal") >= 6, done.stdout
