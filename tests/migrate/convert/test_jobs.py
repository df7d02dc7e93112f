"""What a program does around its model: input functions, branches, flags, settings."""

from __future__ import annotations

import pytest

from tests.migrate.convert.programs import program

MAIN = '    estimator = tf.estimator.Estimator(model_fn, params={"rate": 0.1})\n'
TRAIN = "    estimator.train(input_fn, steps=4)\n    print(estimator.evaluate(input_fn, steps=2))\n"
INPUT_FN = (
    'def input_fn():\n    return tf.data.Dataset.from_tensor_slices(({"x": [[1.0, 2.0]]}, [1])).repeat().batch(2)\n'
)


def job(lines: str, *, config: str = "", input_fn: str = INPUT_FN, before: str = "") -> str:
    """Return the program with these statements in `main`, and with `before` at the top level."""
    text = program()
    estimator = MAIN.replace('{"rate": 0.1})', f'{{"rate": 0.1}}{config})')
    assert MAIN + TRAIN in text and INPUT_FN in text
    body = "".join(f"    {line}\n" if line else "\n" for line in lines.rstrip("\n").split("\n"))
    text = text.replace(MAIN + TRAIN, body.replace("    <ESTIMATOR>\n", estimator)).replace(INPUT_FN, input_fn)
    return text.replace("\n\ndef model_fn", f"{before}\n\ndef model_fn", 1)


INPUTS = [
    # The argument of train -> what fit takes, and the input function.
    ("input_fn", "def input_fn():\n    return {'x': tf.constant([[1.0, 2.0]])}, tf.constant([1])\n",
     "input_fn()", "tf.data.Dataset.from_tensors(({'x': tf.constant([[1.0, 2.0]])}, tf.constant([1]))).repeat()"),
    ("input_fn", "def input_fn():\n    x = np.ones([1, 2])\n    return {'x': x}, [1]\n", "input_fn()",
     "return tf.data.Dataset.from_tensors(({'x': x}, [1])).repeat()"),
    ("make(2)", "def make(n):\n    def input_fn(params):\n        return DATA.batch(n)\n\n    return input_fn\n",
     "make(2)(params={\"rate\": 0.1})", "        return DATA.batch(n)"),
    ("make(2)", "def make(n):\n    return lambda: DATA.batch(n).make_one_shot_iterator().get_next()\n", "make(2)()",
     "    return lambda: DATA.batch(n)\n"),
    ("make(1)", "def make(t):\n    if t:\n        return one\n    return second\n\n\ndef one():\n    return DATA\n"
     "\n\ndef second():\n    return DATA.make_one_shot_iterator().get_next()\n", "make(1)()",
     "def second():\n    return DATA\n"),
    ("functools.partial(input_fn, 2)", "def input_fn(n):\n    return DATA.batch(n)\n", "input_fn(2)", "DATA.batch(n)"),
    ("read", "def input_fn(n, params):\n    return DATA.batch(n)\n\n\nread = functools.partial(input_fn, 2)\n",
     "read(params={\"rate\": 0.1})", "DATA.batch(n)"),
    ("Data().read", "class Data:\n    def read(self):\n        return DATA\n", "Data().read()", "    def read(self):"),
    ("Data(3)", "class Data:\n    def __init__(self, n):\n        self.n = n\n\n    def __call__(self, mode):\n"
     "        return DATA.batch(self.n)\n", "Data(3)(mode='train')", "return DATA.batch(self.n)"),
    ("input_fn", "def input_fn():\n    return tensors(DATA)\n\n\ndef tensors(data):\n"
     "    return data.make_one_shot_iterator().get_next()\n", "input_fn()", "def tensors(data):\n    return data\n"),
]  # fmt: skip
DATA = (
    'import functools\n\nimport numpy as np\n\nDATA = tf.data.Dataset.from_tensor_slices(({"x": [[1.0, 2.0]]}, [1]))\n'
)


@pytest.mark.parametrize(("argument", "function", "called", "written"), INPUTS)
def test_an_input_function(convert_text, argument, function, called, written):
    text = job(f"<ESTIMATOR>\nestimator.train({argument}, steps=4)", input_fn=function, before=DATA)
    file = convert_text(text)
    assert f"training = {called}\n" in file.after and written in file.after, file.kept_as_estimator or file.after


def test_an_input_function_of_an_estimator_without_params(convert_text):
    """It is passed an empty dict."""
    before = f"{DATA}\n\ndef read(params=None):\n    return DATA\n"
    text = job(f"{MAIN.strip()}\nestimator.train(read, steps=4)", before=before).replace(', params={"rate": 0.1})', ")")
    text = text.replace("mode, params)", "mode)").replace('params["rate"]', "0.1")
    assert "    training = read(params={})\n" in convert_text(text).after, convert_text(text).kept_as_estimator


def test_a_function_that_is_passed_on(convert_text):
    before = f"{DATA}\n\ndef run(read):\n{MAIN}    estimator.train(read, steps=4)\n"
    file = convert_text(job("run(input_fn)", before=before))
    assert "    training = read()\n" in file.after, file.kept_as_estimator


ARRAYS = [
    ('tf.estimator.inputs.numpy_input_fn({"x": x}, y, batch_size=2, num_epochs=None, shuffle=True, queue_capacity=9)',
     'numpy_input_fn(x={"x": x}, y=y, batch_size=2, num_epochs=None, shuffle=True)'),
    ("tf.estimator.inputs.pandas_input_fn(x=x, y=y, shuffle=False)", "pandas_input_fn(x=x, y=y, shuffle=False)"),
    ('tf.estimator.inputs.numpy_input_fn({"x": tf.to_float(x)}, y, shuffle=False)',
     'numpy_input_fn(x={"x": tf.cast(x, tf.float32)}, y=y, shuffle=False)'),
    ('tf.estimator.inputs.numpy_input_fn({"x": tf.expand_dims(x, dim=1)}, y, shuffle=False)',
     'numpy_input_fn(x={"x": tf.expand_dims(x, 1)}, y=y, shuffle=False)'),
]  # fmt: skip


