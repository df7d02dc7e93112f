"""Context managers of patches around every training and every evaluation of any Estimator in this process.

Private use: `Estimator._train_model` and `Estimator._actual_eval` of the estimator package. Both run once per session
(or, in a standalone client, once per client), for all kinds of training and evaluation.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from estimator_pipeline.utils.process_state import STATE

# Called with the Estimator and the list of hooks, which it may extend.
Around = Callable[[Any, list[Any]], contextlib.AbstractContextManager[Any]]

# Called with the input function and the list of hooks; returns the input function.
AroundInput = Callable[[Any, list[Any]], Any]


def training(enter: Around) -> None:
    """Wrap every future training in `enter(estimator, hooks)`."""
    _patch()
    STATE.around_training.append(enter)


def training_input(enter: AroundInput) -> None:
    """Use `enter(input_fn, hooks)` as the input function of every future training."""
    _patch()
    STATE.around_inputs.append(enter)


def evaluation(enter: Around) -> None:
    """Wrap every future evaluation in `enter(estimator, hooks)`."""
    _patch()
    STATE.around_evaluation.append(enter)


@contextlib.contextmanager
def evaluating(estimator: Any) -> Iterator[None]:
    """Enter the contexts of an evaluation, for code that does not call `Estimator.evaluate`."""
    with contextlib.ExitStack() as stack:
        for enter in STATE.around_evaluation:
            stack.enter_context(enter(estimator, []))
        yield


@functools.cache
def _patch() -> None:
    from tensorflow_estimator.python.estimator import estimator as module

    train, evaluate = module.Estimator._train_model, module.Estimator._actual_eval

    @functools.wraps(train)
    def train_model(self, input_fn, hooks, saving_listeners):
        hooks = list(hooks)
        for wrap in STATE.around_inputs:
            input_fn = wrap(input_fn, hooks)
        with contextlib.ExitStack() as stack:
            for enter in STATE.around_training:
                stack.enter_context(enter(self, hooks))
            return train(self, input_fn, hooks, saving_listeners)

    @functools.wraps(evaluate)
    def actual_eval(self, input_fn, strategy=None, steps=None, hooks=None, checkpoint_path=None, name=None):
        with evaluating(self):
            return evaluate(
                self, input_fn, strategy=strategy, steps=steps, hooks=hooks, checkpoint_path=checkpoint_path, name=name
            )

    module.Estimator._train_model, module.Estimator._actual_eval = train_model, actual_eval
