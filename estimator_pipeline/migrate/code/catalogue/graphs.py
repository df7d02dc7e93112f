"""Variables, sessions, summaries, checkpoints, data, flags, switches, tf.contrib: what is around an Estimator."""

from __future__ import annotations

from estimator_pipeline.migrate.code.catalogue.row import Row, table

__all__ = ["ROWS"]

_V1 = "tf.compat.v1."

_VARIABLES = (
    *table(
        "variable",
        _V1,
        (
            ("get_variable", "add_weight of a layer",
             "self.w = self.add_weight(name='w', shape=shape, initializer=initializer)", 15),
            ("get_local_variable", "a tf.Variable of a metric", "self.add_weight(name='total')", 15),
            ("variable_scope", "a layer: it keeps its variables", "class Block(tf.keras.layers.Layer): ...", 15),
            ("variable_op_scope", "a layer: it keeps its variables", "class Block(tf.keras.layers.Layer): ...", 15),
            ("get_variable_scope", "a layer: it keeps its variables", "class Block(tf.keras.layers.Layer): ...", 15),
            ("VariableScope", "a layer: it keeps its variables", "class Block(tf.keras.layers.Layer): ...", 15),
            ("AUTO_REUSE", "one layer called several times",
             "layer = tf.keras.layers.Dense(n)\na, b = layer(x), layer(y)",
             15),
            ("make_template", "one layer called several times", "layer = Block()\na, b = layer(x), layer(y)", 15),
            ("global_variables", "model.variables", "model.variables", 1),
            ("trainable_variables", "model.trainable_variables", "model.trainable_variables", 1),
            ("local_variables", "a metric's variables", "metric.variables", 1),
            ("model_variables", "model.variables", "model.variables", 1),
            ("moving_average_variables", "an average's own variables", "tf.train.ExponentialMovingAverage(decay)", 15),
            ("GraphKeys", "lists of the model: variables, losses, updates", "model.trainable_variables", 5),
            ("get_collection", "lists of the model: variables, losses", "model.losses", 5),
            ("get_collection_ref", "lists of the model: variables, losses", "model.losses", 5),
            ("add_to_collection", "an attribute of a layer", "self.kept = x", 5),
            ("add_to_collections", "an attribute of a layer", "self.kept = x", 5),
        ),
    ),
)  # fmt: skip

_SESSIONS = (
    *table(
        "session",
        _V1,
        (
            ("Session", "nothing: tensors have their values", "model(x)", 15),
            ("InteractiveSession", "nothing: tensors have their values", "model(x)", 15),
            ("placeholder", "tf.keras.Input, or an argument of a tf.function",
             "x = tf.keras.Input(shape, dtype=dtype)", 5),
            ("placeholder_with_default", "an argument with a default", "def f(x=default): ...", 5),
            ("sparse_placeholder", "tf.keras.Input(sparse=True)", "x = tf.keras.Input(shape, sparse=True)", 5),
            ("global_variables_initializer", "nothing: variables begin with their values", "", 1),
            ("local_variables_initializer", "nothing: variables begin with their values", "", 1),
            ("variables_initializer", "nothing: variables begin with their values", "", 1),
            ("tables_initializer", "nothing: tables begin with their values", "", 1),
            ("initialize_all_variables", "nothing: variables begin with their values", "", 1),
            ("ConfigProto", "tf.config", "tf.config.threading.set_intra_op_parallelism_threads(n)", 5),
            ("GPUOptions", "tf.config", "tf.config.experimental.set_memory_growth(gpu, True)", 5),
            ("get_default_graph", "nothing, or tf.function's graph", "", 5),
            ("get_default_session", "nothing: tensors have their values", "", 5),
            ("reset_default_graph", "tf.keras.backend.clear_session", "tf.keras.backend.clear_session()", 1),
            ("set_random_seed", "tf.keras.utils.set_random_seed", "tf.keras.utils.set_random_seed(seed)", 1),
            ("py_func", "tf.numpy_function", "tf.numpy_function(f, [x], tf.float32)", 1),
        ),
    ),
    *table(
        "session",
        _V1 + "train.",
        (
            ("MonitoredSession", "fit", "model.fit(...)", 60),
            ("MonitoredTrainingSession", "fit", "model.fit(...)", 60),
            ("SingularMonitoredSession", "fit", "model.fit(...)", 60),
            ("SessionManager", "fit", "model.fit(...)", 60),
            ("Supervisor", "fit", "model.fit(...)", 60),
            ("Scaffold", "nothing of its kind: initialisers of layers, callbacks at the beginning of training",
             "class Begin(tf.keras.callbacks.Callback):\n    def on_train_begin(self, logs=None): ...", 60),
            ("LooperThread", "a thread of Python", "threading.Thread(target=...)", 15),
            ("basic_train_loop", "fit", "model.fit(...)", 60),
        ),
    ),
)  # fmt: skip