@pytest.mark.parametrize(("call", "written"), ARRAYS)
def test_arrays(convert_text, call, written):
    text = job(f"x, y = load()\nread = {call}\n<ESTIMATOR>\nestimator.train(input_fn=read, steps=4)")
    file = convert_text(text.replace("def main", "def load():\n    return [], []\n\n\ndef main"))
    assert f"    read = {written}\n" in file.after and "training = read()" in file.after, file.kept_as_estimator
    assert "def numpy_input_fn(x, y=None, *" in file.after


BRANCHES = """\
<ESTIMATOR>
if MODE == "train":
    read = input_fn
    estimator.train(read, max_steps=4)
elif MODE == "eval":
    data = input_fn
    for name in ("a", "b"):
        print(estimator.evaluate(data, steps=2, name=name))
for row in estimator.predict(input_fn, predict_keys=["logits"]):
    print(row)"""


def test_branches_restore_the_model(convert_text):
    text = convert_text(job(BRANCHES, config=', model_dir="runs"', before="MODE = 'eval'\n")).after
    main = text[text.index("def main") :]
    assert (
        main.count("model = make_model(") == 3 and main.count('    restore(model, os.path.join("runs", "keras"))') == 2
    )
    assert main.index("save = checkpoints(") < main.index("model.fit(") < main.index("elif") < main.index("restore(")
    assert "        keras_data = data()\n" in main and "for name in (" in main
    assert 'for row in predict(model, keras_data, make_predictions, ["logits"]):' in main


CHECKS = [
    ("print(estimator.evaluate(input_fn, steps=2))\nestimator.train(input_fn, steps=4)", ', model_dir="runs"', True),
    ("if READY:\n    estimator.train(input_fn, steps=4)\nprint(estimator.evaluate(input_fn, steps=2))", "", True),
    ("for _ in range(3):\n    estimator.train(input_fn, steps=4)\n    print(estimator.evaluate(input_fn, steps=2))",
     ', model_dir="runs"', False),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "config", "checked"), CHECKS)
def test_an_evaluation_that_may_come_before_training(convert_text, lines, config, checked):
    file = convert_text(job(f"<ESTIMATOR>\n{lines}", config=config, before="READY = False\n"))
    assert ("    check_trained(model)\n" in file.after) == checked, file.kept_as_estimator
    assert file.after.count("model = make_model(") == 1


def test_settings_of_sessions_and_hooks_are_comments(convert_text):
    lines = (
        "session = tf.ConfigProto(allow_soft_placement=True)\nsession.gpu_options.allow_growth = True\n"
        "config = tf.estimator.RunConfig().replace(session_config=session, save_summary_steps=7)\n"
        "hooks = [tf.train.LoggingTensorHook(['loss'], 5)]\n<ESTIMATOR>\nestimator.train(input_fn, hooks, steps=4)"
    )
    text = convert_text(job(lines, config=", config=config")).after
    main = text[text.index("def main") :]
    assert main.startswith("def main():\n    # Without a counterpart in fit:\n")
    for line in (
        "session_config=session",
        "save_summary_steps=7",
        "session.gpu_options.allow_growth = True",
        "hooks=[",
    ):
        assert f"    #     {line}" in main
    assert "ConfigProto" not in "".join(line.partition("#")[0] for line in main.splitlines())


def test_training_to_the_end_of_the_data(convert_text):
    lines = (
        "<ESTIMATOR>\ntf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(input_fn), "
        "tf.estimator.EvalSpec(input_fn))"
    )
    file = convert_text(job(lines))
    written = "model.fit(training, callbacks=[CountSteps()], validation_data=input_fn().take(100), verbose=2)"
    assert written in file.after, file.kept_as_estimator


def test_writers_of_events_have_no_counterpart(convert_text):
    file = convert_text(job("tf.summary.FileWriterCache.clear()  # x\n<ESTIMATOR>\nestimator.train(input_fn, steps=4)"))
    assert "    # Without a counterpart in fit: tf.compat.v1.summary.FileWriterCache.clear()\n" in file.after, (
        file.kept_as_estimator
    )
    assert "# x\n" in file.after


def test_names_of_tensorflow_1_in_a_function_of_a_library(convert_text):
    text = job("<ESTIMATOR>\nestimator.train(input_fn, steps=4)\nprint(tf.Session())")
    for library in (text, text.partition("\n\n\nif __name__")[0]):
        assert "tf.Session" in convert_text(library).kept_as_estimator


SERVING = "    return tf.estimator.export.ServingInputReceiver(features, inputs)\n"
RECEIVERS = [
    # The function, what it becomes, and the last arguments of `export`.
    ("def serve():\n    inputs = {'x': tf.placeholder(tf.float32, [None, 2])}\n"
     + SERVING.replace("features", "inputs"),
     "def serve():\n    inputs = {'x': tf.TensorSpec([None, 2], tf.float32)}\n    return inputs\n", "serve()"),
    ("def serve():\n    inputs = {'a': tf.placeholder(shape=[None], dtype=tf.float32)}\n    # of both\n"
     "    features = {'x': tf.stack([inputs['a'], inputs['a']], 1)}\n" + SERVING,
     "    inputs = {'a': tf.TensorSpec([None], tf.float32)}\n    # of both\n\n    def features_of(inputs):\n"
     "        features = {'x': tf.stack([inputs['a'], inputs['a']], 1)}\n        return features\n\n"
     "    return inputs, features_of\n", "*serve()"),
    ("def serve():\n    x = tf.placeholder(tf.float32, [None, 2])\n    return tf.estimator.export.ServingInputReceiver("
     "{'x': x}, x)\n", "    x = tf.TensorSpec([None, 2], tf.float32)\n\n    def features_of(tensors):\n"
     "        x = tensors[\"input\"]\n        return {'x': x}\n\n    return {\"input\": x}, features_of\n", "*serve()"),
    ("def serve():\n    x = tf.placeholder(tf.float32, [None, 2])\n    return tf.estimator.export.ServingInputReceiver("
     "{'x': x}, {'i': x})\n", "        x = tensors['i']\n        return {'x': x}\n\n    return {'i': x}, features_of\n",
     "*serve()"),
    ("SPECS = {'x': tf.placeholder(tf.float32, [None, 2])}\n"
     "serve = tf.estimator.export.build_raw_serving_input_receiver_fn(SPECS)\n",
     "SPECS = {'x': tf.TensorSpec([None, 2], tf.float32)}\n\n\ndef", "SPECS"),
    ("serve = tf.estimator.export.build_parsing_serving_input_receiver_fn(\n"
     "    {'x': tf.FixedLenFeature([2], tf.float32)})\n",
     "lambda tensors: tf.io.parse_example(tensors[\"examples\"], {'x': tf.io.FixedLenFeature([2], tf.float32)}),\n",
     "{\"examples\": tf.TensorSpec([None], tf.string)}"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "written", "receivers"), RECEIVERS)
