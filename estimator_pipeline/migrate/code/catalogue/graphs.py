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
             "self.w = self.add_weight(name='w', shape=shape, initializer=initializer)"),
            ("get_local_variable", "a tf.Variable of a metric", "self.add_weight(name='total')"),
            ("variable_scope", "a layer: it keeps its variables", "class Block(tf.keras.layers.Layer): ..."),
            ("variable_op_scope", "a layer: it keeps its variables", "class Block(tf.keras.layers.Layer): ..."),
            ("get_variable_scope", "a layer: it keeps its variables", "class Block(tf.keras.layers.Layer): ..."),
            ("VariableScope", "a layer: it keeps its variables", "class Block(tf.keras.layers.Layer): ..."),
            ("AUTO_REUSE", "one layer called several times",
             "layer = tf.keras.layers.Dense(n)\na, b = layer(x), layer(y)"),
            ("make_template", "one layer called several times", "layer = Block()\na, b = layer(x), layer(y)"),
            ("global_variables", "model.variables", "model.variables"),
            ("trainable_variables", "model.trainable_variables", "model.trainable_variables"),
            ("local_variables", "a metric's variables", "metric.variables"),
            ("model_variables", "model.variables", "model.variables"),
            ("moving_average_variables", "an average's own variables", "tf.train.ExponentialMovingAverage(decay)"),
            ("GraphKeys", "lists of the model: variables, losses, updates", "model.trainable_variables"),
            ("get_collection", "lists of the model: variables, losses", "model.losses"),
            ("get_collection_ref", "lists of the model: variables, losses", "model.losses"),
            ("add_to_collection", "an attribute of a layer", "self.kept = x"),
            ("add_to_collections", "an attribute of a layer", "self.kept = x"),
        ),
    ),
)  # fmt: skip

_SESSIONS = (
    *table(
        "session",
        _V1,
        (
            ("Session", "not needed: eager tensors have values", "model(x)"),
            ("InteractiveSession", "not needed: eager tensors have values", "model(x)"),
            ("placeholder", "tf.keras.Input, or an argument of a tf.function",
             "x = tf.keras.Input(shape, dtype=dtype)"),
            ("placeholder_with_default", "an argument with a default", "def f(x=default): ..."),
            ("sparse_placeholder", "tf.keras.Input(sparse=True)", "x = tf.keras.Input(shape, sparse=True)"),
            ("global_variables_initializer", "not needed: variables are initialized on creation", ""),
            ("local_variables_initializer", "not needed: variables are initialized on creation", ""),
            ("variables_initializer", "not needed: variables are initialized on creation", ""),
            ("tables_initializer", "not needed: tables are initialized on creation", ""),
            ("initialize_all_variables", "not needed: variables are initialized on creation", ""),
            ("ConfigProto", "tf.config", "tf.config.threading.set_intra_op_parallelism_threads(n)"),
            ("GPUOptions", "tf.config", "tf.config.experimental.set_memory_growth(gpu, True)"),
            ("get_default_graph", "not needed, or the graph of a tf.function", ""),
            ("get_default_session", "not needed: eager tensors have values", ""),
            ("reset_default_graph", "tf.keras.backend.clear_session", "tf.keras.backend.clear_session()"),
            ("set_random_seed", "tf.keras.utils.set_random_seed", "tf.keras.utils.set_random_seed(seed)"),
            ("py_func", "tf.numpy_function", "tf.numpy_function(f, [x], tf.float32)"),
        ),
    ),
    *table(
        "session",
        _V1 + "train.",
        (
            ("MonitoredSession", "fit", "model.fit(...)"),
            ("MonitoredTrainingSession", "fit", "model.fit(...)"),
            ("SingularMonitoredSession", "fit", "model.fit(...)"),
            ("SessionManager", "fit", "model.fit(...)"),
            ("Supervisor", "fit", "model.fit(...)"),
            ("Scaffold", "no equivalent: initializers of layers, callbacks at the start of training",
             "class Begin(tf.keras.callbacks.Callback):\n    def on_train_begin(self, logs=None): ..."),
            ("LooperThread", "a thread of Python", "threading.Thread(target=...)"),
            ("basic_train_loop", "fit", "model.fit(...)"),
        ),
    ),
)  # fmt: skip