_SUMMARIES = (
    *table(
        "summary",
        _V1 + "summary.",
        (
            ("FileWriter", "tf.summary.create_file_writer, or TensorBoard", "tf.keras.callbacks.TensorBoard(folder)",
             5),
            ("FileWriterCache", "tf.summary.create_file_writer", "tf.summary.create_file_writer(folder)", 5),
            ("audio", "tf.summary.audio in a callback", "tf.summary.audio(name, data, sample_rate, step=step)", 5),
            ("histogram", "TensorBoard's histogram_freq", "tf.keras.callbacks.TensorBoard(folder, histogram_freq=1)",
             5),
            ("image", "tf.summary.image in a callback", "tf.summary.image(name, images, step=step)", 5),
            ("merge", "nothing: each summary is written by itself", "", 1),
            ("merge_all", "nothing: each summary is written by itself", "", 1),
            ("scalar", "a metric, or tf.summary.scalar in a callback",
             "model.add_metric(x, name='x')  # or: tf.summary.scalar('x', x, step=step)", 5),
            ("tensor_summary", "tf.summary.write", "tf.summary.write(tag, tensor, step=step)", 5),
            ("text", "tf.summary.text in a callback", "tf.summary.text(name, text, step=step)", 5),
        ),
    ),
    Row("tf.compat.v1.summary.initialize", "summary", "tf.summary.create_file_writer",
        "tf.summary.create_file_writer(folder).as_default()", 5),
)  # fmt: skip

_CHECKPOINTS = (
    *table(
        "checkpoint",
        _V1 + "train.",
        (
            ("Saver", "tf.train.Checkpoint, or save_weights", "tf.train.Checkpoint(model=model).save(path)", 15),
            ("NewCheckpointReader", "tf.train.load_checkpoint", "tf.train.load_checkpoint(path)", 1),
            ("checkpoint_exists", "tf.train.latest_checkpoint", "tf.io.gfile.exists(path + '.index')", 1),
            ("get_checkpoint_mtimes", "times of files", "os.path.getmtime(path + '.index')", 1),
            ("remove_checkpoint", "tf.train.CheckpointManager", "tf.train.CheckpointManager(..., max_to_keep=n)", 5),
            ("update_checkpoint_state", "tf.train.CheckpointManager", "tf.train.CheckpointManager(...)", 5),
            ("generate_checkpoint_state_proto", "tf.train.CheckpointManager", "tf.train.CheckpointManager(...)", 5),
            ("export_meta_graph", "tf.saved_model.save", "tf.saved_model.save(model, path)", 15),
            ("import_meta_graph", "tf.saved_model.load", "tf.saved_model.load(path)", 15),
        ),
    ),
)  # fmt: skip

