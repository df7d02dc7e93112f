"""A `model_fn` built from a function that returns Keras layers, for all modes and any number of replicas.

It covers the parts of a `model_fn` with Keras layers that are easy to get wrong:

* **BatchNorm and other updates** run with the train step; Estimator does not collect them.
* **Dropout and BatchNorm** get `training=True` only in TRAIN.
* **Random numbers** of layers, where the run has a seed, depend on the step and the replica. Replicas drop different
  units, and a resumed run continues the random sequence.
* **Regularization losses** are added to the loss once, whatever the number of replicas.
* **Loss scaling.** Each replica differentiates `(mean loss of its examples + regularization) / replicas`, and the sum
  over replicas is applied. With R replicas of batch B, the step equals that of one replica with batch R*B, as in
  `Model.fit`. The division is explicit; `apply_gradients` adds no scaling, whichever optimizer family is used.
* **Clipping** follows the sum over replicas: the norm is that of the global batch's gradient.
* **Gradient accumulation**, where the optimizer requests it: see
  `estimator_pipeline.models.optimizers.gradient_accumulation`.
* **Moving averages** of the weights, where the optimizer requests them, replace the weights in EVAL and PREDICT: see
  `estimator_pipeline.models.optimizers.moving_averages`.
* **Sample and class weights** apply to the loss and to every metric: see `estimator_pipeline.models.sample_weights`.
* **Evaluation loss**: `average_loss` is the mean over examples. `loss`, which Estimator adds, is a mean of batch means
  and gives a small last batch too much weight.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import stateless_random as step_random
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.heads import SIGNATURES
from estimator_pipeline.models.histograms import add_histograms, checked_histograms
from estimator_pipeline.models.mixed_precision import policy_of, precision
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.models.optimizers.gradient_accumulation import changes, mean_of_steps
from estimator_pipeline.models.optimizers.loss_scaling import LossScale, apply_if
from estimator_pipeline.models.optimizers.spec import Optimizer, optimizer_of
from estimator_pipeline.models.outputs import Output, outputs_of
from estimator_pipeline.models.preprocessing_layers import build_layers
from estimator_pipeline.models.sample_weights import ClassWeights

__all__ = ["Optimizer", "build_model_fn"]

# The collection of a training graph that holds the learning rate of the step.
LEARNING_RATE = "estimator_pipeline/learning_rate"
# The collections with the names of the optimizer's variables, and of those among them that hold the hyperparameters of
# a Keras optimizer.
OF_OPTIMIZER = "estimator_pipeline/of_optimizer"
SETTINGS = "estimator_pipeline/settings_of_optimizer"


def build_model_fn(
    layers: Callable[..., Any],
    *,
    loss: str | Callable[[Any, Any], Any] | None = None,
    outputs: Mapping[str, Output | Mapping[str, Any]] | None = None,
    optimizer: str | Mapping[str, Any] | Optimizer | Callable[[Any], Any] = "sgd",
    metrics: Sequence[str] | Mapping[str, Callable[[Any, Any], Any]] | None = None,
    head: str | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    label_smoothing: float = 0.0,
    weight_column: str | None = None,
    class_weights: ClassWeights | None = None,
    label_vocabulary: Sequence[str] = (),
    mixed_precision: bool | str = False,
    signatures: Sequence[str] = SIGNATURES,
    histograms: Sequence[str] = (),
    params: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Build the `model_fn(features, labels, mode, params, config)` of a Keras model.

    Args:
        layers: `layers()` or `layers(params)` returns a Keras model or layer that maps a batch of features to logits
            (no softmax or sigmoid at its end). Called once for each graph and replica.
        loss: A name (see `estimator_pipeline.models.heads`), or `loss(labels, logits)` -> the loss of each example
            [B].
        outputs: The outputs of a model that returns a dictionary of logits. Replaces `loss`, `head`, `metrics` and the
            other fields of `Output`; see `estimator_pipeline.models.outputs`.
        optimizer: A name, a mapping with the fields of `Optimizer`, an `Optimizer`, or a function of the global step
            that returns a `tf.compat.v1.train` or `tf.keras.optimizers.legacy` optimizer. An optimizer object is
            rejected, because it belongs to one graph.
        metrics: Names, or name -> `metric(labels, predictions)` that returns (value, update) or a Keras metric. A
            function with a parameter `weights` gets the weights, float32 [B] or None. None: the head's first metric
            (accuracy, mean_squared_error).
        head: The meaning of the logits, where the loss does not define it: with a custom loss function, or
            "multi_label" with "binary_crossentropy".
        clip_norm: The global norm to which the summed gradient is clipped.
        clip_value: The absolute value to which each element of the summed gradient is clipped.
        label_smoothing: The share of each label that is spread evenly over the classes, in training and evaluation.
        weight_column: The key of the sample weights, [B] or [B, 1], in the dictionary of labels or, if not there, of
            features. The entry is removed; if only one label is left, it is passed on as a tensor.
        class_weights: The weight of each class in order, or a mapping from class numbers or names to weights; the
            other classes have weight 1. Multiplied with the sample weights.
        label_vocabulary: The class names, in order. With it, labels may be text, and predictions and signatures return
            class names.
        mixed_precision: True or "mixed_bfloat16": layers compute in bfloat16, variables are float32;
            "mixed_float16": the same in float16 with a dynamic loss scale. Convolutions in bfloat16 on a CPU need a
            session whose graph optimizer does not rewrite them. Job files set this; in Python, use
            `build_run_config(session_config={"graph_options": {"rewrite_options": {"remapping": "OFF"}}})`.
        signatures: Any of "predict", "classify", "regress": the signatures of exports, where the head has them.
        histograms: Any of "weights", "gradients": histograms of each trainable variable in the training summaries; see
            `estimator_pipeline.models.histograms`.
        params: Defaults for `layers(params)`; `tf.estimator.Estimator(params=…)` overrides them.

    Returns:
        The `model_fn`. PREDICT returns logits, probabilities and classes (or predictions), EVAL the loss and the
        metrics, TRAIN the train op, which advances the global step.

    Raises:
        ConfigError: A name, a type or a combination of arguments is not supported.
    """
    output_spec = outputs_of(
        outputs,
        loss=loss,
        head=head,
        metrics=metrics,
        label_smoothing=label_smoothing,
        weight_column=weight_column,
        class_weights=class_weights,
        label_vocabulary=label_vocabulary,
    )
    output_spec.check_metrics()
    make_optimizer = _optimizer_maker(optimizer)
    fields = Optimizer() if callable(optimizer) else optimizer_of(optimizer)
    every, momentum = fields.gradient_accumulation_steps, fields.ema_momentum
    policy = policy_of(mixed_precision)
    shown = checked_histograms(histograms)
    unknown = set(signatures) - set(SIGNATURES)
    if unknown:
        raise ConfigError(
            f"the signatures {', '.join(sorted(unknown))} are not known",
            code="argument/unknown-name",
            found=f"allowed: {', '.join(SIGNATURES)}",
        )
    for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if value is not None and value <= 0:
            raise ConfigError(
                f"{name} is {value}", code="argument/bad-value", hint="a number above 0, or None for no clipping"
            )
    if clip_norm is not None and clip_value is not None:
        raise ConfigError(
            "clip_norm and clip_value are both set", code="argument/conflict", hint="set only one of the two"
        )
    defaults = dict(params or {})
    with_params = takes_params(layers)

    def keras_model_fn(features: Any, labels: Any, mode: str, params: Any = None, config: Any = None) -> Any:
        tf = compat.tensorflow()
        modes = tf.estimator.ModeKeys
        seed = getattr(config, "tf_random_seed", None) if mode == modes.TRAIN else None
        weights: Any = None
        if mode == modes.PREDICT:
            features = output_spec.features_without_weights(features)
        else:
            # In a scope: a layer with the name of one of these operations would have a different name in PREDICT.
            with tf.compat.v1.name_scope("estimator_pipeline_labels"):
                features, labels, weights = output_spec.reader()(features, labels)
        # Separate from the random numbers of the step: a functional model is first called on placeholders.
        with precision(policy), _drawn_by_step(seed, config):
            arguments = ({**defaults, **(params or {})},) if with_params else ()
            model = checked(build_layers(functools.partial(layers, *arguments)))
        with precision(policy), _drawn_by_step(seed, config):
            # The first call of a functional model, on placeholders, left updates and losses that must not run.
            stale = _identities(model.updates), _identities(model.losses)
            values = model(features, training=mode == modes.TRAIN)
            updates = [update for update in model.updates if id(update) not in stale[0]]
            extra = [term for term in model.losses if id(term) not in stale[1]]
        logits = output_spec.logits(values)
        answers = output_spec.answers(logits)
        predictions = output_spec.predictions(answers)
        trained, scaffold = [_plain(variable) for variable in model.trainable_variables], None
        if momentum is not None and mode != modes.TRAIN:
            scaffold = tf.compat.v1.train.Scaffold(saver=moving_averages.restored(trained))
        if mode == modes.PREDICT:
            return tf.estimator.EstimatorSpec(
                mode,
                predictions=predictions,
                export_outputs=output_spec.export_outputs(answers, signatures),
                scaffold=scaffold,
            )
        losses = output_spec.losses(labels, logits)
        total = output_spec.loss(losses, weights)
        # Regularizers depend only on the variables; a layer may also add a loss of its activations.
        if extra:
            total = total + tf.add_n([tf.cast(tf.reduce_sum(term), tf.float32) for term in extra])
        if mode == modes.EVAL:
            measured = output_spec.metrics(losses, labels, answers, weights)
            return tf.estimator.EstimatorSpec(
                mode, loss=total, predictions=predictions, eval_metric_ops=measured, scaffold=scaffold
            )
        if every > 1 and config is not None and config.num_ps_replicas > 0:
            raise ConfigError(
                f"gradient_accumulation_steps is {every}, in a cluster with parameter servers",
                code="argument/conflict",
                found="each worker updates the variables while other workers are still accumulating gradients",
                hint="train with multi_worker_mirrored, or use smaller batches and a lower learning rate",
            )
        tf.compat.v1.train.get_or_create_global_step()
        of_model = _identities(tf.compat.v1.global_variables())
        train_op, scaffold = _train_op(
            trained,
            updates,
            total,
            make_optimizer,
            clip_norm=clip_norm,
            clip_value=clip_value,
            scaled=policy == "mixed_float16",
            every=every,
            momentum=momentum,
            histograms=shown,
        )
        _collect_names(OF_OPTIMIZER, [v for v in tf.compat.v1.global_variables() if id(v) not in of_model])
        # Estimator reports the sum over the replicas because the optimizer has not scaled the loss, so return a share.
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return tf.estimator.EstimatorSpec(
            mode, loss=total / replicas, predictions=predictions, train_op=train_op, scaffold=scaffold
        )

    return keras_model_fn


