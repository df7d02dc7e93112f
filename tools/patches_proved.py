"""Check that each patch of a fault of tf.estimator is needed: its test fails without the patch.

    python tools/patches_proved.py [NAME ...]

All patches take about twenty minutes, mostly in clusters that hang.

Each test runs with every patch, and must pass, and with ESTIMATOR_PIPELINE_PATCHES=-NAME, and must fail. The last line
is the summary; the exit code is 1 if a patch is not shown to be needed. docs/reference/known-faults.md names the same
tests, and a test compares the two.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CLUSTERS = "tests/compat/test_legacy_programs.py::"

# Patch -> a test that fails without it. The tests of BOTH_WAYS run with and without their patch.
TESTS = {
    "train-and-evaluate": _CLUSTERS + "test_every_task_ends_with_the_final_evaluation[mwm-no-evaluator]",
    "every-checkpoint": "tests/compat/test_evaluations.py::test_every_checkpoint_is_evaluated_in_one_graph",
    "cached-evaluation": "tests/compat/test_evaluations.py::test_every_checkpoint_is_evaluated_in_one_graph",
    "even-batches": "tests/compat/test_even_batches.py::test_every_record_is_counted",
    "evaluator-strategy": _CLUSTERS + "test_every_task_ends_with_the_final_evaluation[mwm]",
    "missing-peers": "tests/compat/test_missing_peers.py::test_it_ends_and_names_who_is_missing",
    "lost-peers": _CLUSTERS + "test_a_worker_that_is_killed_ends_the_others",
    "common-end": "tests/engines/test_uneven_data.py::test_an_unchanged_program[two]",
    "refused-steps": "tests/compat/test_refused_steps.py::test_a_server_refuses_a_step",
    "short-waits": "tests/compat/test_short_waits.py",
    "init-fn": "tests/compat/test_init_fn.py::test_a_worker_waits_for_the_chiefs_init_fn",
    "sync-replicas": "tests/compat/test_sync_replicas.py::test_the_session_closes_at_once_and_its_threads_end",
    "early-stopping": _CLUSTERS + "test_early_stopping_stops_every_task[mwm-seconds]",
    "model-dir-lock": "tests/compat/test_model_dir_lock.py::test_a_torn_checkpoint_is_set_aside",
    "durable-checkpoints": "tests/compat/test_durable_checkpoints.py::"
    "test_files_are_synced_before_they_are_named[by_saver]",
    "endless-evaluation": "tests/compat/test_data_ends.py::test_data_without_an_end_are_refused",
    "in-memory-evaluator": "tests/compat/test_in_memory_evaluator.py::test_every_evaluation_sees_all_data",
    "baseline-features": "tests/compat/test_baseline_features.py::test_it_learns_the_frequencies",
    "mirrored-cpu": _CLUSTERS + "test_mirrored_over_logical_cpus_trains_and_evaluates",
    "gather-sizes": "tests/compat/test_gather_sizes.py::test_a_gather_with_another_number_of_rows_at_each_step",
    "optimizer-objects": "tests/compat/test_optimizer_objects.py::test_two_trainings_and_an_evaluation",
    "restored-shapes": "tests/compat/test_restored_shapes.py::test_refused",
    "train-op": "tests/compat/test_train_op.py::test_moving_statistics_that_train_op_leaves_out",
    "moved-names": "tests/compat/test_real_programs.py::test_adanet",
    "batch-norm-averages": "tests/compat/surface/test_surface_keras_model.py::"
    "test_averages_of_batch_normalization_are_taken_along",
    "weights-h5": "tests/compat/test_weights_h5.py",
    "pandas-strings": "tests/compat/test_pandas_strings.py::test_pandas_input_fn_takes_text",
    "literal-paths": "tests/compat/test_literal_paths.py::test_a_second_start_goes_on_and_old_checkpoints_are_removed",
    "graph-text": "tests/compat/test_graph_text.py::test_what_a_training_writes",
    "spawned-children": "tests/compat/test_patches.py::test_a_spawned_child_has_tf_estimator",
    "column-classes": "tests/compat/test_column_classes.py::test_a_column_is_of_its_class",
    "shard-order": "tests/compat/test_shard_order.py::test_sharding_by_records_after_a_shuffle",
    "shared-embeddings": "tests/compat/test_shared_embeddings.py::test_a_table_is_trained",
    "warm-start": "tests/compat/test_warm_start.py::test_moving_statistics_that_are_left",
    "v2-summaries": "tests/compat/test_v2_summaries.py::test_they_are_those_of_version_1",
    "graph-seed": "tests/compat/test_graph_seed.py::test_two_runs_with_a_seed_are_equal",
    "layer-apply": "tests/compat/test_layer_apply.py::test_apply_calls_the_layer",
}

BOTH_WAYS = {
    "device-filters": "tests/compat/test_device_filters.py::test_a_worker_that_comes_when_the_chief_has_ended",
    "sigterm": _CLUSTERS + "test_sigterm_where_train_and_evaluate_is_tensorflows_own",
    "best-exporter": "tests/compat/test_best_exporter.py::test_without_the_patch_it_does",
    "embedding-gathers": "tests/compat/test_embedding_gathers.py::test_sparse_sums_have_the_same_bits_together",
    "gradient-packs": "tests/compat/test_gradient_packs.py::test_the_gradients_of_an_estimator_travel_together",
}


def passes(test: str, patches: str) -> bool:
    """Return whether a test passes in a separate process with these patches, which its child processes inherit."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    environ = {**os.environ, "ESTIMATOR_PIPELINE_PATCHES": patches}
    done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{test} could not be run:\n{done.stdout[-3000:]}")
    return done.returncode == 0


def main() -> int:
    wrong = []
    for name in sys.argv[1:] or TESTS:
        with_it, without = passes(TESTS[name], "all"), passes(TESTS[name], f"-{name}")
        verdict = "needed" if with_it and not without else "NOT SHOWN"
        print(
            f"{name}: {'passes' if with_it else 'FAILS'} with it, {'PASSES' if without else 'fails'} without: {verdict}"
        )
        if verdict != "needed":
            wrong.append(name)
    print(f"not shown: {', '.join(wrong)}" if wrong else "every patch is needed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
