"""A `model_fn` from a function that builds Keras layers, right in each mode and on any number of replicas.

What is easily done wrong in a `model_fn` with Keras layers, and is done here:

* **BatchNorm and other updates** run with the train step; Estimator does not know of them by itself.
* **Dropout and BatchNorm** get `training=True` in TRAIN alone.
* **Random numbers** of layers, where the run has a seed, go with the step and the replica: each replica drops units of
  its own, and a resumed run does not begin to draw anew.
* **Regularisation losses** are part of the loss, once, whatever the number of replicas.
* **Loss scaling.** Each replica differentiates `(mean loss of its examples + regularisation) / replicas`, and the sum
  over replicas is applied. So with R replicas of batch B the step is that of one replica with batch R*B, as in
  `Model.fit`. The division is made here, explicitly; `apply_gradients` adds no scaling of its own, whichever
  optimizer family is used.
* **Clipping** comes after the sum over replicas: the norm is that of the global batch's gradient.
* **Accumulation** of gradients, where the optimizer asks for it, see
  `estimator_pipeline.models.optimizers.gradient_accumulation`.
* **Moving averages** of the weights, where the optimizer asks for them, take their places in EVAL and PREDICT, see
  `estimator_pipeline.models.optimizers.moving_averages`.
* **Weights** of examples and classes count in the loss and in every metric, see
  `estimator_pipeline.models.sample_weights`.
* **The evaluation loss**: `average_loss` is the mean over examples. (`loss`, which Estimator adds, is a mean of batch
  means, and weighs a small last batch too much.)
"""

from __future__ import annotations

import contextlib
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
from estimator_pipeline.models.sample_weights import ClassWeights

__all__ = ["Optimizer", "build_model_fn"]