def _drawn_by_step(seed: int | None, config: Any) -> contextlib.AbstractContextManager[None]:
    """Derive the layers' random numbers from the global step if a seed is set (`compat.internals.stateless_random`)."""
    if seed is None:
        return contextlib.nullcontext()
    tf = compat.tensorflow()
    replica = tf.distribute.get_replica_context()
    number = replica.replica_id_in_sync_group
    if replica.num_replicas_in_sync == 1:
        # With parameter servers, the workers step independently.
        number = getattr(config, "global_id_in_cluster", None) or 0
    step = tf.compat.v1.train.get_or_create_global_step()
    return step_random.drawn_by_step(tf, seed=seed, step=step, replica=number)


def _train_op(
    variables: list[Any], updates: list[Any], loss: Any, make_optimizer: Callable[[Any], tuple[Any, Any]], *,
    clip_norm: float | None, clip_value: float | None, scaled: bool, every: int, momentum: float | None,
    histograms: Sequence[str],
) -> tuple[Any, Any]:  # fmt: skip
    """Return the train op of a replica and its scaffold, or None."""
    tf = compat.tensorflow()
    global_step = tf.compat.v1.train.get_or_create_global_step()
    replica = tf.distribute.get_replica_context()
    replicas = replica.num_replicas_in_sync
    optimizer, rate = make_optimizer(global_step)
    if rate is not None:
        tf.compat.v1.summary.scalar("learning_rate", rate)
        reported_rate = tf.convert_to_tensor(rate, tf.float32)
        tf.compat.v1.add_to_collection(LEARNING_RATE, reported_rate)

    if not variables:
        raise ConfigError(
            "the model has no trainable variables",
            code="model/bad-function",
            hint="give it layers with weights to train",
        )
    # As in `Optimizer.minimize`. With gate_gradients the graph optimizer does not fuse the two gradients of a
    # convolution into one operation, which takes nearly twice as long on CPUs. Without colocation each gradient has a
    # device, which a strategy needs.
    scale = LossScale() if scaled else None
    changed = None
    share = loss / replicas if scale is None else loss * scale.value / replicas
    gradients = tf.compat.v1.gradients(share, variables, gate_gradients=True)
    missing = [v.name for v, g in zip(variables, gradients, strict=True) if g is None]
    if missing:
        raise ConfigError(
            f"the loss does not depend on the variables {', '.join(missing)}",
            code="model/bad-function",
            hint="connect the layers to the model's output, or set trainable=False on them",
        )
    if scale is not None:
        gradients = [_scaled(g, 1.0 / scale.value) for g in gradients]
        finite = scale.all_finite(
            gradients, None if replicas == 1 else lambda values: replica.merge_call(_sum_over_replicas, args=(values,))
        )
        if every == 1:
            changed = finite
            apply_if(finite, optimizer)
        updates = [*updates, scale.update(finite)]
        tf.compat.v1.summary.scalar("loss_scale", scale.value)
    if "gradients" in histograms and every == 1 and clip_norm is None and clip_value is None:
        whole = _summed(replica, gradients)
        add_histograms("gradients", variables, whole)
        if replicas > 1:
            # All workers must sum in every step, while only the chief writes summaries, and only in some steps.
            updates = [*updates, *whole]
    elif every > 1 or clip_norm is not None or clip_value is not None:
        if every > 1:
            last, gradients = changes(gradients, steps=every, global_step=global_step)
        gradients = _summed(replica, gradients)
        if "gradients" in histograms:
            add_histograms("gradients", variables, gradients)
        if every > 1:
            gradients, last, kept = mean_of_steps(
                variables, gradients, steps=every, last=last, finite=None if scale is None else finite
            )
            changed = last
            apply_if(last, optimizer)
            updates = [*updates, *kept]
        gradients = _clipped(gradients, clip_norm=clip_norm, clip_value=clip_value)
        # `apply_gradients` sums over the replicas again, and each replica already has the sum.
        gradients = [_scaled(g, 1.0 / replicas) for g in gradients] if replicas > 1 else gradients
    if tf.is_tensor(rate) and not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        # A Keras optimizer computes its learning rate internally. Read the reported rate before the step counter
        # advances, so that it is the rate of this step and not of the next.
        with tf.control_dependencies([reported_rate]):
            gradients = [tf.nest.map_structure(tf.identity, gradients[0], expand_composites=True), *gradients[1:]]
    pairs = list(zip(gradients, variables, strict=True))
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        step = optimizer.apply_gradients(pairs, global_step=global_step)
    else:
        step = optimizer.apply_gradients(pairs)
        _collect_as_one(optimizer.variables())
        _collect_names(
            SETTINGS, [variable for variable in optimizer._hyper.values() if isinstance(variable, tf.Variable)]
        )
    scaffold = None
    if momentum is not None:
        averages, begin = moving_averages.begin_with(variables)
        updates = [
            *updates,
            *moving_averages.move(averages, variables, momentum=momentum, changed=changed, after=step),
        ]
        scaffold = tf.compat.v1.train.Scaffold(init_fn=begin)
    if "weights" in histograms:
        with tf.control_dependencies([step]):
            add_histograms("weights", variables, [variable.read_value() for variable in variables])
    # BatchNorm statistics and whatever else the layers update while training.
    return tf.group(step, *updates), scaffold