def test_an_export(convert_text, function, written, receivers):
    lines = "<ESTIMATOR>\nestimator.train(input_fn, steps=4)\nestimator.export_saved_model('exports', serve)"
    file = convert_text(job(lines, input_fn=f"{INPUT_FN}\n\n{function}"))
    assert written in file.after, file.kept_as_estimator or file.after
    flat = " ".join(file.after.split()).replace("( ", "(").replace(", )", ")")
    assert f"export(model, make_predictions, 'exports', {receivers}" in flat, file.after


def test_the_names_of_an_export(convert_text):
    lines = "<ESTIMATOR>\nestimator.train(input_fn, steps=4)\nestimator.export_saved_model('exports', serve)"
    text = job(lines, input_fn=f"{INPUT_FN}\n\n{RECEIVERS[0][0]}")
    outputs = "tf.estimator.export.PredictOutput({'logits': logits})"
    text = text.replace('{"logits": logits})', "{'logits': logits}, export_outputs={'scores': " + outputs + "})")
    file = convert_text(text)
    assert "serve(), other_names=['scores'])\n" in file.after, file.kept_as_estimator or file.after
    assert "names are not known" in convert_text(text.replace("{'scores'", "{NAME")).kept_as_estimator


def test_exporters(convert_text):
    lines = (
        "<ESTIMATOR>\nlatest = tf.estimator.LatestExporter('latest', serve)\nspec = tf.estimator.EvalSpec(input_fn, "
        "exporters=[latest])\ntf.estimator.train_and_evaluate(\n    estimator, "
        "tf.estimator.TrainSpec(input_fn, max_steps=4), spec)"
    )
    text = job(lines, config=", model_dir='runs'", input_fn=f"{INPUT_FN}\n\n{RECEIVERS[0][0]}")
    written = "    export(model, make_predictions, os.path.join('runs', \"export\", 'latest'), serve())\n"
    assert written in convert_text(text).after, convert_text(text).kept_as_estimator
    for result, kept in (("result = ", True), ("result, _ = ", False)):
        file = convert_text(text.replace("tf.estimator.train_and", f"{result}tf.estimator.train_and"))
        assert ("the paths of exports" in file.kept_as_estimator) == kept and file.keras != kept
    best = text.replace("LatestExporter('latest', serve", "BestExporter(serving_input_receiver_fn=serve")
    assert 'os.path.join(\'runs\', "export", "best_exporter")' in convert_text(best).after
    keeps = convert_text(text.replace("serve)", "serve, exports_to_keep=2)", 1)).after
    assert "    # Without a counterpart in fit: exports_to_keep=2\n" in keeps
    assert "the exporter tf.estimator.Exporter" in convert_text(text.replace("Latest", "")).kept_as_estimator


FLAGS = (
    "flags = tf.app.flags\nflags.DEFINE_integer('steps', 4, docstring='steps')\nFLAGS = flags.FLAGS\n"
    "tf.flags.DEFINE_string('dir', None, 'folder')\n"
)


def flagged(text: str) -> str:
    return text.replace("def main():", "def main(_):").replace("    main()", "    tf.app.run()")


def test_flags(convert_text):
    file = convert_text(flagged(job("<ESTIMATOR>\nestimator.train(input_fn, steps=FLAGS.steps)", before=FLAGS)))
    assert "from absl import app, flags\nimport tensorflow as tf\n" in file.after, file.kept_as_estimator
    assert "flags.DEFINE_integer('steps', 4, help='steps')\nFLAGS = flags.FLAGS\n" in file.after
    assert "flags.DEFINE_string('dir', None, 'folder')" in file.after and "    app.run(main)\n" in file.after
    assert "compat" not in file.after and "flags = " not in file.after


def test_flags_beside_a_variable_of_that_name(convert_text):
    before = f"{FLAGS}\n\ndef show(flags, app):\n    print(flags, app)\n"
    text = convert_text(flagged(job("<ESTIMATOR>\nestimator.train(input_fn, steps=FLAGS.steps)", before=before))).after
    assert "from absl import app as absl_app, flags as absl_flags\n" in text
    assert "flags = absl_flags\nflags.DEFINE_integer(" in text and "absl_app.run(main)" in text


