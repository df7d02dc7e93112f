"""Hooks, exporters, heads, export outputs and warm starts."""

from __future__ import annotations

from estimator_pipeline.migrate.code.catalogue.row import Row, table

__all__ = ["ROWS"]

_CALLBACK = "class Mine(tf.keras.callbacks.Callback):\n    def on_train_batch_end(self, batch, logs=None): ..."


def _hook(name: str, successor: str, write: str, *, train: bool = True) -> Row:
    """Return a hook that TensorFlow has as tf.estimator.X and as tf.train.X."""
    also = (f"tf.compat.v1.train.{name}",) if train else ()
    return Row(f"tf.estimator.{name}", "hook", successor, write, also=also, rule=f"hook:{name}")


_HOOKS = (
    _hook("SessionRunHook", "tf.keras.callbacks.Callback", _CALLBACK),
    _hook("SessionRunArgs", "a tensor that the callback reads", _CALLBACK),
    _hook("SessionRunContext", "self.model of a callback", "self.model.stop_training = True"),
    _hook("SessionRunValues", "`logs` of a callback's method", "logs['loss']"),
    _hook("CheckpointSaverHook", "ModelCheckpoint with save_freq",
          "tf.keras.callbacks.ModelCheckpoint(path, save_freq=save_steps)"),
    _hook("CheckpointSaverListener", "a callback",
          "class AfterSave(tf.keras.callbacks.Callback):\n    def on_epoch_end(self, epoch, logs=None): ..."),
    _hook("FeedFnHook", "not needed: data come from the data set", ""),
    _hook("FinalOpsHook", "on_train_end of a callback",
          "class AtEnd(tf.keras.callbacks.Callback):\n    def on_train_end(self, logs=None): ..."),
    _hook("GlobalStepWaiterHook", "not needed: workers of a strategy start together", ""),
    _hook("LoggingTensorHook", "metrics, or LambdaCallback",
          "tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: print(batch, logs))"),
    _hook("NanTensorHook", "TerminateOnNaN", "tf.keras.callbacks.TerminateOnNaN()"),
    _hook("NanLossDuringTrainingError", "not needed: TerminateOnNaN ends fit without an error",
          "if np.isnan(history.history['loss'][-1]): ..."),
    _hook("ProfilerHook", "TensorBoard's profile_batch",
          "tf.keras.callbacks.TensorBoard(model_dir, profile_batch=(10, 20))"),
    _hook("SecondOrStepTimer", "a count of batches in a callback", _CALLBACK),
    _hook("StepCounterHook", "TensorBoard, or a callback that counts steps",
          "tf.keras.callbacks.TensorBoard(model_dir, write_steps_per_second=True)"),
    _hook("StopAtStepHook", "steps_per_epoch and epochs", "model.fit(..., steps_per_epoch=n, epochs=last_step // n)"),
    _hook("SummarySaverHook", "TensorBoard's update_freq",
          "tf.keras.callbacks.TensorBoard(model_dir, update_freq=save_steps)"),
    *table(
        "hook",
        "tf.estimator.experimental.",
        (
            ("InMemoryEvaluatorHook", "validation_data and validation_freq",
             "model.fit(..., validation_data=eval_data, validation_freq=1)"),
            ("make_early_stopping_hook", "a callback that sets stop_training",
             "def on_epoch_end(self, epoch, logs=None):\n    self.model.stop_training = should_stop()"),
            ("make_stop_at_checkpoint_step_hook", "steps_per_epoch and epochs", "model.fit(..., epochs=...)"),
            ("stop_if_higher_hook", "a callback that compares the metric with the threshold",
             "self.model.stop_training = logs['val_' + metric] > threshold"),
            ("stop_if_lower_hook", "a callback that compares the metric with the threshold",
             "self.model.stop_training = logs['val_' + metric] < threshold"),
            ("stop_if_no_decrease_hook", "EarlyStopping",
             "tf.keras.callbacks.EarlyStopping('val_loss', patience=..., mode='min')"),
            ("stop_if_no_increase_hook", "EarlyStopping",
             "tf.keras.callbacks.EarlyStopping('val_accuracy', patience=..., mode='max')"),
        ),
    ),
    Row("tf.data.experimental.CheckpointInputPipelineHook", "hook", "BackupAndRestore",
        "tf.keras.callbacks.BackupAndRestore(folder)",
        because="it keeps the place in the data, which BackupAndRestore does not"),
    Row("SessionRunHook subclass", "hook", "a tf.keras.callbacks.Callback subclass",
        "class Mine(tf.keras.callbacks.Callback):\n"
        "    def on_train_begin(self, logs=None): ...        # begin, after_create_session\n"
        "    def on_train_batch_end(self, batch, logs=None): ...  # after_run\n"
        "    def on_train_end(self, logs=None): ...          # end", rule="hook:subclass"),
    Row("CheckpointSaverListener subclass", "hook", "a tf.keras.callbacks.Callback subclass",
        "class AfterSave(tf.keras.callbacks.Callback): ..."),
    *table(
        "hook",
        "tf.compat.v1.train.",
        (
            ("SessionCreator", "not needed: there is no session", ""),
            ("ChiefSessionCreator", "not needed: there is no session", ""),
            ("WorkerSessionCreator", "not needed: there is no session", ""),
        ),
    ),
)  # fmt: skip

