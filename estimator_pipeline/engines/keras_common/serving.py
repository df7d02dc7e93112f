"""SavedModels and `.keras` files of the Keras engine, with the signatures that the Estimator path exports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.exporting import parsed_examples
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_model import save_keras_model
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.models.outputs import Outputs
from estimator_pipeline.utils import durable_files as durable


class KerasServing:
    """Replaces the Estimator for exporters: writes a checkpoint's model as a SavedModel.

    Args:
        build_model: Builds the compiled model; its outputs are logits.
        restore: `restore(model, path)` restores it from a checkpoint.
        model_dir: The job's model directory.
        outputs: The heads of the outputs.
        features_spec: Feature name -> `tf.TensorSpec` of one record (no batch axis); None: unknown.
        single: Whether the model takes its only feature as a tensor, not as a dictionary.
        signatures: Some of "predict", "classify", "regress".

    Attributes:
        model_dir: See above.
    """

    def __init__(
        self,
        build_model: Callable[[], Any],
        *,
        restore: Callable[[Any, str], None],
        model_dir: str,
        outputs: Outputs,
        features_spec: Mapping[str, Any] | None,
        single: bool,
        signatures: tuple[str, ...] = ("predict",),
    ) -> None:
        self._build, self._restore, self.model_dir, self._outputs = build_model, restore, model_dir, outputs
        self._spec, self._single, self._signatures = features_spec, single, signatures

    def model_of(self, checkpoint_path: str) -> Any:
        """Return the compiled model with the values of a checkpoint, as it was evaluated."""
        model = self._build()
        self._restore(model, checkpoint_path)
        moving_averages.take(model)
        return model

    def export_saved_model(
        self, export_dir_base: str, serving_input_receiver_fn: Any = None, *, checkpoint_path: str, **ignored: Any
    ) -> str:
        """Write the SavedModel of a checkpoint to a new folder in `export_dir_base`, named by the time in seconds.

        The exporters of `tf.estimator` call it like `Estimator.export_saved_model`.

        Returns:
            The folder.
        """
        del serving_input_receiver_fn, ignored
        tf = compat.tensorflow()
        if self._spec is None:
            raise ConfigError(
                "the model cannot be exported: the features of a user-defined input function are unknown",
                code="training/unsupported",
                hint="export from Python: tf.saved_model.save(model, path)",
            )
        model = self.model_of(checkpoint_path)
        module = tf.Module()
        # Only the variables: saving the model would save its optimizer, and loading would require Keras.
        module.model_variables = model.variables
        gfile = tf.io.gfile
        stamp = int(time.time())
        while gfile.exists(os.path.join(export_dir_base, str(stamp))):
            stamp += 1
        folder, unfinished = (os.path.join(export_dir_base, name) for name in (str(stamp), f"temp-{stamp}"))
        gfile.makedirs(export_dir_base)
        tf.saved_model.save(module, unfinished, signatures=self._functions(tf, model))
        durable.rename(unfinished, folder, by=gfile.rename)
        return folder

    def _functions(self, tf: Any, model: Any) -> dict[str, Any]:
        spec = self._spec or {}
        outputs = self._outputs.signature_outputs(self._signatures)
        tensors = {
            name: tf.TensorSpec([None, *feature.shape.as_list()], feature.dtype, name=name)
            for name, feature in spec.items()
        }

        def answer(key: str, features: Mapping[str, Any]) -> dict[str, Any]:
            inputs = next(iter(features.values())) if self._single else dict(features)
            return outputs[key](model(inputs, training=False))

        def function(key: str) -> Any:
            if key.rpartition("/")[2] not in ("classification", "regression"):
                return tf.function(lambda **features: answer(key, features)).get_concrete_function(**tensors)
            # TensorFlow Serving requires serialized examples; the name is that of an Estimator's signatures.
            return tf.function(lambda inputs: answer(key, parsed_examples(inputs, spec))).get_concrete_function(
                inputs=tf.TensorSpec([None], tf.string, name="inputs")
            )

        return {key: function(key) for key in outputs}

    def save_keras_file(self, checkpoint_path: str, path: str) -> None:
        """Write a checkpoint's compiled model as a `.keras` file."""
        save_keras_model(self.model_of(checkpoint_path), path)