MIRRORED = "tf.estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy())"
BOTH = (
    "tf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(input_fn, 4), tf.estimator.EvalSpec(input_fn))"
)
READ = "tf.data.Dataset.from_tensor_slices(({'x': [[1.0, 2.0]]}, [1]))"
STAYS = [
    # The body of main, arguments of the Estimator, the input function and what precedes it -> the reason.
    ("<ESTIMATOR>\nestimator.evaluate(input_fn, steps=1)", "", INPUT_FN, "", "its checkpoint is of another program"),
    ("<ESTIMATOR>\nif MODE:\n    read = input_fn\n    estimator.train(read, steps=1)", "", INPUT_FN, "MODE = 1\n",
     "made in the block of its use"),
    ("<ESTIMATOR>\nfor n in (1, 2):\n    estimator.train(lambda: input_fn().batch(n), steps=1)", "", INPUT_FN, "",
     "depends on the loop"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1)\nestimator.evaluate(input_fn, checkpoint_path='x')", "", INPUT_FN,
     "", "checkpoint_path of evaluate"),
    ("<ESTIMATOR>\nestimator.train(input_fn, [Mine()], steps=1)", "", INPUT_FN, "", "hooks of train: Mine()"),
    ("hook = tf.train.StepCounterHook(5)\nprint(hook)\n<ESTIMATOR>\nestimator.train(input_fn, [hook], steps=1)", "",
     INPUT_FN, "", "a hook that is used elsewhere"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1, saving_listeners=[Mine()])", "", INPUT_FN, "",
     "saving_listeners of train"),
    ("session = tf.ConfigProto()\nprint(session)\n<ESTIMATOR>\nestimator.train(input_fn, steps=1)",
     ", config=tf.estimator.RunConfig(session_config=session)", INPUT_FN, "", "session_config that is used elsewhere"),
    ("<ESTIMATOR>\nprint(estimator.model_dir)\nestimator.train(input_fn, steps=1)", "", INPUT_FN, "",
     "model_dir of an Estimator without"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1)", "", INPUT_FN, "tf.flags.DEFINE_integer('n', 4, 'n')\n"
     "print(tf.flags.FLAGS.n)\n", "before app.run parses"),
    ("print(tf.flags.FLAGS.n)\n<ESTIMATOR>\nestimator.train(input_fn, steps=1)", "", INPUT_FN, "", "without tf.app"),
    ("<ESTIMATOR>\nestimator.train(tf.estimator.inputs.numpy_input_fn({}, shuffle=True, num_threads=4), steps=1)", "",
     INPUT_FN, "", "num_threads"),
    ("<ESTIMATOR>\nestimator.train(tf.estimator.inputs.numpy_input_fn({}), steps=1)", "", INPUT_FN, "",
     "without shuffle"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1)\nprint(estimator.export_saved_model('a', input_fn))", "",
     INPUT_FN, "", "the path of an export"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1)\nestimator.export_saved_model('a', input_fn)", "", INPUT_FN, "",
     "a serving_input_receiver_fn of more than"),
    ("<ESTIMATOR>\nestimator.train(unknown(), steps=1)", "", INPUT_FN, "", "an input_fn that is not one function"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1)", "",
     "def input_fn():\n    return {'x': tf.random.normal([1, 2])}, [1]\n", "", "returns tensors"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1)", "", f"def input_fn():\n    (x, z), y = {READ}"
     ".make_one_shot_iterator().get_next()\n    x = x + 1\n    return x, y\n", "", "tensors of an iterator"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1)", "", f"def input_fn(a=True):\n    x, y = {READ}"
     ".make_one_shot_iterator().get_next()\n    if a:\n        return x, y\n    return x\n", "", "of an iterator"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1)", "", "class Data:\n    def read(self):\n        return 1\n\n\n"
     "input_fn = Data.read\n", "", "the parameter self"),
    ("<ESTIMATOR>\nestimator.train(input_fn)", "", INPUT_FN.replace("fn()", "fn(config=None)"), "",
     "an input_fn with the parameter config"),
    ("<ESTIMATOR>\nestimator.train(input_fn)", "", INPUT_FN.replace("fn()", "fn(params)").replace(
        "    return", "    params['n'] = 2\n    return"), "", "an input_fn that changes params"),
    ("<ESTIMATOR>\nestimator.train(input_fn)", "", INPUT_FN.replace("    return", "    CALLS.append(1)\n    return"),
     "CALLS = []\n", "an input_fn that changes CALLS"),
    ("<ESTIMATOR>\nestimator.train(input_fn)", "", f"def input_fn():\n    data = {READ}\n    it = "
     "data.make_one_shot_iterator()\n    data = data.take(1)\n    return it.get_next()\n", "", "behind its iterator"),
    ("<ESTIMATOR>\ndef read():\n    return input_fn().skip(n)\nfor n in (1, 2):\n    estimator.train(read, steps=1)",
     "", INPUT_FN, "", "depends on the loop"),
    ("<ESTIMATOR>\nrows = estimator.predict(input_fn)\nestimator.train(input_fn, steps=1)\nprint(next(rows))", "",
     INPUT_FN, "", "read after a later training"),
    ("<ESTIMATOR>\nwith open('a'):\n    estimator.train(input_fn, steps=1)\nestimator.evaluate(input_fn)",
     "", INPUT_FN, "", "a try or with around some uses"),
    ("<ESTIMATOR>\nfor _ in (1, 2):\n    try:\n        estimator.train(input_fn, steps=1)\n    except ValueError:\n"
     "        pass", "", INPUT_FN, "", "a try or with around some uses"),
    ("<ESTIMATOR>\nestimator.train(input_fn, max_steps=4 if MODE else None)", ", model_dir='a'", INPUT_FN, "MODE = 1\n",
     "max_steps that may be None"),
    ("<ESTIMATOR>\nother = tf.estimator.Estimator(model_fn, 'a', params={})\nestimator.train(input_fn, steps=1)\n"
     "other.train(input_fn, steps=1)", ", model_dir='a'", INPUT_FN, "", "take turns with one folder"),
    ("folder = 'a'\n<ESTIMATOR>\nfolder = 'b'\nestimator.train(input_fn, steps=1)", ", model_dir=folder", INPUT_FN, "",
     "folder, which changes between the Estimator and its use"),
    ("folder = 'a'\nconfig = tf.estimator.RunConfig(folder)\nfolder += 'b'\n<ESTIMATOR>\nestimator.train(input_fn)",
     ", config=config", INPUT_FN, "", "folder, which changes"),
    ("<ESTIMATOR>\nfor _ in (1, 2):\n    estimator.train(input_fn, steps=1)\n    PATH.pop()",
     ", model_dir=PATH[0]", INPUT_FN, "PATH = ['a', 'b']\n", "PATH, which changes"),
    ("<ESTIMATOR>\nmove()\nestimator.train(input_fn, steps=1)", ", model_dir=PATH[0]", INPUT_FN,
     "PATH = ['a']\n\n\ndef move():\n    PATH[0] = 'b'\n", "PATH, which changes"),
    ("<ESTIMATOR>\nif MODE:\n    estimator.train(input_fn, steps=1)\nif MODE > 1:\n    estimator.evaluate(input_fn)",
     ", model_dir=tempfile.mkdtemp()", INPUT_FN, "import tempfile\nMODE = 1\n", "a call with an effect"),
    ("<ESTIMATOR>\nestimator.train(input_fn)", f", config={MIRRORED}", INPUT_FN, "", "a strategy without a number"),
    ("<ESTIMATOR>\ntf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(input_fn), tf.estimator.EvalSpec("
     "input_fn))", f", config={MIRRORED}", INPUT_FN, "", "under a strategy without a number"),
    (f"<ESTIMATOR>\nresult = {BOTH} if MODE else None", ", model_dir='a'", INPUT_FN, "MODE = 1\n",
     "train_and_evaluate in a conditional expression"),
    (f"<ESTIMATOR>\nwhile {BOTH}[0]['loss'] > 1:\n    pass", ", model_dir='a'", INPUT_FN, "",
     "comprehension or while"),
    (f"<ESTIMATOR>\n(a, _), (b, _) = {BOTH}, {BOTH}", ", model_dir='a'", INPUT_FN, "", "beside another use"),
    ("<ESTIMATOR>\nestimator.train(input_fn, max_steps=OPTIONS.n)", ", model_dir='a'", INPUT_FN, "import argparse\n"
     "PARSER = argparse.ArgumentParser()\nPARSER.add_argument('--n', type=int)\nOPTIONS = PARSER.parse_args()\n",
     "max_steps that may be None"),
    ("<ESTIMATOR>\nestimator.train(input_fn, max_steps=n)", ", model_dir='a'", INPUT_FN, "",
     "max_steps that may be None"),
    ("<ESTIMATOR>\nestimator.train(input_fn)", ", model_dir=None if MODE else 'a'", INPUT_FN, "MODE = 1\n",
     "a model_dir that may be None"),
    ("estimator: object = tf.estimator.Estimator(model_fn)\nestimator.train(input_fn)", "", INPUT_FN, "",
     "assigned with an annotation"),
    ("<ESTIMATOR>\nestimator.train(input_fn, max_steps=1)\nshutil.rmtree('a')\nestimator.train(input_fn, max_steps=1)",
     ", model_dir='a'", INPUT_FN, "import shutil\n", "a removal of files"),
    ("<ESTIMATOR>\nfor _ in (1, 2):\n    tf.gfile.DeleteRecursively('a')\n    estimator.train(input_fn, max_steps=1)",
     ", model_dir='a'", INPUT_FN, "", "a removal of files"),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=1)", ", config=settings()", INPUT_FN, "def settings():\n"
     "    return tf.estimator.RunConfig('a')\n", "a RunConfig of a function or another file"),
    ("<ESTIMATOR>\nother = name()\nestimator.train(input_fn, steps=1)", ", model_dir=name()", INPUT_FN,
     "def name(names=['a', 'b']):\n    return names.pop()\n", "a call with an effect"),
]  # fmt: skip