_EXPORTERS = (
    *table(
        "exporter",
        "tf.estimator.",
        (
            ("Exporter", "a callback that calls tf.saved_model.save", "tf.saved_model.save(model, path)"),
            ("BestExporter", "ModelCheckpoint with save_best_only, then tf.saved_model.save",
             "tf.keras.callbacks.ModelCheckpoint(path, monitor='val_loss', save_best_only=True)"),
            ("FinalExporter", "tf.saved_model.save after fit",
             "tf.saved_model.save(model, path, signatures={'serving_default': serve})"),
            ("LatestExporter", "a callback that saves at the end of each epoch",
             "def on_epoch_end(self, epoch, logs=None):\n    tf.saved_model.save(self.model, path)"),
        ),
    ),
    Row("Exporter subclass", "exporter", "a callback that calls tf.saved_model.save",
        "class Export(tf.keras.callbacks.Callback):\n    def on_epoch_end(self, epoch, logs=None): ..."),
)  # fmt: skip

_HEADS = (
    *table(
        "head",
        "tf.estimator.",
        (
            ("Head", "a loss and metrics of compile", "model.compile(loss=..., metrics=[...])"),
            ("BinaryClassHead", "BinaryCrossentropy from logits",
             "model.compile(loss=tf.keras.losses.BinaryCrossentropy(from_logits=True), metrics=['AUC'])"),
            ("LogisticRegressionHead", "BinaryCrossentropy from logits",
             "tf.keras.losses.BinaryCrossentropy(from_logits=True)"),
            ("MultiClassHead", "SparseCategoricalCrossentropy from logits",
             "tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)"),
            ("MultiHead", "a model of several outputs, a loss for each",
             "model.compile(loss={'a': loss_a, 'b': loss_b}, loss_weights={'a': 1.0, 'b': 0.5})"),
            ("MultiLabelHead", "BinaryCrossentropy from logits",
             "tf.keras.losses.BinaryCrossentropy(from_logits=True)"),
            ("PoissonRegressionHead", "Poisson", "tf.keras.losses.Poisson()  # of exp(logits)"),
            ("RegressionHead", "MeanSquaredError", "model.compile(loss='mse')"),
            ("add_metrics", "metrics of compile", "model.compile(metrics=[...])"),
            ("classifier_parse_example_spec", "tf.feature_column.make_parse_example_spec and the label's feature",
             "{**tf.feature_column.make_parse_example_spec(columns), 'label': tf.io.FixedLenFeature([1], tf.int64)}"),
            ("regressor_parse_example_spec", "tf.feature_column.make_parse_example_spec and the label's feature",
             "{**tf.feature_column.make_parse_example_spec(columns), 'label': tf.io.FixedLenFeature([1], tf.float32)}"),
        ),
    ),
    Row("tf.estimator.Head.create_estimator_spec", "head", "outputs of the model, and model.compile",
        "model.compile(optimizer=optimizer, loss=loss, metrics=metrics)"),
    Row("Head subclass", "head", "a tf.keras.losses.Loss subclass and metrics",
        "class MyLoss(tf.keras.losses.Loss):\n    def call(self, y_true, y_pred): ..."),
)  # fmt: skip

_SERVE = "@tf.function(input_signature=[...])\ndef serve(x): return {'scores': model(x)}"
_OUTPUTS = (
    *table(
        "export output",
        "tf.estimator.export.",
        (
            ("ExportOutput", "the dict that a signature's function returns", _SERVE),
            ("ClassificationOutput", "the dict that a signature's function returns",
             "return {'classes': ..., 'scores': ...}"),
            ("EvalOutput", "not needed: evaluation has no signature", ""),
            ("PredictOutput", "the dict that a signature's function returns", _SERVE),
            ("RegressionOutput", "the dict that a signature's function returns", "return {'outputs': ...}"),
        ),
    ),
    *table(
        "serving input",
        "tf.estimator.export.",
        (
            ("ServingInputReceiver", "the input_signature of a tf.function", _SERVE),
            ("TensorServingInputReceiver", "the input_signature of a tf.function", _SERVE),
            ("build_parsing_serving_input_receiver_fn", "a signature that parses serialised Examples",
             "@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])\n"
             "def serve(examples): return model(tf.io.parse_example(examples, spec))"),
            ("build_raw_serving_input_receiver_fn", "a signature of the features' TensorSpecs",
             "model.export(path)  # adds such a signature"),
        ),
    ),
    Row("tf.estimator.experimental.build_raw_supervised_input_receiver_fn", "serving input",
        "not needed: fit and evaluate take data sets", ""),
)  # fmt: skip

_WARM = (
    Row("tf.estimator.WarmStartSettings", "warm start", "load weights before fit",
        "model.load_weights(path)  # or: estimator-pipeline migrate checkpoint"),
    Row("tf.estimator.VocabInfo", "warm start", "a copy of the rows of words that both vocabularies have",
        "new[i] = old[j]  # for each word at index i, which was at index j",
        also=("tf.compat.v1.train.VocabInfo",)),
    Row("tf.compat.v1.train.init_from_checkpoint", "warm start", "load_weights, or assign from tf.train.load_variable",
        "layer.set_weights([tf.train.load_variable(checkpoint, name)])"),
    Row("tf.compat.v1.train.warm_start", "warm start", "load_weights, or assign from tf.train.load_variable",
        "layer.set_weights([tf.train.load_variable(checkpoint, name)])"),
)  # fmt: skip

ROWS = (*_HOOKS, *_EXPORTERS, *_HEADS, *_OUTPUTS, *_WARM)