# The collection in which a training graph has the learning rate of the step.
LEARNING_RATE = "estimator_pipeline/learning_rate"
# The collections in which it has the names of the variables that are the optimizer's and not the model's, and of those
# among them that hold what a Keras optimizer was made with.
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
        layers: makes the model: `layers()` or `layers(params)` returns a Keras model or layer that maps a batch of
            features to logits (no softmax or sigmoid at its end). Called once for each graph and replica.
        loss: a name (see `estimator_pipeline.models.heads`), or `loss(labels, logits)` -> the loss of each example
            [B].
        outputs: of a model that gives a dictionary of logits: what each of them means, in the place of `loss`, `head`,
            `metrics` and the other fields of `Output`; see
            `estimator_pipeline.models.outputs`.
        optimizer: a name, a mapping with the fields of `Optimizer`,
            an `Optimizer`, or a function of the global step that makes a `tf.compat.v1.train` or
            `tf.keras.optimizers.legacy` optimizer. Never an optimizer object: it would belong to one graph.
        metrics: names, or name -> `metric(labels, predictions)` that gives (value, update) or a Keras metric; one with
            a parameter `weights` gets them, float32 [B] or None. None: the head's first one (accuracy,
            mean_squared_error).
        head: what the logits mean, where the loss does not say it: an own function, or "multi_label" beside
            "binary_crossentropy".
        clip_norm: the global norm to which the summed gradient is clipped.
        clip_value: the absolute value to which each element of the summed gradient is clipped.
        label_smoothing: the share of each label that is spread evenly over the classes, in training and evaluation.
        weight_column: the name under which the labels' dictionary, or else the features', has the weight of each
            example, [B] or [B, 1]. It is taken out; a label that is left alone is its tensor.
        class_weights: the weight of each class in order, or a mapping from the numbers or names of some to theirs; the
            others weigh 1. Multiplied with the examples' own.
        label_vocabulary: the names of the classes, in their order: labels may be text then, and predictions and
            signatures tell of classes by name.
        mixed_precision: True or "mixed_bfloat16": layers compute in bfloat16, variables stay float32;
            "mixed_float16": the same in float16 with a loss scale that follows the gradients. Convolutions in bfloat16
            on a CPU need a session whose graph optimizer leaves them alone; job files see to it, in Python it is
            `build_run_config(session_config={"graph_options": {"rewrite_options": {"remapping": "OFF"}}})`.
        signatures: of "predict", "classify", "regress": those that exports answer, where the head has them.
        histograms: of "weights", "gradients": what the summaries of training have beside the scalars, for each trained
            variable; see `estimator_pipeline.models.histograms`.
        params: defaults for `layers(params)`; what `tf.estimator.Estimator(params=…)` gives comes on top.

    Returns:
        The `model_fn`. PREDICT gives logits, probabilities and classes (or predictions), EVAL the loss and the metrics,
        TRAIN the train op, which advances the global step.

    Raises:
        ConfigError: a name, a type or a combination that cannot work.
    """
    meant = outputs_of(
        outputs,
        loss=loss,
        head=head,
        metrics=metrics,
        label_smoothing=label_smoothing,
        weight_column=weight_column,
        class_weights=class_weights,
        label_vocabulary=label_vocabulary,
    )
    meant.check_metrics()
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
            "clip_norm and clip_value were both given", code="argument/conflict", hint="give one of the two"
        )
    defaults = dict(params or {})
    with_params = takes_params(layers)

    def keras_model_fn(features: Any, labels: Any, mode: str, params: Any = None, config: Any = None) -> Any:
        tf = compat.tensorflow()
        modes = tf.estimator.ModeKeys
        seed = getattr(config, "tf_random_seed", None) if mode == modes.TRAIN else None
        weights: Any = None
        if mode == modes.PREDICT:
            features = meant.features_alone(features)
        else:
            # In a scope: a layer that is called as one of these operations would have another name in PREDICT.
            with tf.compat.v1.name_scope("estimator_pipeline_labels"):
                features, labels, weights = meant.reader()(features, labels)
        # Apart from the draws of the step: a functional model is called on placeholders first.
        with precision(policy), _drawn_by_step(seed, config):
            model = checked(layers({**defaults, **(params or {})}) if with_params else layers())
        with precision(policy), _drawn_by_step(seed, config):
            # A functional model was called once already, on its placeholders: what that left must not be run.
            stale = _identities(model.updates), _identities(model.losses)
            values = model(features, training=mode == modes.TRAIN)
            updates = [update for update in model.updates if id(update) not in stale[0]]
            extra = [term for term in model.losses if id(term) not in stale[1]]
        logits = meant.logits(values)
        answers = meant.answers(logits)
        predictions = meant.predictions(answers)
        trained, scaffold = [_plain(variable) for variable in model.trainable_variables], None
        if momentum is not None and mode != modes.TRAIN:
            scaffold = tf.compat.v1.train.Scaffold(saver=moving_averages.restored(trained))
        if mode == modes.PREDICT:
            return tf.estimator.EstimatorSpec(
                mode,
                predictions=predictions,
                export_outputs=meant.export_outputs(answers, signatures),
                scaffold=scaffold,
            )
        losses = meant.losses(labels, logits)
        total = meant.loss(losses, weights)
        # Regularisers are functions of the variables alone; a layer may also add a loss of its activations.
        if extra:
            total = total + tf.add_n([tf.cast(tf.reduce_sum(term), tf.float32) for term in extra])
        if mode == modes.EVAL:
            measured = meant.metrics(losses, labels, answers, weights)
            return tf.estimator.EstimatorSpec(
                mode, loss=total, predictions=predictions, eval_metric_ops=measured, scaffold=scaffold
            )
        if every > 1 and config is not None and config.num_ps_replicas > 0:
            raise ConfigError(
                f"gradient_accumulation_steps is {every}, in a cluster with parameter servers",
                code="argument/conflict",
                found="each worker changes the variables by itself, while others' gradients are added up",
                hint="train with multi_worker_mirrored, or give smaller batches and a lower learning rate",
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
        # Estimator reports the sum over the replicas, for the optimizer has not scaled the loss: each gives its share.
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return tf.estimator.EstimatorSpec(
            mode, loss=total / replicas, predictions=predictions, train_op=train_op, scaffold=scaffold
        )

    return keras_model_fn


def _drawn_by_step(seed: int | None, config: Any) -> contextlib.AbstractContextManager[None]:
    """Random numbers of layers that go with the global step, where there is a seed; see
    `compat.internals.stateless_random`."""
    if seed is None:
        return contextlib.nullcontext()
    tf = compat.tensorflow()
    replica = tf.distribute.get_replica_context()
    number = replica.replica_id_in_sync_group
    if replica.num_replicas_in_sync == 1:
        # Workers with parameter servers step each by itself.
        number = getattr(config, "global_id_in_cluster", None) or 0
    step = tf.compat.v1.train.get_or_create_global_step()
    return step_random.drawn_by_step(tf, seed=seed, step=step, replica=number)


def _train_op(
    variables: list[Any], updates: list[Any], loss: Any, make_optimizer: Callable[[Any], tuple[Any, Any]], *,
    clip_norm: float | None, clip_value: float | None, scaled: bool, every: int, momentum: float | None,
    histograms: Sequence[str],
) -> tuple[Any, Any]:  # fmt: skip
    """Return the train op of a replica, and the scaffold that it needs, or None."""
    tf = compat.tensorflow()
    global_step = tf.compat.v1.train.get_or_create_global_step()
    replica = tf.distribute.get_replica_context()
    replicas = replica.num_replicas_in_sync
    optimizer, rate = make_optimizer(global_step)
    if rate is not None:
        tf.compat.v1.summary.scalar("learning_rate", rate)
        told_rate = tf.convert_to_tensor(rate, tf.float32)
        tf.compat.v1.add_to_collection(LEARNING_RATE, told_rate)

    if not variables:
        raise ConfigError(
            "the model has no trainable variables",
            code="model/bad-function",
            hint="give it layers with weights to train",
        )
    # As `Optimizer.minimize` does it. Where the gradients of an operation wait for each other, the graph optimizer does
    # not make a convolution's two into one operation, which takes nearly twice as long on CPUs. Without colocation each
    # has a device, which a strategy wants to know.
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
            gradients, None if replicas == 1 else lambda given: replica.merge_call(_sum_over_replicas, args=(given,))
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
            # In each step on all workers, while the chief alone writes summaries, and not in each.
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
        # `apply_gradients` sums over the replicas once more; all of them hold the same sum by now.
        gradients = [_scaled(g, 1.0 / replicas) for g in gradients] if replicas > 1 else gradients
    if tf.is_tensor(rate) and not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        # A Keras optimizer works its rate out by itself. What is told must be of this step too, and not of the next:
        # the step is counted when all gradients were used.
        with tf.control_dependencies([told_rate]):
            gradients = [tf.nest.map_structure(tf.identity, gradients[0], expand_composites=True), *gradients[1:]]
    pairs = list(zip(gradients, variables, strict=True))
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        step = optimizer.apply_gradients(pairs, global_step=global_step)
    else:
        step = optimizer.apply_gradients(pairs)
        _collect_as_one(optimizer.variables())
        _collect_names(SETTINGS, [one for one in optimizer._hyper.values() if isinstance(one, tf.Variable)])
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
    """In 16 bits Keras wraps variables in what casts them; a strategy's replicas must agree on what is within."""
    return variable._variable if "AutoCast" in type(variable).__name__ else variable