SERVING = """

def serving():
    x = tf.placeholder(tf.float32, [None, 2])
    return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})
"""
RUN = "config = tf.estimator.RunConfig('a', save_checkpoints_steps=5, keep_checkpoint_max={})\n"
WRITTEN = [
    # The body of main, arguments of the Estimator and what precedes it -> lines of the program.
    ("<ESTIMATOR>\nfor n in (1, 2):\n    estimator.train(input_fn, max_steps=n * 4)", "", "",
     ("initial_epoch=first_epoch(model, n * 4, n * 4)", "StopAt(n * 4, n * 4)")),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=4)\nestimator.train(input_fn, max_steps=6)", "", "",
     ("initial_epoch=first_epoch(model, 6, 6)",)),
    (RUN.format("None") + "<ESTIMATOR>\nestimator.train(input_fn, steps=4)", ", config=config", "",
     ("max_to_keep=None)\n", "    # Without a counterpart in fit: save_checkpoints_steps=5\n")),
    (RUN.format("0") + "<ESTIMATOR>\nestimator.train(input_fn, max_steps=4)", ", config=config", "",
     ("max_to_keep=None)\n", "    training = once(input_fn())\n")),
    (RUN.format("KEEP") + "<ESTIMATOR>\nestimator.train(input_fn, max_steps=4)", ", config=config", "KEEP = 0\n",
     ("max_to_keep=KEEP or None)\n",)),
    ("<ESTIMATOR>\nother = tf.estimator.Estimator(model_fn, PATH + '/b', params={})\nfor _ in (1, 2):\n"
     "    estimator.train(input_fn, steps=4)\n    other.train(input_fn, steps=4)",
     ", model_dir=PATH + '/a'", "PATH = 'a'\n",
     ("    other_model_dir = PATH + '/b'\n", "callbacks=[estimator_save,", "callbacks=[other_save,",
      'checkpoints(other, os.path.join(other_model_dir, "keras"))')),
    ("<ESTIMATOR>\ntry:\n    estimator.train(input_fn, steps=4)\nexcept ValueError:\n    print('failed')", "", "",
     ("    try:\n        training = input_fn()\n        model = make_model(",)),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=4)\nestimator.evaluate(input_fn, steps=STEPS)", "", "STEPS = None\n",
     (".take(-1 if STEPS is None else STEPS)",)),
    ("<ESTIMATOR>\nstrategy = 'mirrored'\nestimator.train(input_fn, steps=4)\nprint(strategy)", f", config={MIRRORED}",
     "", ("    keras_strategy = tf.distribute.MirroredStrategy()\n    with keras_strategy.scope():\n",)),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=4)\nestimator.evaluate(input_fn, steps=STEPS or None)", "",
     "STEPS = 0\n", (".take(-1 if (STEPS or None) is None else STEPS or None)",)),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=ROWS / 2)\nestimator.evaluate(input_fn, steps=ROWS / 4)", "",
     "ROWS = 9\n", ("steps_per_epoch=int(-(-(ROWS / 2) // 1))", ".take(int(-(-(ROWS / 4) // 1)))")),
    ("each = ROWS / 2\nconfig = tf.estimator.RunConfig('a', save_checkpoints_steps=each)\n<ESTIMATOR>\n"
     "estimator.train(input_fn, max_steps=2 * each)", ", config=config", "ROWS = 9\n",
     ("StopAt(int(-(-(2 * each) // 1)), int(-(-each // 1)))",
      "epochs=-(-int(-(-(2 * each) // 1)) // int(-(-each // 1))),")),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=4)\nshutil.rmtree('a')", ", model_dir='a'", "import shutil\n",
     ("    shutil.rmtree('a')\n",)),
    ("<ESTIMATOR>\nestimator.train(input_fn, steps=4)\nfor _ in (1, 2):\n    estimator.train(input_fn, steps=4)\n"
     "estimator.train(lambda: input_fn().batch(2), steps=5)", f", config={MIRRORED}", "",
     ("    strategy = tf.distribute.MirroredStrategy()\n",
      "    training = strategy.distribute_datasets_from_function(lambda input_context: input_fn())\n",
      "    model.fit(training, steps_per_epoch=4, verbose=2)\n    for _ in (1, 2):\n        model.fit(training, ",
      "        strategy.distribute_datasets_from_function(lambda input_context: input_fn().batch(2)),\n")),
    (f"<ESTIMATOR>\nother = tf.estimator.Estimator(model_fn, 'b', params={{}}, config={MIRRORED})\nestimator.train("
     "input_fn, steps=4)\nother.train(input_fn, steps=4)\nestimator.train(lambda: input_fn().batch(2), steps=4)",
     f", model_dir='a', config={MIRRORED}", "",
     ("    estimator_strategy = tf.distribute.", "    other_strategy = tf.distribute.",
      "        estimator_strategy.distribute_datasets_from_function(lambda input_context: input_fn().batch(2)),\n")),
    (f"<ESTIMATOR>\nother = tf.estimator.Estimator(model_fn, 'b', params={{}})\n(a, _), (b, _) = {BOTH}, "
     f"{BOTH.replace('(estimator', '(other')}", ", model_dir='a'", "",
     (" = (dict(estimator_metrics, global_step=", " []), (dict(other_metrics, global_step=")),
    ("<ESTIMATOR>\nestimator.train(lambda: input_fn(tf.keras.utils.to_categorical(y=[0, 1], num_classes=2)))", "", "",
     ("    training = input_fn(tf.keras.utils.to_categorical([0, 1], num_classes=2))\n",)),
    ("config = tf.estimator.RunConfig('a', tf_random_seed=1)\n<ESTIMATOR>\nestimator.train(input_fn, max_steps=4)\n"
     "print(config.model_dir)\nestimator = tf.estimator.Estimator(model_fn, config=config, params={'rate': 0.1})\n"
     "estimator.evaluate(input_fn, steps=1)", ", config=config", "",
     ("    print('a')\n", "    restore(estimator, os.path.join('a', \"keras\"))\n")),
    ("spec = tf.estimator.TrainSpec(input_fn, 4)\nconfig = tf.estimator.RunConfig('a')\nstop = "
     "[tf.estimator.FinalExporter('b', serving)]\nlast = tf.estimator.EvalSpec(input_fn, 1, exporters=stop)\n"
     "<ESTIMATOR>\ntf.estimator.train_and_evaluate(estimator, spec, last)", ", config=config", SERVING,
     ("main():\n    training = input_fn()\n", "export(model, make_predictions, os.path.join('a', \"export\", 'b')")),
]  # fmt: skip


