"""Multi-step execution in an Estimator: several train steps per session call (`steps_per_execution`).

A session call costs about as much as a step of a small model. Steps that no hook needs to see therefore run in a loop
in the graph (`estimator_pipeline.compat.internals.graph_step_loop`), in one call before the call with hooks. The steps
that hooks see are computed (`core/multi_step.py`), and workers agree on them before the first step. Results are
bit-identical to those of single steps. If that is not certain, each call runs one step, and the log has the reason.
"""

from __future__ import annotations

import time
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import graph_step_loop as step_loop
from estimator_pipeline.compat.internals import session_hooks
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.engines.core.multi_step import MultiStepExecution, StepInterval
from estimator_pipeline.utils.logger import logger

__all__ = ["multi_step_hooks"]


def multi_step_hooks(estimator: Any, context: TaskContext) -> list[Any]:
    """Return the hooks that an Estimator, bound to this task, needs for multi-step execution."""
    steps = context.options.steps_per_execution
    if steps == 1:
        return []
    execution = MultiStepExecution(steps, tf_config=context.tf_config, call="session call")
    if execution.reason:
        execution.becomes_single(execution.reason)
        return []
    tf: Any = compat.tensorflow()
    v1 = tf.compat.v1
    base: Any = v1.train.SessionRunHook

    class SeveralStepsHook(base):
        """The first of all hooks: its session calls in before_run are not visible to the other hooks.

        Attributes:
            step: The global step.
        """

        def __init__(self) -> None:
            self.step = self._steps = self._calls = 0
            self._hooks: list[Any] = []
            self._end: Any = None

        def takes(self, train_op: Any, loss: Any) -> None:
            self._train_op, self._loss = train_op, loss

        def sees_hooks(self, hooks: list[Any]) -> None:
            self._hooks = hooks
            # The hook that detects the end of data on one of several workers.
            self._end = next((hook for hook in hooks if hasattr(hook, "following")), None)

        def begin(self) -> None:
            self._global_step = v1.train.get_global_step()
            self._why_not = step_loop.why_not(self._train_op, self._loss) or ""
            self._loop: Any = None
            if not self._why_not:
                self._loop = step_loop.StepLoop(self._train_op, self._loss, self._global_step)

        def after_create_session(self, session, coord):
            self.step = int(session.run(self._global_step))
            self._coming, self._steps_of_call, self._checked = 1, 0, False
            execution.begin(*self._ends())
            self._announce_steps()

        def _ends(self) -> tuple[list[StepInterval], str]:
            """Return the steps that hooks must see, or why these may be all steps."""
            ends: list[StepInterval] = []
            for hook in [] if self._why_not else self._hooks:
                wanted = session_hooks.wanted_by(hook, start=self.step, loss=self._loss)
                if wanted is None:
                    return ends, f"the hook {type(hook).__name__} may want to see every step"
                ends += [StepInterval(*pair) for pair in wanted]
            return ends, self._why_not

        def before_run(self, run_context):
            self._begun, self._steps_of_call = time.perf_counter(), 1
            if self._coming > 1:
                self._run_ahead(run_context.session, self._coming - 1)

        def _run_ahead(self, session: Any, count: int) -> None:
            before = self.step
            try:
                steps, is_nan, step = self._loop.run(session, count)
            except tf.errors.OutOfRangeError:
                self._pass(int(session.run(self._global_step)) - before)
                for hook in self._hooks:
                    # For the hook, a step was in progress.
                    getattr(hook, "data_ends", lambda: None)()
                raise
            self._pass(steps)
            if is_nan:
                v1.logging.error("Model diverged with loss = NaN.")
                raise tf.estimator.NanLossDuringTrainingError
            self._check_step(step)

        def _pass(self, count: int) -> None:
            self.step += count
            self._steps_of_call += count
            for hook in self._hooks:
                session_hooks.pass_steps(hook, count, self.step)

        def after_run(self, run_context, run_values):
            self.step += 1
            self._steps, self._calls = self._steps + self._steps_of_call, self._calls + 1 + (self._steps_of_call > 1)
            if self._end is not None and self._end.watching and not execution.single:
                # The loop does not check which workers have a batch. All workers take this branch.
                execution.becomes_single("the data of one worker may end before the others'")
            if not self._checked and not execution.single:
                self._checked = True
                self._check_step(int(run_context.session.run(self._global_step)))
            seconds = time.perf_counter() - self._begun
            self._coming = execution.call_ended(self._steps_of_call, seconds, step=self.step)
            self._announce_steps()

        def end(self, session):
            if not execution.single:
                logger.info("%d steps in %d session calls", self._steps, self._calls)

        def _check_step(self, step: int) -> None:
            """Check that each step adds 1 to the global step, which the schedule assumes; the same on all workers."""
            if step != self.step and not execution.single:
                execution.becomes_single(f"the global step is {step} after step {self.step}")
                self.step = step

        def _announce_steps(self) -> None:
            for hook in self._hooks:
                if hasattr(hook, "steps_coming"):
                    hook.steps_coming(self._coming)

    session_hooks.see_hooks()
    hook = SeveralStepsHook()
    session_hooks.notify_train_op(estimator, hook.takes)
    return [hook]
