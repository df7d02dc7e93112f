"""Estimators, their functions, specs and configuration."""

from __future__ import annotations

from estimator_pipeline.migrate.code.catalogue.row import Row, table

__all__ = ["ROWS"]

_FIT = "model.fit(train_data, epochs=..., steps_per_epoch=..., callbacks=[...])"
_CONTRIB = "tf.contrib.learn."

_ESTIMATORS = (
    Row(
        "tf.estimator.Estimator",
        "estimator",
        "tf.keras.Model",
        "model = build_model(params)\nmodel.compile(optimizer=..., loss=..., metrics=[...])",
        also=("tf.contrib.learn.Estimator",),
        fields=("model_fn", "model_dir", "config", "params", "warm_start_from"),
    ),
    *table(
        "estimator",
        "tf.estimator.Estimator.",
        (
            ("model_fn", "a function that builds a tf.keras.Model", "def build_model(params): ..."),
            ("model_dir", "ModelCheckpoint, BackupAndRestore and TensorBoard name their folders",
             "callbacks=[tf.keras.callbacks.ModelCheckpoint(os.path.join(model_dir, 'ckpt-{epoch}'))]"),
            ("config", "arguments of fit and callbacks", _FIT),
            ("params", "an argument of the function that builds the model", "build_model(params)"),
            ("warm_start_from", "load weights before fit",
             "model.load_weights(path)  # or: estimator-pipeline migrate checkpoint"),
        ),
    ),
)  # fmt: skip

_GONE = (
    *table(
        "canned estimator",
        "tf.estimator.",
        (
            ("BoostedTreesClassifier", "GradientBoostedTreesModel of the package tensorflow-decision-forests",
             "tfdf.keras.GradientBoostedTreesModel(tfdf.keras.Task.CLASSIFICATION)"),
            ("BoostedTreesRegressor", "GradientBoostedTreesModel of the package tensorflow-decision-forests",
             "tfdf.keras.GradientBoostedTreesModel(tfdf.keras.Task.REGRESSION)"),
            ("BoostedTreesEstimator", "GradientBoostedTreesModel of the package tensorflow-decision-forests",
             "tfdf.keras.GradientBoostedTreesModel()"),
            ("experimental.boosted_trees_classifier_train_in_memory",
             "GradientBoostedTreesModel of the package tensorflow-decision-forests",
             "tfdf.keras.GradientBoostedTreesModel(tfdf.keras.Task.CLASSIFICATION)"),
            ("experimental.boosted_trees_regressor_train_in_memory",
             "GradientBoostedTreesModel of the package tensorflow-decision-forests",
             "tfdf.keras.GradientBoostedTreesModel(tfdf.keras.Task.REGRESSION)"),
        ),
        runs=False,
        because="it was removed: tensorflow-estimator 2.15 has no boosted trees",
        keep="a model of the package tensorflow-decision-forests",
    ),
    Row("tf.examples", "data", "tf.keras.datasets", "(x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()",
        runs=False, keep="tf.keras.datasets",
        because="tensorflow.examples was removed in TensorFlow 2.0; `exec --tf1` provides its MNIST reader"),
    Row("a list of Python 2", "data", "a list", "list(map(...))", runs=False,
        because="map, filter and zip return an iterator in Python 3, which only the first call of model_fn can read",
        keep="list(...) around it"),
)  # fmt: skip
_CANNED = table(
    "canned estimator",
    "tf.estimator.",
    (
        ("BaselineClassifier", "a Dense layer without inputs, or the labels' frequencies",
         "outputs = tf.keras.layers.Dense(n_classes)(tf.zeros_like(x[:, :1]))"),
        ("BaselineEstimator", "a Dense layer without inputs", "tf.keras.layers.Dense(1)(tf.zeros_like(x[:, :1]))"),
        ("BaselineRegressor", "a Dense layer without inputs, or the labels' mean",
         "outputs = tf.keras.layers.Dense(1)(tf.zeros_like(x[:, :1]))"),
        ("DNNClassifier", "Dense layers and a cross-entropy from logits",
         "tf.keras.Sequential([tf.keras.layers.DenseFeatures(columns),\n"
         "    *[tf.keras.layers.Dense(n, activation='relu') for n in hidden_units],\n"
         "    tf.keras.layers.Dense(n_classes)])"),
        ("DNNEstimator", "Dense layers and the head's loss",
         "tf.keras.layers.Dense(n, activation='relu')  # and the head's loss"),
        ("DNNRegressor", "Dense layers and mean_squared_error",
         "tf.keras.Sequential([tf.keras.layers.DenseFeatures(columns), ..., tf.keras.layers.Dense(1)])"),
        ("DNNLinearCombinedClassifier", "tf.keras.experimental.WideDeepModel",
         "model = tf.keras.experimental.WideDeepModel(linear, dnn)\n"
         "model.compile(optimizer=['ftrl', 'adagrad'], loss=...)"),
        ("DNNLinearCombinedEstimator", "tf.keras.experimental.WideDeepModel",
         "tf.keras.experimental.WideDeepModel(linear, dnn)"),
        ("DNNLinearCombinedRegressor", "tf.keras.experimental.WideDeepModel",
         "model = tf.keras.experimental.WideDeepModel(linear, dnn)\nmodel.compile(['ftrl', 'adagrad'], 'mse')"),
        ("LinearClassifier", "one Dense layer, or tf.keras.experimental.LinearModel",
         "tf.keras.experimental.LinearModel(units=n_classes)"),
        ("LinearEstimator", "one Dense layer, or tf.keras.experimental.LinearModel",
         "tf.keras.experimental.LinearModel()"),
        ("LinearRegressor", "one Dense layer, or tf.keras.experimental.LinearModel",
         "tf.keras.experimental.LinearModel()  # loss='mse'"),
        ("experimental.KMeans", "no Keras layer; scikit-learn", "sklearn.cluster.MiniBatchKMeans(num_clusters)"),
        ("experimental.LinearSDCA", "no Keras optimizer; Ftrl or SGD", "tf.keras.optimizers.Ftrl(...)"),
        ("experimental.RNNClassifier", "recurrent layers and a Dense layer",
         "tf.keras.Sequential([tf.keras.layers.LSTM(units), tf.keras.layers.Dense(n_classes)])"),
        ("experimental.RNNEstimator", "recurrent layers and the head's loss",
         "tf.keras.Sequential([tf.keras.layers.LSTM(units), tf.keras.layers.Dense(n)])"),
        ("experimental.dnn_logit_fn_builder", "Dense layers", "tf.keras.layers.Dense(units, activation='relu')"),
        ("experimental.linear_logit_fn_builder", "one Dense layer", "tf.keras.layers.Dense(units)"),
        ("experimental.call_logit_fn", "a call of the layers", "logits = layers(features)"),
    ),
)  # fmt: skip