_SUMMARIES = (
    *table(
        "summary",
        _V1 + "summary.",
        (
            ("FileWriter", "tf.summary.create_file_writer, or TensorBoard", "tf.keras.callbacks.TensorBoard(folder)"),
            ("FileWriterCache", "tf.summary.create_file_writer", "tf.summary.create_file_writer(folder)"),
            ("audio", "tf.summary.audio in a callback", "tf.summary.audio(name, data, sample_rate, step=step)"),
            ("histogram", "TensorBoard's histogram_freq", "tf.keras.callbacks.TensorBoard(folder, histogram_freq=1)"),
            ("image", "tf.summary.image in a callback", "tf.summary.image(name, images, step=step)"),
            ("merge", "not needed: each summary is written separately", ""),
            ("merge_all", "not needed: each summary is written separately", ""),
            ("scalar", "a metric, or tf.summary.scalar in a callback",
             "model.add_metric(x, name='x')  # or: tf.summary.scalar('x', x, step=step)"),
            ("tensor_summary", "tf.summary.write", "tf.summary.write(tag, tensor, step=step)"),
            ("text", "tf.summary.text in a callback", "tf.summary.text(name, text, step=step)"),
        ),
    ),
    Row("tf.compat.v1.summary.initialize", "summary", "tf.summary.create_file_writer",
        "tf.summary.create_file_writer(folder).as_default()"),
)  # fmt: skip

_CHECKPOINTS = (
    *table(
        "checkpoint",
        _V1 + "train.",
        (
            ("Saver", "tf.train.Checkpoint, or save_weights", "tf.train.Checkpoint(model=model).save(path)"),
            ("NewCheckpointReader", "tf.train.load_checkpoint", "tf.train.load_checkpoint(path)"),
            ("checkpoint_exists", "tf.train.latest_checkpoint", "tf.io.gfile.exists(path + '.index')"),
            ("get_checkpoint_mtimes", "times of files", "os.path.getmtime(path + '.index')"),
            ("remove_checkpoint", "tf.train.CheckpointManager", "tf.train.CheckpointManager(..., max_to_keep=n)"),
            ("update_checkpoint_state", "tf.train.CheckpointManager", "tf.train.CheckpointManager(...)"),
            ("generate_checkpoint_state_proto", "tf.train.CheckpointManager", "tf.train.CheckpointManager(...)"),
            ("export_meta_graph", "tf.saved_model.save", "tf.saved_model.save(model, path)"),
            ("import_meta_graph", "tf.saved_model.load", "tf.saved_model.load(path)"),
        ),
    ),
)  # fmt: skip

