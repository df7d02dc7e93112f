"""Optimizers made by hand, whose trainings are recorded as real ones are: what the causes' tests are made from."""

from __future__ import annotations

import itertools

import numpy as np

from estimator_pipeline.job.tolerances import Tolerances
from estimator_pipeline.parity.comparison import compare_records
from estimator_pipeline.parity.findings import Facts
from estimator_pipeline.parity.result import ENGINES
from estimator_pipeline.parity.step_records import StepWriter

CONSTANT = [0.1] * 6
RANDOM = np.random.default_rng(0)
SHAPES = {"hidden/kernel": (6, 5), "hidden/bias": (5,), "logits/kernel": (5, 4), "logits/bias": (4,), "more/bias": (4,)}
START = {name: RANDOM.normal(size=shape) for name, shape in SHAPES.items()}
GRADIENTS = [{name: RANDOM.normal(size=shape) * 0.1 for name, shape in SHAPES.items()} for _ in range(6)]
SLOTS = {"sgd": (), "momentum": ("momentum",), "velocity": ("momentum",), "adam": ("m", "v"), "rmsprop": ("rms",),
         "adagrad": ("accumulator",)}  # fmt: skip


def trained(kind="sgd", *, gradient=None, rate=0.1, rates=None, start=0.0, decay=0.0, frozen=(), **options):
    """Name -> value, before the first step and after each: V1's momentum, Keras's velocity, Adam, RMSprop, Adagrad.

    Args:
        kind: of optimizer.
        gradient: makes another gradient of name, step and the true one.
        rate: of each step.
        rates: one for each.
        start: of the slots.
        decay: the share of itself that a weight loses in each step.
        frozen: weights that are not trained, and have no slots.
        times: updates in each step, all of them by the same gradient.
        start_weights: others than `START`.
    """
    times = options.get("times", 1)
    beta_1, beta_2, epsilon = options.get("beta_1", 0.9), options.get("beta_2", 0.999), options.get("epsilon", 1e-7)
    mu, nesterov, rho = options.get("mu", 0.9), options.get("nesterov", False), options.get("rho", 0.9)
    weights = dict(options.get("start_weights", START))
    kept = {(name, slot): np.full(SHAPES[name], start) for name in SHAPES if name not in frozen for slot in SLOTS[kind]}

    def state():
        told = {f"{name} @{slot}": value for (name, slot), value in kept.items()}
        return {name: np.float32(value) for name, value in {**weights, **told}.items()}

    yield state()
    for step in range(6):
        lr = rates[step] if rates else rate
        for name, again in itertools.product(SHAPES, range(times)):
            if name in frozen:
                continue
            made = times * step + again + 1
            g = GRADIENTS[step][name]
            g = g if gradient is None else gradient(name, step, g)
            if kind == "sgd":
                change = -lr * g
            elif kind == "momentum":
                kept[name, "momentum"] = v = mu * kept[name, "momentum"] + g
                change = -lr * (g + mu * v if nesterov else v)
            elif kind == "velocity":
                kept[name, "momentum"] = v = mu * kept[name, "momentum"] - lr * g
                change = mu * v - lr * g if nesterov else v
            elif kind == "adam":
                kept[name, "m"] = m = beta_1 * kept[name, "m"] + (1 - beta_1) * g
                kept[name, "v"] = v = beta_2 * kept[name, "v"] + (1 - beta_2) * g * g
                corrected = lr * np.sqrt(1 - beta_2**made) / (1 - beta_1**made)
                change = -corrected * m / (np.sqrt(v) + epsilon)
            elif kind == "rmsprop":
                kept[name, "rms"] = v = rho * kept[name, "rms"] + (1 - rho) * g * g
                change = -lr * g / (np.sqrt(v) + epsilon)
            else:
                kept[name, "accumulator"] = v = kept[name, "accumulator"] + g * g
                change = -lr * g / (np.sqrt(v) + epsilon)
            weights[name] = weights[name] + change - decay * weights[name]
        yield state()


def recorded(folder, states, *, rates=None, losses=None):
    """Writes the record of a training.

    Args:
        folder: where it goes.
        states: name -> value, before the first step and after each.
        rates: that it tells of the steps; None: none.
        losses: of the steps; None: always the same.
    """
    writer = StepWriter(folder)
    first, *after = states
    writer.initial({**first, "global_step": np.int64(0)})
    for step, values in enumerate(after, 1):
        rate = None if rates is None else rates[step - 1]
        loss = 0.5 if losses is None else losses[step - 1]
        writer.step(step, loss=loss, learning_rate=rate, variables={**values, "global_step": np.int64(step)})


def comparing(folder):
    """What compares two trainings whose records it writes into a folder: for a fixture."""

    def compared(
        estimator, keras, *, rates=(None, None), losses=(None, None), slots=True, tolerances=None, metrics=None,
        answers=None, modes=None, **facts,
    ):  # fmt: skip
        for engine, states, told, loss in zip(ENGINES, (estimator, keras), rates, losses, strict=True):
            recorded(folder / engine / "record", states, rates=told, losses=loss)
        metrics = {engine: {} for engine in ENGINES} if metrics is None else dict(zip(ENGINES, metrics, strict=True))
        allowed = Tolerances.of(tolerances)
        return compare_records(
            folder,
            metrics=metrics,
            answers=answers,
            facts=Facts(losses=modes or {}, **facts),
            slots=slots,
            tolerances=allowed,
        )

    return compared


def only(parity):
    """The one finding of a comparison that is not equal."""
    assert not parity.equal
    (finding,) = parity.findings
    return finding