_FUNCTIONS = (
    Row("model_fn", "model_fn", "a function that builds a tf.keras.Model, and model.compile",
        "def build_model(params):\n    inputs = tf.keras.Input(...)\n    outputs = ...\n"
        "    return tf.keras.Model(inputs, outputs)", rule="model_fn"),
    Row("input_fn", "input_fn", "the same tf.data.Dataset, passed to fit",
        "model.fit(train_input_fn(), validation_data=eval_input_fn())", rule="input_fn"),
    Row("serving_input_receiver_fn", "serving input", "a tf.function with an input_signature",
        "@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])\ndef serve(examples): ...\n"
        "tf.saved_model.save(model, path, signatures={'serving_default': serve})"),
    Row("tf.estimator.Estimator subclass", "estimator", "a tf.keras.Model subclass",
        "class MyModel(tf.keras.Model): ..."),
)  # fmt: skip

_MODE = (
    Row("tf.estimator.ModeKeys", "model_fn", "the argument `training` of layers; fit, evaluate and predict apart",
        "def call(self, inputs, training=False): ...", also=("tf.contrib.learn.ModeKeys",), rule="mode"),
)  # fmt: skip

_SPEC_FIELDS = (
    "mode", "predictions", "loss", "train_op", "eval_metric_ops", "export_outputs", "training_chief_hooks",
    "training_hooks", "scaffold", "evaluation_hooks", "prediction_hooks",
)  # fmt: skip
_SPEC = (
    Row("tf.estimator.EstimatorSpec", "spec", "outputs of the model, and model.compile",
        "model.compile(optimizer=optimizer, loss=loss, metrics=metrics)",
        also=("tf.contrib.learn.ModelFnOps", "tf.contrib.learn.estimators.model_fn.ModelFnOps"), fields=_SPEC_FIELDS),
    *table(
        "spec",
        "tf.estimator.EstimatorSpec.",
        (
            ("mode", "not needed: fit, evaluate and predict are separate methods", ""),
            ("predictions", "the outputs of the model", "tf.keras.Model(inputs, {'classes': ..., 'logits': logits})"),
            ("loss", "the loss of compile, or add_loss", "model.compile(loss=...)"),
            ("train_op", "the optimizer of compile", "model.compile(optimizer=...)"),
            ("eval_metric_ops", "metrics of compile", "model.compile(metrics=[...])"),
            ("export_outputs", "signatures of the SavedModel",
             "tf.saved_model.save(model, path, signatures={'serving_default': serve})"),
            ("training_chief_hooks", "callbacks; Keras runs them on every worker",
             "if strategy.cluster_resolver.task_id == 0: callbacks.append(...)"),
            ("training_hooks", "callbacks of fit", "model.fit(..., callbacks=[...])"),
            ("scaffold", "no equivalent: initializers of layers, callbacks at the start of training",
             "class Begin(tf.keras.callbacks.Callback):\n    def on_train_begin(self, logs=None): ..."),
            ("evaluation_hooks", "callbacks of evaluate", "model.evaluate(..., callbacks=[...])"),
            ("prediction_hooks", "callbacks of predict", "model.predict(..., callbacks=[...])"),
        ),
    ),
)  # fmt: skip

