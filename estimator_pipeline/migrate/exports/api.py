"""A SavedModel of a Keras model with the signatures of an old export, compared with it: `migrate export`.

    done = migrate_export("exports/1700000000", model=make_model, checkpoint="runs/keras", output="exports/keras")
    print(done)

The steps: read the signatures of the old export (`read`), build the Keras model (`keras_model`), map its outputs
(`outputs`), write the SavedModel (`write`), and run both on the same inputs (`sample_inputs`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.migrate.exports.result import MigratedExport

__all__ = ["migrate_export"]


def migrate_export(
    source: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    job: str | os.PathLike[str] | None = None,
    settings: Sequence[str] = (),
    model: str | Callable[[], Any] | None = None,
    engine: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    mapping: Mapping[str, str] | str | os.PathLike[str] | None = None,
    use_ema_weights: bool = False,
    allow_leftover: Sequence[str] = (),
    signature: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    head: str | None = None,
    gives: str | None = None,
    features: str | Callable[[Any], Any] | None = None,
    examples: str | os.PathLike[str] | None = None,
    inputs: str | os.PathLike[str] | None = None,
    records: int = 64,
    seed: int = 0,
    tolerance: str = "rounding",
    overwrite: bool = False,
    allow_mismatch: bool = False,
) -> MigratedExport:
    """Export a Keras model with the signatures of an Estimator's export.

    Both exports run on the same inputs, and their outputs are compared.

    Args:
        source: The old export: a SavedModel folder on a local disk.
        output: The folder for the new export.
        job: A job file with the model, the head and, without `checkpoint`, the model_dir with the latest checkpoint.
        settings: Overrides of job fields, as in `--set`.
        model: A function that returns a Keras model, its name (`file.py:function`), or a `.keras` file.
        engine: "keras" (Keras 2) or "keras3"; default: the engine of the job, or Keras 2.
        checkpoint: The weights: a source of `migrate_checkpoint` (a checkpoint of Keras or an Estimator, a `.keras`
            file), or an export. None: the weights of the model.
        mapping: Mapping of weights, see `migrate_checkpoint`.
        use_ema_weights: Whether the moving averages replace the weights.
        allow_leftover: Names or patterns of variables of the checkpoint that the model does not need.
        signature: Explicit `outputs`, `inputs` and `classes`, or a YAML file with them, if names are ambiguous.
        head: The meaning of the logits: "multi_class", "binary", "multi_label" or "regression"; default: derived from
            the names of the outputs.
        gives: The model's output: "logits" (default), "probabilities" or "predictions".
        features: A function, or its name, from the features (name -> tensor) to the model's input.
        examples: A TFRecord file of `tf.Example`, to compare signatures of serialized examples.
        inputs: An `.npz` file of arrays, to compare signatures of tensors.
        records: The number of examples to compare.
        seed: The seed for random examples, if no file is given.
        tolerance: The tolerance of floating-point outputs: bit_equal, rounding or amplified. Other outputs must be
            equal.
        overwrite: Whether to replace an existing output.
        allow_mismatch: Whether to write the export even if its outputs differ.

    Returns:
        The comparison of every output of every signature.

    Raises:
        ConfigError: The model does not fit the export. The message lists all problems, and nothing is written.
    """
    from estimator_pipeline.job.name_mapping import read_mapping
    from estimator_pipeline.migrate.exports import outputs as output_mappings
    from estimator_pipeline.migrate.exports import pipeline as steps
    from estimator_pipeline.migrate.exports.keras_model import ExportRequest

    request = ExportRequest(
        source=os.path.normpath(os.fspath(source)),
        output=os.path.normpath(os.fspath(output)),
        head=head,
        gives=gives,
        features=features,
        examples=None if examples is None else os.fspath(examples),
        inputs=None if inputs is None else os.fspath(inputs),
        records=records,
        seed=seed,
        tolerance=tolerance,
        overwrite=overwrite,
        allow_mismatch=allow_mismatch,
        job=None if job is None else os.fspath(job),
        settings=tuple(settings),
        model=model,
        engine=engine,
        checkpoint=None if checkpoint is None else os.fspath(checkpoint),
        mapping=read_mapping(Path(mapping)) if isinstance(mapping, str | os.PathLike) else mapping or {},
        use_ema_weights=use_ema_weights,
        allow_leftover=tuple(allow_leftover),
    )
    steps.check(request)
    overrides = output_mappings.ExportOverrides()
    if isinstance(signature, Mapping):
        overrides = output_mappings.overrides_of(signature, source="signature")
    elif signature is not None:
        overrides = output_mappings.read_overrides(Path(signature))
    return steps.migrate(request, overrides)
