"""Evaluation and exports of checkpoints by the Keras engines, in the chief or in an evaluator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.exporting import served_features, tensors_by_name
from estimator_pipeline.engines.keras_common import checkpoints
from estimator_pipeline.engines.keras_common.callbacks import batches_callback
from estimator_pipeline.engines.keras_common.plan import KerasPlan, evaluation_data, scope
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.models import summaries as event_files
from estimator_pipeline.models.keras_model import save_keras_model
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.progress.stages import LongStep
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.logger import logger

__all__ = ["KERAS_FILE", "KerasEvaluation"]

# The final checkpoint's model, with its layers and its compile configuration.
KERAS_FILE = "model.keras"


class KerasEvaluation:
    """Evaluates and exports checkpoints of a Keras engine in this process; see `Evaluation`.

    Exporters get this object in place of an Estimator. SavedModels have the signatures that the Estimator engine
    exports.

    Args:
        plan: The job's plan.
        checkpoint_of: `checkpoint_of(model, whole)` returns the `tf.train.Checkpoint` of a compiled model with its
            optimizer (whole), or of the state that an evaluation needs.
        report: Called with lines about how far a long evaluation is.
    """

    def __init__(
        self,
        plan: KerasPlan,
        *,
        checkpoint_of: Callable[[Any, bool], Any],
        report: Callable[[str], None] = logger.info,
    ) -> None:
        self._report = report
        self._plan, self._checkpoint_of, self.model_dir = plan, checkpoint_of, plan.model_dir
        self._model: Any = None
        self._writer: Any = None

    @property
    def exported(self) -> Any:
        return self

    def metrics_of(self, checkpoint: str) -> Mapping[str, Any]:
        plan = self._plan
        if self._model is None:
            with scope(plan.eval_strategy):
                self._model = plan.build_model()
                self._checkpoint = self._checkpoint_of(self._model, False)
            self._data, self._steps = evaluation_data(plan, plan.eval_strategy)
        checkpoints.restore(self._checkpoint, checkpoint, whole=False)
        moving_averages.take(self._model)
        step, shown = checkpoint_step(checkpoint), []
        if self._steps is not None:
            progress = LongStep(f"evaluating step {step}", self._steps, self._report, first=False)
            shown = [batches_callback(lambda batches: progress.done(batches, noun="batches"))]
        values = self._model.evaluate(self._data, steps=self._steps, return_dict=True, verbose=0, callbacks=shown)
        metrics = {**plan.outputs.completed({name: float(v) for name, v in values.items()}), "global_step": step}
        self.summarize(metrics, step)
        return metrics

    def summarize(self, metrics: Mapping[str, Any], step: int) -> None:
        if self._writer is None:
            name = self._plan.eval_spec.name
            folder = os.path.join(self.model_dir, f"eval_{name}" if name else "eval")
            self._writer = compat.tensorflow().summary.create_file_writer(folder)
        event_files.write_scalars(self._writer, metrics, step=step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._model = None

    # -- exports --------------------------------------------------------------------------------------------------

    def model_of(self, checkpoint: str) -> Any:
        """Return the compiled model with the values of a checkpoint, as it was evaluated."""
        model = self._plan.build_model()
        checkpoints.restore(self._checkpoint_of(model, True), checkpoint, whole=False)
        moving_averages.take(model)
        return model

    def write_final(self, checkpoint: str) -> Sequence[str]:
        path = os.path.join(self.model_dir, KERAS_FILE)
        try:
            save_keras_model(self.model_of(checkpoint), path)
        except (NotImplementedError, TypeError, ValueError) as error:
            # A layer without get_config. The checkpoint is sufficient to build the model again.
            logger.warning("%s was not written: %s", path, str(error).strip().splitlines()[0])
            return ()
        return (path,)

    def export_saved_model(
        self, export_dir_base: str, serving_input_receiver_fn: Any = None, *, checkpoint_path: str, **ignored: Any
    ) -> str:
        """Write the SavedModel of a checkpoint to a new folder in `export_dir_base`, named by the time in seconds.

        The exporters of `tf.estimator` call it like `Estimator.export_saved_model`.

        Returns:
            The folder.
        """
        tf = compat.tensorflow()
        model = self.model_of(checkpoint_path)
        module = tf.Module()
        # Only the variables and lookup tables: saving the model would save its optimizer, and loading would require
        # Keras.
        module.model_variables = model.variables
        module.model_tables = [
            part
            for part in tf.train.TrackableView(model).descendants()
            if isinstance(part, tf.saved_model.experimental.TrackableResource)
        ]
        gfile = tf.io.gfile
        stamp = int(time.time())
        while gfile.exists(os.path.join(export_dir_base, str(stamp))):
            stamp += 1
        folder, unfinished = (os.path.join(export_dir_base, name) for name in (str(stamp), f"temp-{stamp}"))
        gfile.makedirs(export_dir_base)
        transform = None if self._plan.transform is None else self._plan.transform.bind(tf)
        module.lookup_tables = [] if transform is None else transform.resources
        tf.saved_model.save(module, unfinished, signatures=self._signatures(model, transform))
        durable.rename(unfinished, folder, by=gfile.rename)
        return folder

    def _signatures(self, model: Any, transform: Any) -> dict[str, Any]:
        tf, plan, spec, parse = compat.tensorflow(), self._plan, self._plan.features_spec, self._plan.parse_examples
        assert spec is not None and parse is not None, "required by each exporter"
        parse = tf.autograph.experimental.do_not_convert(parse)  # AutoGraph fails on assignment expressions.
        outputs = plan.outputs.signature_outputs(plan.signatures)
        tensors = {name: tf.TensorSpec(t.shape, t.dtype, name=name) for name, t in tensors_by_name(spec).items()}

        def answer(key: str, features: Mapping[str, Any]) -> dict[str, Any]:
            inputs = features if transform is None else transform.served(features)
            inputs = next(iter(inputs.values())) if plan.takes_tensor else inputs
            return outputs[key](model(inputs, training=False))

        def function(key: str) -> Any:
            if key.rpartition("/")[2] not in ("classification", "regression"):
                by_name = tf.function(lambda **tensors: answer(key, served_features(tensors, spec)))
                return by_name.get_concrete_function(**tensors)
            # TensorFlow Serving requires serialized examples; the name is that of an Estimator's signatures.
            return tf.function(lambda inputs: answer(key, parse(inputs))).get_concrete_function(
                inputs=tf.TensorSpec([None], tf.string, name="inputs")
            )

        return {key: function(key) for key in outputs}
