"""Moves that comparing code cannot detect, and pairs of names that only look like a move.

`.` at the beginning of a name means `tensorflow.python`.
"""

from __future__ import annotations


def _full(name: str) -> str:
    return "tensorflow.python" + name if name.startswith(".") else name


def _pairs(table: dict[str, str]) -> dict[str, str]:
    return {_full(old): _full(new) for old, new in table.items()}


# Old module -> current module, for a module that moved completely.
MODULES = _pairs(
    {
        ".distribute.estimator_training": "estimator_pipeline.compat.internals.distribute_coordinator",
        # Deprecated modules that only re-exported the names of these.
        ".distribute.distribution_strategy_context": ".distribute.distribute_lib",
        ".training.distribute": ".distribute.distribute_lib",
        ".training.distribution_strategy_context": ".distribute.distribute_lib",
        ".training.gen_training_ops": ".ops.gen_training_ops",
        ".training.training_ops": ".ops.gen_training_ops",
        # Most of its classes; the others have separate modules.
        ".training.tracking.tracking": ".trackable.autotrackable",
        # Removed in TensorFlow 2.20; reimplemented on the internals of the public profiler.
        ".eager.profiler": "estimator_pipeline.compat.bootstrap.eager_profiler",
        ".eager.profiler_client": "estimator_pipeline.compat.bootstrap.eager_profiler_client",
    }
)

# Not in the table: compat/bootstrap/tpu_stubs.py replaces these modules with classes that raise when they are used, not
# when they are imported; compat/bootstrap/export_table.py restores the constant and
# compat/internals/saving/input_checkpoints.py the hook.
NOT_BY_TABLE = {
    _full(name)
    for name in (
        ".data.experimental.CheckpointInputPipelineHook",
        ".data.experimental.ops.iterator_ops.CheckpointInputPipelineHook",
        ".tpu.session_support",
        ".tpu.tpu_embedding",
        ".tpu.tpu_embedding_gradient",
        ".util.tf_export.ESTIMATOR_API_NAME",
    )
}

# Old name -> current name of the same object, where the move changed the code.
NAMES = _pairs(
    {
        # Deprecated aliases that were removed.
        ".util.nest.is_sequence": ".util.nest.is_nested",
        ".data.util.nest.is_sequence": ".data.util.nest.is_nested",
        # TensorFlow's feature columns lost the model, and the estimator package took it over.
        ".feature_column.feature_column_lib.LinearModel": (
            "tensorflow_estimator.python.estimator.canned.linear.LinearModel"
        ),
        ".feature_column.feature_column_v2.LinearModel": (
            "tensorflow_estimator.python.estimator.canned.linear.LinearModel"
        ),
        # The V2 function was removed, and V1's has the same name with a suffix.
        ".training.experimental.mixed_precision.enable_mixed_precision_graph_rewrite": (
            ".training.experimental.mixed_precision.enable_mixed_precision_graph_rewrite_v1"
        ),
        ".training.experimental.mixed_precision.disable_mixed_precision_graph_rewrite": (
            ".training.experimental.mixed_precision.disable_mixed_precision_graph_rewrite_v1"
        ),
        ".training.training.enable_mixed_precision_graph_rewrite": (
            ".training.experimental.mixed_precision.enable_mixed_precision_graph_rewrite_v1"
        ),
        # SWIG's module had the reader; programs called it through the wrapper that raises Python errors.
        ".pywrap_tensorflow.NewCheckpointReader": ".training.py_checkpoint_reader.NewCheckpointReader",
        ".pywrap_tensorflow_internal.NewCheckpointReader": ".training.py_checkpoint_reader.NewCheckpointReader",
        ".pywrap_tensorflow.CheckpointReader": ".util._pywrap_checkpoint_reader.CheckpointReader",
        ".pywrap_tensorflow_internal.CheckpointReader": ".util._pywrap_checkpoint_reader.CheckpointReader",
        # Functions of the same name that are too short or too much changed to be recognised.
        ".distribute.values.is_distributed_variable": ".distribute.distribute_utils.is_distributed_variable",
        ".distribute.values.TPUMirroredVariable": ".distribute.tpu_values.TPUMirroredVariable",
        ".keras.engine.training_utils.verify_dataset_shuffled": (
            ".keras.engine.training_utils_v1.verify_dataset_shuffled"
        ),
        ".keras.saving.utils_v1.mode_keys.EstimatorModeKeys": ".saved_model.model_utils.mode_keys.EstimatorModeKeys",
        ".layers.utils.get_reachable_from_inputs": ".keras.utils.tf_utils.get_reachable_from_inputs",
        ".tpu.tpu_strategy_util.initialize_tpu_system": (
            ".distribute.cluster_resolver.tpu.tpu_cluster_resolver.initialize_tpu_system"
        ),
        ".tpu.tpu_strategy_util.shutdown_tpu_system": (
            ".distribute.cluster_resolver.tpu.tpu_cluster_resolver.shutdown_tpu_system"
        ),
        ".util.tf_export.estimator_export": ("tensorflow_estimator.python.estimator.estimator_export.estimator_export"),
        ".util.compat_internal.path_to_str": ".util.compat.path_to_str",
    }
)

# Pairs that only look like a move.
REJECTED = {
    (_full(old), _full(new))
    for old, new in (
        (
            ".distribute.parameter_server_strategy.ParameterServerStrategy",
            ".distribute.parameter_server_strategy_v2.ParameterServerStrategyV2",
        ),
        (
            ".keras.mixed_precision.experimental.test_util.AddLayer",
            ".keras.mixed_precision.experimental.test_util.MultiplyLayer",
        ),
    )
}

# tf.contrib: packages that keep few names, but those that Estimator programs imported; and names that their package had
# removed before TensorFlow 1.15.
CONTRIB_PACKAGES = {"tensorflow.contrib.estimator", "tensorflow.contrib.rnn"}
CONTRIB = {
    ("tensorflow.contrib.estimator", name): (f"tensorflow_estimator.python.estimator.{module}", name)
    for module, names in {
        "early_stopping": (
            "make_early_stopping_hook",
            "read_eval_metrics",
            "stop_if_higher_hook",
            "stop_if_lower_hook",
            "stop_if_no_decrease_hook",
            "stop_if_no_increase_hook",
        ),
        "hooks.hooks": ("InMemoryEvaluatorHook", "make_stop_at_checkpoint_step_hook"),
    }.items()
    for name in names
}