def _plain(variable: Any) -> Any:
    """Return the variable without Keras's AutoCast wrapper: the replicas of a strategy must agree on the variable."""
    return variable._variable if "AutoCast" in type(variable).__name__ else variable


def _collect_as_one(variables: Sequence[Any]) -> None:
    """Keep a Keras optimizer's slot variables in the graph's collection once, not once for each replica.

    The checkpoint stores this collection. With one copy for each replica, a checkpoint of two replicas could not be
    restored with three, nor one of three with two.
    """
    tf = compat.tensorflow()
    collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    for variable in variables:
        if not isinstance(variable, tf.distribute.DistributedValues):
            continue
        copies = _identities(variable.values)
        if any(id(v) in copies for v in collection):
            collection[:] = [v for v in collection if id(v) not in copies]
            if id(variable) not in _identities(collection):
                collection.append(variable)


def _collect_names(key: str, variables: Sequence[Any]) -> None:
    for variable in variables:
        compat.tensorflow().compat.v1.add_to_collection(key, variable.name.partition(":")[0].encode())


def _identities(values: Sequence[Any]) -> set[int]:
    return {id(value) for value in values}


def _scaled(gradient: Any, factor: float) -> Any:
    tf = compat.tensorflow()
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _summed(replica: Any, gradients: list[Any]) -> list[Any]:
    """Return the gradients of all replicas, dense."""
    tf = compat.tensorflow()
    # Two replicas may use the same embedding row. The norm must be that of the summed row, so gradients become dense.
    dense = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    if replica.num_replicas_in_sync == 1:
        return dense
    return list(replica.merge_call(_sum_over_replicas, args=(dense,)))