_QUEUE = "a tf.data.Dataset"
_DATA = (
    Row("tf.compat.v1.estimator.inputs.numpy_input_fn", "data", "from_tensor_slices, or arrays for fit",
        "model.fit(x, y, batch_size=batch_size, epochs=num_epochs, shuffle=shuffle)", 5, rule="numpy_input_fn"),
    Row("tf.compat.v1.estimator.inputs.pandas_input_fn", "data", "from_tensor_slices of a dict of columns",
        "model.fit(dict(frame), y, batch_size=batch_size, epochs=num_epochs)", 5, rule="pandas_input_fn"),
    *table(
        "data",
        _V1 + "data.",
        (
            ("make_one_shot_iterator", "iter, or the data set itself", "for batch in dataset: ...", 5),
            ("make_initializable_iterator", "iter, or the data set itself", "for batch in dataset: ...", 5),
            ("get_output_classes", "dataset.element_spec", "dataset.element_spec", 1),
            ("get_output_shapes", "dataset.element_spec", "dataset.element_spec", 1),
            ("get_output_types", "dataset.element_spec", "dataset.element_spec", 1),
            ("Iterator", "tf.data.Iterator", "iterator = iter(dataset)", 5),
        ),
    ),
    Row("make_one_shot_iterator", "data", "iter, or the data set itself", "for batch in dataset: ...", 5, runs=False,
        because="data sets of TensorFlow 2 have no such method",
        keep="tf.compat.v1.data.make_one_shot_iterator(dataset)"),
    Row("make_initializable_iterator", "data", "iter, or the data set itself", "for batch in dataset: ...",
         5, runs=False,
        because="data sets of TensorFlow 2 have no such method",
        keep="tf.compat.v1.data.make_initializable_iterator(dataset)"),
    *(
        Row(f"tf.compat.v1.train.{name}", "data", _QUEUE, "dataset.shuffle(n).batch(batch_size).repeat(epochs)", 15)
        for name in (
            "batch", "batch_join", "maybe_batch", "maybe_batch_join", "maybe_shuffle_batch", "maybe_shuffle_batch_join",
            "shuffle_batch", "shuffle_batch_join", "string_input_producer", "slice_input_producer",
            "range_input_producer", "input_producer", "limit_epochs", "match_filenames_once", "start_queue_runners",
            "add_queue_runner", "QueueRunner", "queue_runner.QueueRunner", "queue_runner.add_queue_runner",
            "queue_runner.start_queue_runners",
        )
    ),
    *(
        Row(f"tf.contrib.data.{name}", "contrib", successor, write, 5, runs=False)
        for name, successor, write in (
            ("batch_and_drop_remainder", "batch with drop_remainder", "dataset.batch(n, drop_remainder=True)"),
            ("map_and_batch", "map, then batch", "dataset.map(f, num_parallel_calls=tf.data.AUTOTUNE).batch(n)"),
            ("shuffle_and_repeat", "shuffle, then repeat", "dataset.shuffle(n).repeat(epochs)"),
            ("parallel_interleave", "interleave", "dataset.interleave(f, num_parallel_calls=tf.data.AUTOTUNE)"),
            ("unbatch", "dataset.unbatch", "dataset.unbatch()"),
            ("ignore_errors", "dataset.ignore_errors", "dataset.ignore_errors()"),
            ("Dataset", "tf.data.Dataset", "tf.data.Dataset"),
            ("prefetch_to_device", "tf.data.experimental.prefetch_to_device",
             "dataset.apply(tf.data.experimental.prefetch_to_device(device))"),
        )
    ),
)  # fmt: skip

_FLAGS = (
    Row("tf.compat.v1.flags", "flags", "absl.flags", "from absl import flags\nflags.DEFINE_integer('steps', 100, '')",
         1,
        also=("tf.compat.v1.app.flags",)),
    Row("tf.compat.v1.app.run", "flags", "absl.app.run", "from absl import app\napp.run(main)", 1),
    Row("tf.compat.v1.logging", "flags", "absl.logging, or tf.get_logger", "tf.get_logger().setLevel('INFO')", 1),
    Row("tf.contrib.training.HParams", "flags", "a dataclass or a dict",
        "@dataclasses.dataclass\nclass HParams:\n    learning_rate: float = 0.001", 15, runs=False,
        because="tf.contrib is gone since TensorFlow 2.0", keep="a class of your own, or a dict"),
    Row("tf.compat.v1.gfile", "flags", "tf.io.gfile", "tf.io.gfile.exists(path)", 1),
)  # fmt: skip

_BEHAVIOR = (
    *table(
        "behavior",
        _V1,
        (
            ("disable_v2_behavior", "nothing: Keras runs eagerly", "", 0),
            ("disable_eager_execution", "nothing: Keras runs eagerly", "", 0),
            ("enable_eager_execution", "nothing: TensorFlow 2 runs eagerly", "", 0),
            ("enable_v2_behavior", "nothing: it is on", "", 0),
            ("disable_resource_variables", "nothing: Keras has resource variables", "", 0),
            ("enable_resource_variables", "nothing: it is on", "", 0),
            ("disable_control_flow_v2", "nothing: it is on", "", 0),
            ("enable_control_flow_v2", "nothing: it is on", "", 0),
            ("disable_tensor_equality", "nothing: == compares values", "", 1),
            ("enable_tensor_equality", "nothing: it is on", "", 0),
            ("disable_v2_tensorshape", "nothing: dimensions are numbers", "x.shape[0]", 1),
            ("enable_v2_tensorshape", "nothing: it is on", "", 0),
        ),
    ),
)

_OTHERS = (
    Row("tf.contrib", "contrib", "depends on what it was; tf-slim and TensorFlow Addons have parts of it", "", 60,
        runs=False, because="tf.contrib is gone since TensorFlow 2.0"),
    Row("private import", "private import", "the public name", "import tensorflow as tf", 5),
    Row("v1 symbol", "v1 symbol", "tf.compat.v1 has it", "tf.compat.v1.X", 1),
    Row("unreadable file", "unreadable", "Python 3", "", 15, runs=False,
        keep="Python 3 (python3.12 -m lib2to3 -w FILE does most of it)"),
)  # fmt: skip

ROWS = (
    *_VARIABLES, *_SESSIONS, *_SUMMARIES, *_CHECKPOINTS, *_DATA, *_FLAGS, *_BEHAVIOR, *_OTHERS
)  # fmt: skip