_QUEUE = "a tf.data.Dataset"
_DATA = (
    Row("tf.compat.v1.estimator.inputs.numpy_input_fn", "data", "from_tensor_slices, or arrays for fit",
        "model.fit(x, y, batch_size=batch_size, epochs=num_epochs, shuffle=shuffle)", rule="numpy_input_fn"),
    Row("tf.compat.v1.estimator.inputs.pandas_input_fn", "data", "from_tensor_slices of a dict of columns",
        "model.fit(dict(frame), y, batch_size=batch_size, epochs=num_epochs)", rule="pandas_input_fn"),
    *table(
        "data",
        _V1 + "data.",
        (
            ("make_one_shot_iterator", "iter, or the data set itself", "for batch in dataset: ..."),
            ("make_initializable_iterator", "iter, or the data set itself", "for batch in dataset: ..."),
            ("get_output_classes", "dataset.element_spec", "dataset.element_spec"),
            ("get_output_shapes", "dataset.element_spec", "dataset.element_spec"),
            ("get_output_types", "dataset.element_spec", "dataset.element_spec"),
            ("Iterator", "tf.data.Iterator", "iterator = iter(dataset)"),
        ),
    ),
    Row("make_one_shot_iterator", "data", "iter, or the data set itself", "for batch in dataset: ...", runs=False,
        because="TensorFlow 2 datasets do not have this method",
        keep="tf.compat.v1.data.make_one_shot_iterator(dataset)"),
    Row("make_initializable_iterator", "data", "iter, or the data set itself", "for batch in dataset: ...", runs=False,
        because="TensorFlow 2 datasets do not have this method",
        keep="tf.compat.v1.data.make_initializable_iterator(dataset)"),
    *(
        Row(name, "data", "dataset.element_spec", "dataset.element_spec", runs=False,
            because="TensorFlow 2 datasets do not have this attribute", keep=f"tf.compat.v1.data.get_{name}(dataset)")
        for name in ("output_classes", "output_shapes", "output_types")
    ),
    *(
        Row(f"tf.compat.v1.train.{name}", "data", _QUEUE, "dataset.shuffle(n).batch(batch_size).repeat(epochs)")
        for name in (
            "batch", "batch_join", "maybe_batch", "maybe_batch_join", "maybe_shuffle_batch", "maybe_shuffle_batch_join",
            "shuffle_batch", "shuffle_batch_join", "string_input_producer", "slice_input_producer",
            "range_input_producer", "input_producer", "limit_epochs", "match_filenames_once", "start_queue_runners",
            "add_queue_runner", "QueueRunner", "queue_runner.QueueRunner", "queue_runner.add_queue_runner",
            "queue_runner.start_queue_runners",
        )
    ),
    *(
        Row(f"tf.contrib.data.{name}", "contrib", successor, write, runs=False)
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
        also=("tf.compat.v1.app.flags",)),
    Row("tf.compat.v1.app.run", "flags", "absl.app.run", "from absl import app\napp.run(main)"),
    Row("tf.compat.v1.logging", "flags", "absl.logging, or tf.get_logger", "tf.get_logger().setLevel('INFO')"),
    Row("tf.contrib.training.HParams", "flags", "a dataclass or a dict",
        "@dataclasses.dataclass\nclass HParams:\n    learning_rate: float = 0.001", runs=False,
        because="tf.contrib was removed in TensorFlow 2.0", keep="your own class, or a dict"),
    Row("tf.compat.v1.gfile", "flags", "tf.io.gfile", "tf.io.gfile.exists(path)"),
)  # fmt: skip

_BEHAVIOR = (
    *table(
        "behavior",
        _V1,
        (
            ("disable_v2_behavior", "not needed: Keras runs eagerly", ""),
            ("disable_eager_execution", "not needed: Keras runs eagerly", ""),
            ("enable_eager_execution", "not needed: TensorFlow 2 runs eagerly", ""),
            ("enable_v2_behavior", "not needed: already on", ""),
            ("disable_resource_variables", "not needed: Keras has resource variables", ""),
            ("enable_resource_variables", "not needed: already on", ""),
            ("disable_control_flow_v2", "not needed: already on", ""),
            ("enable_control_flow_v2", "not needed: already on", ""),
            ("disable_tensor_equality", "not needed: == compares values", ""),
            ("enable_tensor_equality", "not needed: already on", ""),
            ("disable_v2_tensorshape", "not needed: dimensions are numbers", "x.shape[0]"),
            ("enable_v2_tensorshape", "not needed: already on", ""),
        ),
    ),
)

_OTHERS = (
    Row("tf.contrib", "contrib", "depends on what it was", "",
        runs=False,
        because="tf.contrib was removed in TensorFlow 2.0; run `contrib install`, and the program by `exec --tf1`"),
    Row("private import", "private import", "the public name", "import tensorflow as tf"),
    Row("v1 symbol", "v1 symbol", "tf.compat.v1 has it", "tf.compat.v1.X"),
    Row("unreadable file", "unreadable", "Python 3", "", runs=False,
        keep="Python 3 (python3.12 -m lib2to3 -w FILE does most of it)"),
)  # fmt: skip

ROWS = (
    *_VARIABLES, *_SESSIONS, *_SUMMARIES, *_CHECKPOINTS, *_DATA, *_FLAGS, *_BEHAVIOR, *_OTHERS
)  # fmt: skip