def _clipped(gradients: list[Any], *, clip_norm: float | None, clip_value: float | None) -> list[Any]:
    tf = compat.tensorflow()
    if clip_norm is not None:
        gradients, norm = tf.clip_by_global_norm(gradients, clip_norm)
        tf.compat.v1.summary.scalar("gradient_norm", norm)
    if clip_value is not None:
        gradients = [tf.clip_by_value(g, -clip_value, clip_value) for g in gradients]
    return gradients


def _sum_over_replicas(strategy: Any, gradients: list[Any]) -> list[Any]:
    # Not ReplicaContext.all_reduce: it is differentiable, and for that it looks up Keras variables in the graph by
    # names that replicas do not have.
    tf = compat.tensorflow()
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(g, g) for g in gradients])


def _optimizer_maker(value: Any) -> Callable[[Any], tuple[Any, Any]]:
    if isinstance(value, str | Mapping | Optimizer):
        return optimizer_of(value).make
    if not callable(value) or hasattr(value, "apply_gradients"):
        raise ConfigError(
            f"the optimizer is a {type(value).__name__} object",
            code="model/bad-optimizer",
            hint="give its name, or a function of the global step that returns an optimizer, since an optimizer "
            "belongs to one graph: lambda step: tf.compat.v1.train.AdamOptimizer(1e-3)",
        )

    try:
        inspect.signature(value).bind(0)
    except TypeError as error:
        raise ConfigError(
            f"the optimizer function cannot be called with the global step: {error}",
            code="model/bad-optimizer",
            hint="give a function of the global step: lambda step: tf.keras.optimizers.legacy.Adam(1e-3)",
        ) from error
    except ValueError:
        pass  # a callable without a known signature

    def make(global_step: Any) -> tuple[Any, Any]:
        optimizer = value(global_step)
        tf = compat.tensorflow()
        if isinstance(optimizer, tf.compat.v1.train.Optimizer):
            return optimizer, None
        if not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            raise ConfigError(
                f"the optimizer function returned a {type(optimizer).__name__}, which cannot train in an "
                "Estimator's graph",
                code="model/bad-optimizer",
                found=f"an object of {type(optimizer).__module__}",
                hint="return one of tf.keras.optimizers.legacy or of tf.compat.v1.train",
            )
        # Set without reading it first: reading creates a counter, which then cannot be replaced.
        optimizer.iterations = global_step
        return optimizer, None

    return make