def test_helpers_come_behind_the_import_of_tensorflow(convert_text):
    text = "import os\nos.environ['A'] = '1'\n\n" + job("<ESTIMATOR>\nestimator.train(input_fn, steps=4)")
    after = convert_text(text).after
    assert after.index("import tensorflow as tf") < after.index("def model_inputs(")


STOP = "tf.estimator.experimental.stop_if_no_decrease_hook(estimator, {})"
SPECS = """config = tf.estimator.RunConfig('a'{})
<ESTIMATOR>
stop = {}
train = tf.estimator.TrainSpec(input_fn, 100, hooks=[stop, tf.train.StepCounterHook(5)])
best = tf.estimator.BestExporter('best', serving)
tf.estimator.train_and_evaluate(estimator, train, tf.estimator.EvalSpec(input_fn, 1, exporters=[best]))
"""


def test_early_stopping_and_the_best_export(convert_text):
    lines = SPECS.format(", save_checkpoints_steps=10", STOP.format("'auc', 25, min_steps=30, run_every_secs=1"))
    text = convert_text(job(lines, config=", config=config", before=SERVING)).after
    assert "EarlyStopping('val_auc', mode='min', patience=-(-25 // 10), start_from_epoch=-(-30 // 10) - 1)" in text
    assert "# Without a counterpart in fit: hooks=[tf.estimator.StepCounterHook(5)]\n" in text
    assert "stop = " not in text and "_hook" not in text
    assert "ExportBest(lambda: export(model, make_predictions, os.path.join('a', \"export\", 'best'), " in text


@pytest.mark.parametrize(("lines", "reason"), [
    (SPECS.format("", STOP.format("'loss', 25")), "early stopping without save_checkpoints_steps"),
    (SPECS.format(", save_checkpoints_steps=10", STOP.format("'loss', 25, eval_dir='e'")), "eval_dir of stop_if_no"),
    (f"<ESTIMATOR>\nestimator.train(input_fn, [{STOP.format('9')}], 5)", "stop_if_no_decrease_hook without max_steps"),
    (f"<ESTIMATOR>\nestimator.train(input_fn, [{STOP.format('1, 9')}], 5)", "early stopping of train, which"),
    ("strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()\n" + SPECS.format(
        ", save_checkpoints_steps=10, train_distribute=strategy", STOP.format("'loss', 9")), "an export of several"),
    (SPECS.replace("'best', ", "compare_fn=max, serving_input_receiver_fn=").format(
        ", save_checkpoints_steps=10", STOP.format("'loss', 25")), "compare_fn of BestExporter"),
])  # fmt: skip
def test_early_stopping_that_stays(convert_text, lines, reason):
    file = convert_text(job(lines, config=", config=config" if "RunConfig" in lines else "", before=SERVING))
    assert reason in file.kept_as_estimator, file.after


@pytest.mark.parametrize(("lines", "config", "before", "written"), WRITTEN)
def test_a_job_that_is_written(convert_text, lines, config, before, written):
    file = convert_text(job(lines, config=config, before=before))
    assert all(text in file.after for text in written), file.kept_as_estimator or file.after


@pytest.mark.parametrize(("lines", "config", "function", "before", "reason"), STAYS)
def test_a_job_that_stays(convert_text, lines, config, function, before, reason):
    text = job(lines, config=config, input_fn=function, before=before)
    file = convert_text(text.replace("def main():", "def main(n=None):") if "=n)" in lines else text)
    assert reason in file.kept_as_estimator, file.after


SHOW = "def show(model, read, name='all'):\n    print(name, model.evaluate(input_fn=read, steps=2)['loss'])\n"
TRAINED = "<ESTIMATOR>\nestimator.train(input_fn, steps=4)\n"