def _collect_as_one(variables: Sequence[Any]) -> None:
    """Leaves a Keras optimizer's slot variables in the graph's collection once, not once for each replica.

    The collection is what the checkpoint holds. With the copies in it, a checkpoint of two replicas could not be
    restored by three, nor the other way round.
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
    # Two replicas may name the same row of an embedding: its norm is that of the summed row, so rows are made dense.
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
    # Not ReplicaContext.all_reduce: it is differentiable, and in a graph with Keras variables its bookkeeping for
    # that looks the variables up by names that replicas do not have.
    tf = compat.tensorflow()
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(g, g) for g in gradients])


def _optimizer_maker(given: Any) -> Callable[[Any], tuple[Any, Any]]:
    if isinstance(given, str | Mapping | Optimizer):
        return optimizer_of(given).make
    if not callable(given) or hasattr(given, "apply_gradients"):
        raise ConfigError(
            f"the optimizer is a {type(given).__name__} object",
            code="model/bad-optimizer",
            hint="an optimizer belongs to the graph it was first used in; give its name, or a function of the global "
            "step that makes one: lambda step: tf.compat.v1.train.AdamOptimizer(1e-3)",
        )

    def make(global_step: Any) -> tuple[Any, Any]:
        optimizer = given(global_step)
        tf = compat.tensorflow()
        if isinstance(optimizer, tf.compat.v1.train.Optimizer):
            return optimizer, None
        if not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            raise ConfigError(
                f"the function for the optimizer gave a {type(optimizer).__name__}, which cannot train in an "
                "Estimator's graph",
                code="model/bad-optimizer",
                found=f"an object of {type(optimizer).__module__}",
                hint="give one of tf.keras.optimizers.legacy or of tf.compat.v1.train",
            )
        # It is set unasked: asking for it makes a counter of its own, which then cannot be replaced.
        optimizer.iterations = global_step
        return optimizer, None

    return make


def checked(model: Any) -> Any:
    """Return what a function that makes layers has returned.

    Raises:
        ConfigError: it is neither a Keras model nor a layer.
    """
    # Its attributes are not asked for: a Sequential that is not built yet refuses to say what it has.
    if callable(model) and not isinstance(model, type) and not inspect.isroutine(model):
        return model
    several = isinstance(model, list | tuple)
    raise ConfigError(
        f"the function that builds the model has returned a {type(model).__name__}",
        code="model/bad-function",
        found=repr(model)[:200],
        hint="return tf.keras.Sequential(...) of them"
        if several
        else "return a Keras model that maps features to logits, not compiled",
    )


def takes_params(layers: Callable[..., Any]) -> bool:
    """Whether a function that makes layers is called as `layers(params)`.

    Raises:
        ConfigError: it is no such function.
    """
    if not callable(layers) or (hasattr(layers, "trainable_variables") and not isinstance(layers, type)):
        raise ConfigError(
            f"layers is a {type(layers).__name__}",
            code="model/bad-function",
            hint="give a function that builds the model, or its class: a model object belongs to the graph it was "
            "built in",
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