_CONFIG_FIELDS = (
    "model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs",
    "session_config", "keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps",
    "train_distribute", "device_fn", "protocol", "eval_distribute", "experimental_distribute",
    "experimental_max_worker_delay_secs", "session_creation_timeout_secs", "checkpoint_save_graph_def",
)  # fmt: skip
_CONFIG = (
    Row("tf.estimator.RunConfig", "run config", "arguments of fit, callbacks, a strategy", _FIT,
        also=("tf.contrib.learn.RunConfig",), fields=_CONFIG_FIELDS),
    *table(
        "run config",
        "tf.estimator.RunConfig.",
        (
            ("model_dir", "the folders of callbacks",
             "tf.keras.callbacks.BackupAndRestore(os.path.join(model_dir, 'backup'))"),
            ("tf_random_seed", "tf.keras.utils.set_random_seed", "tf.keras.utils.set_random_seed(seed)"),
            ("save_summary_steps", "TensorBoard's update_freq",
             "tf.keras.callbacks.TensorBoard(model_dir, update_freq=save_summary_steps)"),
            ("save_checkpoints_steps", "ModelCheckpoint or BackupAndRestore with save_freq",
             "tf.keras.callbacks.ModelCheckpoint(path, save_freq=save_checkpoints_steps)"),
            ("save_checkpoints_secs", "a custom callback: Keras counts batches, not seconds",
             "class SaveEvery(tf.keras.callbacks.Callback):\n    def on_train_batch_end(self, batch, logs=None): ..."),
            ("session_config", "tf.config", "tf.config.threading.set_intra_op_parallelism_threads(n)\n"
             "tf.config.experimental.set_memory_growth(gpu, True)"),
            ("keep_checkpoint_max", "tf.train.CheckpointManager's max_to_keep",
             "tf.train.CheckpointManager(checkpoint, model_dir, max_to_keep=keep_checkpoint_max)"),
            ("keep_checkpoint_every_n_hours", "tf.train.CheckpointManager's keep_checkpoint_every_n_hours",
             "tf.train.CheckpointManager(checkpoint, model_dir, None, keep_checkpoint_every_n_hours=n)"),
            ("log_step_count_steps", "the progress bar, or a callback that counts steps", "model.fit(..., verbose=1)"),
            ("train_distribute", "build and compile the model in the strategy's scope",
             "with strategy.scope():\n    model = build_model(params)\n    model.compile(...)"),
            ("device_fn", "tf.device, or a strategy", "with tf.device('/GPU:0'): ..."),
            ("protocol", "the strategy's communication options",
             "tf.distribute.experimental.CommunicationOptions(...)"),
            ("eval_distribute", "evaluate in the same strategy's scope", "model.evaluate(eval_data)"),
            ("experimental_distribute", "a strategy's scope", "with strategy.scope(): ..."),
            ("experimental_max_worker_delay_secs", "not needed: workers of a strategy start together", ""),
            ("session_creation_timeout_secs", "not needed: there is no session", ""),
            ("checkpoint_save_graph_def", "not needed: object-based checkpoints hold no graph", ""),
            ("replace", "an ordinary argument", _FIT),
        ),
    ),
)  # fmt: skip