def test_functions_that_are_passed_the_estimator(convert_text):
    """Their parameter is the model; two Estimators may be passed, unless the function would be another for each."""
    file = convert_text(job(f"{TRAINED}show(estimator, input_fn)\nshow(read=input_fn, model=estimator)", before=SHOW))
    assert "    show(model, input_fn)\n    show(read=input_fn, model=model)\n" in file.after, file.kept_as_estimator
    assert "print(name, dict(model.evaluate(read().take(2), return_dict=True, verbose=0), global_step=" in file.after
    other = "other = tf.estimator.Estimator(model_fn, 'b', params={'rate': 1})\nother.train(input_fn, max_steps=4)\n"
    lines = f"{TRAINED}show(estimator, input_fn)\n{other}show(other, input_fn)"
    file = convert_text(job(lines, before=SHOW))
    assert "    show(estimator, input_fn)\n" in file.after, file.kept_as_estimator
    assert "    show(other, input_fn)\n" in file.after and file.after.count("model.evaluate(") == 1
    file = convert_text(job(lines, before=SHOW, input_fn=INPUT_FN.replace("input_fn(", "input_fn(params")))
    assert "a function that uses several Estimators in different ways" in file.kept_as_estimator


FUNCTIONS = [
    (SHOW.replace("evaluate", "train"), "show(estimator, input_fn)", "used in another way"),
    (SHOW.replace("print(name", "print(model"), "show(estimator, input_fn)", "used in another way"),
    (SHOW.replace("    print", "    model = wrap(model)\n    print"), "show(estimator, input_fn)", "in another way"),
    (SHOW, "show(*[estimator, input_fn])", "used in another way"),
    (SHOW, "show(estimator, *[input_fn])", "used in another way"),
    (SHOW, "print(estimator)", "used in another way"),
    ("def show(*each):\n    print(each[0].evaluate(each[1]))\n", "show(estimator, input_fn)", "in another way"),
    (
        "def show(**each):\n    print(each['a'].evaluate(each['b']))\n",
        "show(a=estimator, b=input_fn)",
        "in another way",
    ),
    (SHOW, "show(estimator, input_fn)\nshow(None, input_fn)", "not passed an Estimator everywhere"),
    (SHOW, "show(estimator, input_fn)\nprint(show)", "not passed an Estimator everywhere"),
    (SHOW, "show(estimator, input_fn)\nshow(1, estimator)", "in another way"),
]


@pytest.mark.parametrize(("before", "lines", "reason"), FUNCTIONS)
def test_functions_that_are_passed_the_estimator_and_stay(convert_text, before, lines, reason):
    file = convert_text(job(f"{TRAINED}{lines}", before=before))
    assert reason in file.kept_as_estimator, file.after


FACTORY = """def create_estimator(run_config, hparams, folder=None):
    \"\"\"Makes it.\"\"\"
    estimator = tf.estimator.Estimator(model_fn=model_fn, model_dir=folder, params=hparams, config=run_config)  # new
    print("made")
    return estimator


"""
CALL = """    config = tf.estimator.RunConfig(model_dir="m", save_summary_steps=9)
    print("folder", config.model_dir)
    estimator = create_estimator(config, {"rate": 0.1})
"""


def made_by(factory: str, call: str) -> str:
    return program().replace("def main():", f"{factory}def main():").replace(MAIN, call)


def test_a_function_that_makes_the_estimator(convert_text):
    """It makes the model, of its inputs; the folder is what its caller passes."""
    file = convert_text(made_by(FACTORY, CALL))
    assert "def create_estimator(inputs, hparams):" in file.after, file.kept_as_estimator
    assert '    estimator = make_model(inputs, hparams)  # new\n    print("made")\n    return estimator\n' in file.after
    assert '    print("folder", "m")\n    # Without a counterpart in fit: save_summary_steps=9\n' in file.after
    assert '    model = create_estimator(model_inputs(training), {"rate": 0.1})\n' in file.after
    other = convert_text(made_by(FACTORY, CALL.replace("estimator.RunConfig", "contrib.learn.RunConfig")))
    assert 'checkpoints(model, os.path.join("m", "keras"))' in other.after, other.kept_as_estimator


def test_a_function_that_computes_what_the_estimator_takes(convert_text):
    body = """def build(units, folder, mode=tf.estimator.ModeKeys.EVAL):
    rates = {"rate": 0.1 * units}
    config = tf.estimator.RunConfig(model_dir=folder, save_checkpoints_steps=2)
    return tf.estimator.Estimator(model_fn, params=rates, config=config)


"""
    after = convert_text(made_by(body, '    estimator = build(3, folder="m")\n')).after
    assert "def build(inputs, units, mode='eval'):\n    rates = {\"rate\": 0.1 * units}\n" in after
    assert "\n    return make_model(inputs, rates)\n" in after
    assert "    model = build(model_inputs(training), 3)\n" in after and 'os.path.join("m", "keras")' in after


def test_a_folder_that_changes_before_the_call_of_a_function_that_makes_the_estimator(convert_text):
    body = """def build(config):
    return tf.estimator.Estimator(model_fn, params={"rate": 0.1}, config=config)


"""
    calls = """    folder = "a"
    config = tf.estimator.RunConfig(folder)
    folder = "b"
    estimator = build(config)
"""
    stays = convert_text(made_by(body, calls))
    assert "line 26: folder, which changes between" in stays.kept_as_estimator, stays.after
    after = convert_text(made_by(body, calls.replace('    folder = "b"\n', ""))).after
    assert 'checkpoints(model, os.path.join(folder, "keras"))' in after


CANNED = """def build(inputs, rate):
    columns = [tf.feature_column.numeric_column("x", [2])]
    estimator = tf.estimator.DNNClassifier([4], columns, optimizer=lambda: tf.keras.optimizers.SGD(rate), n_classes=3)
    print(type(estimator))
    return estimator


"""


def test_a_function_that_makes_a_canned_estimator(convert_text):
    after = convert_text(made_by(CANNED.replace("lambda: tf.keras.optimizers.SGD(rate)", "'SGD'"),
                                 "    estimator = build(1, 2)\n")).after  # fmt: skip
    assert "def build(keras_inputs, inputs, rate):" in after
    assert "    estimator = make_model(keras_inputs, columns)\n    print(type(estimator))\n" in after


