"""A SavedModel from the Keras side with an old export's signatures, compared with it: `migrate export`.

    done = migrate_export("exports/1700000000", model=make_model, checkpoint="runs/keras", output="exports/keras")
    print(done)

The steps: what the old export takes and gives (`read`), the Keras model
(`keras_model`), which of its answers is which output
(`outputs`), the SavedModel
(`write`), and both asked the same
(`sample_inputs`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError
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
    """Write a Keras model with the signatures of an Estimator's export, and compare what the two answer.

    Args:
        source: the old export: a SavedModel's folder on a local disk.
        output: where the new one goes.
        job: a job file; its model, head and, without `checkpoint`, the latest checkpoint of its model_dir are taken.
        settings: changes to it, as `--set` takes them.
        model: a function that returns a Keras model, its name (`file.py:function`), or a `.keras` file.
        engine: "keras" (Keras 2) or "keras3"; by default what the job says, else Keras 2.
        checkpoint: whose weights are taken, as `migrate_checkpoint` reads them: of
            Keras, of an Estimator, a `.keras` file; or an export, whose variables are taken. None: those in the model.
        mapping: of weights, see `migrate_checkpoint`.
        use_ema_weights: weights are their moving averages.
        allow_leftover: names or patterns of variables of the checkpoint that the model does without.
        signature: what names do not say, or a YAML file of it: `outputs`, `inputs`, `classes`.
        head: what the logits mean: "multi_class", "binary", "multi_label" or "regression"; by default what the names
            of the outputs say.
        gives: what the model's output is: "logits" (the default), "probabilities" or "predictions".
        features: a function, or its name, that makes the model's input of the features (name -> tensor).
        examples: a TFRecord file of `tf.Example`, on which signatures of serialized examples are compared.
        inputs: an `.npz` file of arrays, on which signatures of tensors are compared.
        records: how many are compared.
        seed: of those that are drawn where none are given.
        tolerance: of floating-point answers, by name: bit_equal, rounding, amplified. Others are equal or not.
        overwrite: whether what is at the output may be replaced.
        allow_mismatch: whether an export that answers otherwise is written all the same.

    Returns:
        Every output of every signature, and how far it is from the old one.

    Raises:
        ConfigError: something does not fit; the message names all of it. Nothing has been written then.
    """
    from estimator_pipeline.job.name_mapping import read_mapping
    from estimator_pipeline.migrate.exports import outputs as output_mappings
    from estimator_pipeline.migrate.exports import pipeline as steps
    from estimator_pipeline.migrate.exports.keras_model import ModelRequest

    asked = steps.ExportRequest(
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
    )
    if (job is None) == (model is None):
        raise ConfigError(
            "the Keras side requires a job file (--job) or a model (--model)",
            code="argument/missing",
            found="both were given" if job is not None else "neither was given",
        )
    if settings and job is None:
        raise ConfigError(
            "--set changes a job file, and none was given",
            code="argument/not-applicable",
            hint="name the job file: --job JOB.yaml",
        )
    if engine not in (None, "keras", "keras3"):
        raise ConfigError(
            f"the engine {engine!r} is not known", code="argument/unknown-name", found="allowed: keras, keras3"
        )
    steps.check(asked)
    if signature is None:
        overrides = output_mappings.ExportOverrides()
    elif isinstance(signature, Mapping):
        overrides = output_mappings.overrides_of(signature, source="signature")
    else:
        overrides = output_mappings.read_overrides(Path(signature))
    if mapping is not None and not isinstance(mapping, Mapping):
        mapping = read_mapping(Path(mapping))
    request = ModelRequest(
        job=None if job is None else os.fspath(job),
        settings=tuple(settings),
        model=model,
        engine=engine,
        checkpoint=None if checkpoint is None else os.fspath(checkpoint),
        mapping=mapping or {},
        use_ema_weights=use_ema_weights,
        allow_leftover=tuple(allow_leftover),
    )
    return steps.migrate(asked, request, overrides)