_SPECS = (
    Row("tf.estimator.TrainSpec", "train and eval spec", "arguments of fit", _FIT,
        fields=("input_fn", "max_steps", "hooks", "saving_listeners"), rule="train_and_evaluate"),
    *table(
        "train and eval spec",
        "tf.estimator.TrainSpec.",
        (
            ("input_fn", "the training data of fit", "model.fit(train_input_fn(), ...)"),
            ("max_steps", "steps_per_epoch and epochs", "model.fit(..., steps_per_epoch=n, epochs=max_steps // n)"),
            ("hooks", "callbacks of fit", "model.fit(..., callbacks=[...])"),
            ("saving_listeners", "callbacks", "class AfterSave(tf.keras.callbacks.Callback): ..."),
        ),
    ),
    Row("tf.estimator.EvalSpec", "train and eval spec", "validation_data of fit, or evaluate", _FIT,
        fields=("input_fn", "steps", "name", "hooks", "exporters", "start_delay_secs", "throttle_secs"),
        rule="train_and_evaluate"),
    *table(
        "train and eval spec",
        "tf.estimator.EvalSpec.",
        (
            ("input_fn", "validation_data", "model.fit(..., validation_data=eval_input_fn())"),
            ("steps", "validation_steps", "model.fit(..., validation_steps=steps)"),
            ("name", "the folder of a TensorBoard callback", "tf.keras.callbacks.TensorBoard(...)"),
            ("hooks", "callbacks of evaluate", "model.evaluate(..., callbacks=[...])"),
            ("exporters", "ModelCheckpoint for the best, tf.saved_model.save at the end",
             "tf.keras.callbacks.ModelCheckpoint(path, save_best_only=True)"),
            ("start_delay_secs", "not needed: evaluation follows an epoch", ""),
            ("throttle_secs", "validation_freq", "model.fit(..., validation_freq=1)"),
        ),
    ),
)  # fmt: skip

_CALLS = (
    Row("tf.estimator.train_and_evaluate", "call", "fit with validation_data", _FIT, rule="train_and_evaluate"),
    *table(
        "call",
        "tf.estimator.Estimator.",
        (
            ("train", "model.fit", _FIT),
            ("evaluate", "model.evaluate", "model.evaluate(eval_data, steps=steps, return_dict=True)"),
            ("predict", "model.predict; an array, not a generator", "model.predict(data)"),
            ("export_saved_model", "tf.saved_model.save with signatures",
             "tf.saved_model.save(model, path, signatures={'serving_default': serve})"),
            ("export_savedmodel", "tf.saved_model.save with signatures",
             "tf.saved_model.save(model, path, signatures={'serving_default': serve})"),
            ("experimental_export_all_saved_models", "tf.saved_model.save, once for each mode",
             "tf.saved_model.save(model, path, signatures={...})"),
            ("get_variable_names", "names of model.weights", "[weight.name for weight in model.weights]"),
            ("get_variable_value", "a layer's weights", "model.get_layer(name).get_weights()"),
            ("latest_checkpoint", "tf.train.latest_checkpoint", "tf.train.latest_checkpoint(folder)"),
            ("eval_dir", "the folder of a TensorBoard callback", "os.path.join(model_dir, 'eval')"),
        ),
    ),
    Row("tf.contrib.learn.learn_runner.run", "call", "tf.estimator.train_and_evaluate, or fit", _FIT, runs=False),
    Row("tf.contrib.learn.Experiment", "call", "tf.estimator.train_and_evaluate, or fit", _FIT, runs=False),
)  # fmt: skip

_KERAS = (
    Row("tf.keras.estimator.model_to_estimator", "keras estimator", "the Keras model itself", "model.fit(train_data)",
        gives="tf.estimator.Estimator", rule="model_to_estimator"),
)  # fmt: skip

_TPU = (
    *table(
        "tpu",
        "tf.compat.v1.estimator.tpu.",
        (
            ("TPUEstimator", "a Keras model in the scope of tf.distribute.TPUStrategy",
             "strategy = tf.distribute.TPUStrategy(resolver)\nwith strategy.scope():\n    model = build_model()"),
            ("TPUEstimatorSpec", "outputs of the model, and model.compile",
             "model.compile(optimizer=..., loss=..., metrics=[...], steps_per_execution=iterations)"),
            ("RunConfig", "tf.distribute.TPUStrategy and arguments of fit", "tf.distribute.TPUStrategy(resolver)"),
            ("TPUConfig", "steps_per_execution of compile", "model.compile(..., steps_per_execution=iterations)"),
            ("InputPipelineConfig", "strategy.distribute_datasets_from_function",
             "strategy.distribute_datasets_from_function(dataset_fn)"),
        ),
    ),
    Row("tf.compat.v1.estimator.tpu.experimental.EmbeddingConfigSpec", "tpu",
        "tf.tpu.experimental.embedding.TPUEmbedding", "tf.tpu.experimental.embedding.TPUEmbedding(...)", runs=False,
        because="TensorFlow 2.16 removed the TPU embeddings that it uses; it only works on 2.15"),
    Row("tf.compat.v1.tpu.CrossShardOptimizer", "tpu", "not needed: a strategy sums the gradients",
        "model.compile(optimizer=optimizer)", also=("tf.contrib.tpu.CrossShardOptimizer",)),
)  # fmt: skip

ROWS = (*_ESTIMATORS, *_CANNED, *_GONE, *_FUNCTIONS, *_MODE, *_SPEC, *_CONFIG, *_SPECS, *_CALLS, *_KERAS, *_TPU)