def test_a_run_config_that_is_replaced(convert_text):
    lines = """config = tf.estimator.RunConfig(save_checkpoints_steps=2)
config = config.replace(model_dir="m")
print(config.model_dir)
<ESTIMATOR>
estimator.train(input_fn, max_steps=4)"""
    after = convert_text(job(lines, config=", config=config")).after
    assert 'def main():\n    print("m")\n' in after and "StopAt(4, 2)" in after and "RunConfig" not in after
    stays = lines.replace("config = config.replace", "print(config.model_dir)\nconfig = config.replace")
    assert "used elsewhere" in convert_text(job(stays, config=", config=config")).kept_as_estimator


NESTED = '''\
def run(units, folder):
    def block(x):
        """Two
        lines."""
        return tf.layers.dense(x, units)

    def model_fn(features, labels, mode):
        # Two layers.
        logits = tf.layers.dense(block(features["x"]), 3)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, predictions=logits, loss=loss, train_op=train_op)

    estimator = tf.estimator.Estimator(model_fn, folder)
    estimator.train(input_fn, max_steps=10)
'''


def test_a_model_fn_inside_of_the_function_of_its_estimator(convert_text):
    """It uses the variables of that function; so does the model."""
    text = f"import tensorflow as tf\n\n\n{INPUT_FN}\n\n{NESTED}"
    after = convert_text(text).after
    assert (
        '    def make_model(features):\n        """Return' in after
        and "        # Two layers.\n        logits = " in after
    )
    assert (
        "        return tf.keras.layers.Dense(units)(x)\n" in after
        and "\n    model = make_model(model_inputs(" in after
    )
    for old, new, reason in [
        ('features["x"]', 'features["""x\ny"""]', "a text of several lines"),
        ("    estimator =", "    return model_fn\n\n\ndef main(folder):\n    model_fn = run(3, 4)\n    estimator =",
         "or of another function than its Estimator"),
    ]:  # fmt: skip
        assert reason in convert_text(text.replace(old, new)).kept_as_estimator


HPARAMS = """
def model_fn(features, labels, mode, params):
    logits = tf.layers.dense(features["x"], params.units)
    loss = tf.reduce_mean(logits) * params.scale
    train_op = tf.train.AdamOptimizer(params.rate).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, predictions=logits, loss=loss, train_op=train_op)
"""


def test_params_with_attributes(convert_text):
    """Those of tf.contrib become a small class; such an object is saved by its attributes."""
    lines = "hparams = tf.contrib.training.HParams(units=4, **MORE)\n<ESTIMATOR>\nestimator.train(input_fn, steps=4)"
    text = job(lines, before="MORE = {}\n").replace('params={"rate": 0.1}', "params=hparams")
    text = f"{text[: text.index('def model_fn')]}{HPARAMS.strip()}\n\n\n{text[text.index('def input_fn') :]}"
    after = convert_text(text).after
    assert "    hparams = Hyperparameters(units=4, **MORE)\n" in after and "class Hyperparameters:" in after
    assert "make_model(model_inputs(training), hparams)" in after and "'params': vars(self.params)}" in after
    assert "make_model(loaded_inputs(config[\"inputs\"]), Hyperparameters(**config['params']))" in after
    assert "without a name" in convert_text(text.replace("units=4", "4")).kept_as_estimator


FACTORIES = [
    (
        FACTORY.replace("model_dir=folder", 'model_dir="m" + hparams'),
        CALL,
        "an argument that create_estimator computes",
    ),
    (FACTORY.replace('print("made")', "estimator.train(input_fn)"), CALL, "and uses it, too"),
    (FACTORY.replace("return", "if hparams:\n        return None\n    return"), CALL, "an Estimator or something else"),
    (FACTORY.replace('print("made")', "print(run_config.master)"), CALL, "a RunConfig that is used elsewhere, too"),
    (FACTORY, CALL.replace('config, {"rate": 0.1}', '*[config, {"rate": 0.1}]'), "a call with * or **"),
    (FACTORY, CALL + "    print(create_estimator)\n", "create_estimator, which program.py uses, too"),
    (FACTORY, CALL.replace("config.model_dir", "config.master"), "a RunConfig that is used elsewhere, too"),
    (FACTORY, "    estimator = None\n", "an Estimator that is passed on where it is made"),
    (FACTORY.replace('Makes it."""', 'Makes it."""\n    folder += "/b"'), CALL, "create_estimator computes"),
    (FACTORY.replace("folder=None", "folder=FOLDER"), CALL, "a default of create_estimator that reads names"),
    (FACTORY.replace('print("made")', "COUNT.append(1)"), CALL + "    print(len(load()))\n", "a call with an effect"),
    (
        FACTORY.replace("params=hparams,", "params={'rate': RATE},"),
        CALL + "    global RATE\n    RATE = 0.5\n",
        "RATE, which changes",
    ),
]


@pytest.mark.parametrize(("factory", "call", "reason"), FACTORIES)
def test_a_function_that_makes_the_estimator_and_stays(convert_text, factory, call, reason):
    file = convert_text(made_by(factory, call))
    assert reason in file.kept_as_estimator, file.after


def test_settings_in_specs_and_a_level_that_is_computed(convert_text):
    """Specs that have names are removed; what their functions name is converted with the rest."""
    lines = """\
tf.logging.set_verbosity(LEVEL)
train_spec = tf.estimator.TrainSpec(lambda: read(tf.estimator.ModeKeys.TRAIN), max_steps=4)
eval_spec = tf.estimator.EvalSpec(lambda: read(tf.estimator.ModeKeys.EVAL), steps=2)
<ESTIMATOR>
tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)"""
    before = (
        'LEVEL = "INFO"\nDATA = tf.data.Dataset.from_tensors(({"x": [[1.0, 2.0]]}, [1]))\n\n\ndef read(mode):\n'
        "    batch = DATA.make_one_shot_iterator().get_next()\n    return batch[0], batch[1]\n"
    )
    file = convert_text(job(lines, before=before))
    assert "training = read('train')\n" in file.after, file.kept_as_estimator
    assert "validation_data=read('eval').take(2)," in file.after
    assert "    def prepare(*batch):\n        return batch[0], batch[1]\n" in file.after
    assert "    tf.get_logger().setLevel(LEVEL)\n" in file.after