def checked(model: Any) -> Any:
    """Check and return the model of a function that builds layers.

    Raises:
        ConfigError: It is neither a Keras model nor a layer.
    """
    # Read no attributes: a Sequential that is not built yet raises for some of them.
    if callable(model) and not isinstance(model, type) and not inspect.isroutine(model):
        return model
    several = isinstance(model, list | tuple)
    raise ConfigError(
        f"the function that builds the model returned a {type(model).__name__}",
        code="model/bad-function",
        found=repr(model)[:200],
        hint="return tf.keras.Sequential(...) of them"
        if several
        else "return a Keras model that maps features to logits, not compiled",
    )


def takes_params(layers: Callable[..., Any]) -> bool:
    """Return whether a function that builds layers is called as `layers(params)`.

    Raises:
        ConfigError: It is not such a function.
    """
    if not callable(layers) or (hasattr(layers, "trainable_variables") and not isinstance(layers, type)):
        raise ConfigError(
            f"layers is a {type(layers).__name__}",
            code="model/bad-function",
            hint="give a function that builds the model, or its class, since a model object belongs to the graph it "
            "was built in",
        )
    signature = inspect.signature(layers)
    needed = [
        p
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 1:
        raise ConfigError(
            f"layers{signature} takes {len(needed)} arguments",
            code="model/bad-function",
            hint="it is called as layers() or layers(params)",
        )
    return bool(needed) or "params" in signature.parameters
