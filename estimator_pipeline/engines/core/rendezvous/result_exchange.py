"""Distribution of the result, from the task that evaluates the final checkpoint to every task of the job.

At the end of training the chief selects the task that provides the result (`result_by`): the evaluator, if the job has
one, or the chief. An evaluator writes the result to its file, and the chief publishes it. Two tasks therefore never
publish different results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline.cluster import EVALUATOR, TFConfig
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.cluster.resolution import EVALUATOR_VARIABLE
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous, in_state
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.errors import ConfigError, WaitError
from estimator_pipeline.progress.progress_file import given_up_path
from estimator_pipeline.utils.logger import logger

# Additional seconds that the other tasks wait for the result, after the chief's wait for the evaluator's.
MARGIN_SECS = 60.0
# States of the evaluator in which it provides no result.
_NO_RESULT = ("failed", "preempted", "apart")


def explicit_evaluator(settings: TrainOptions, tf_config: TFConfig, environ: Mapping[str, str]) -> bool | None:
    """Return whether the job has an evaluator task, as set by the caller, the launcher or TF_CONFIG; None: not set.

    Raises:
        ConfigError: ESTIMATOR_PIPELINE_EVALUATOR is neither "1" nor "0".
    """
    if settings.evaluator is not None:
        return settings.evaluator
    value = environ.get(EVALUATOR_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ConfigError(
            f"{EVALUATOR_VARIABLE}={value!r} does not define whether the job has an evaluator task",
            code="environment/bad-value",
            hint='set it to "1" or "0" for all tasks, or leave it unset',
        )
    if value:
        return value == "1"
    return True if tf_config.cluster is not None and tf_config.cluster.evaluator is not None else None


def evaluator_of_job(wanted: bool, tf_config: TFConfig, environ: Mapping[str, str]) -> bool | None:
    """Return whether the evaluator that a job file may want runs as a separate task; None: unknown, one may connect.

    A process without a cluster is the whole job: it must not wait for an evaluator.
    """
    if not wanted:
        return None
    if tf_config.cluster is not None or tf_config.is_evaluator:
        return True
    if environ.get(EVALUATOR_VARIABLE, "") == "":
        logger.warning(
            "There is no TF_CONFIG, so this process runs the whole job: it also evaluates and exports, which "
            "evaluator:0 of cluster.evaluator does in a cluster (estimator-pipeline launch starts one)"
        )
    return None


class ResultExchange:
    """Sends or receives the result, for one task.

    Args:
        rendezvous: Rendezvous of the run.
        explicit: See `explicit_evaluator`.
        timeout: Seconds that the chief waits for the evaluator's result; the other tasks wait a little longer for the
            chief's.
        progress: The launcher's progress file of this task, if any.
    """

    def __init__(
        self, rendezvous: Rendezvous, *, explicit: bool | None, timeout: float, progress: str | None = None
    ) -> None:
        self._given_up = given_up_path(progress, str(EVALUATOR)) if progress else None
        self._rendezvous, self._explicit, self._timeout = rendezvous, explicit, timeout
        self._task = str(rendezvous.tf_config.task)

    # -- the chief ------------------------------------------------------------------------------------------------

    def is_evaluators(self) -> bool:
        """Return whether the evaluator provides the result; if not set, whether an evaluator has connected."""
        report = self._report_of_evaluator()
        if report is not None and report["state"] in _NO_RESULT:
            _log_no_result(report)
            return False
        return report is not None if self._explicit is None else self._explicit

    def from_evaluator(self) -> TrainResult | None:
        """Return the evaluator's result; None without one: the chief has to evaluate."""

        def check(_: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
            report = self._report_of_evaluator()
            if report is None:
                return None
            brought = report["state"] == "evaluated" and report["of"] == self._rendezvous.session
            return report if brought or report["state"] in _NO_RESULT else None

        try:
            report = self._rendezvous.wait("the evaluator's result", check, timeout=self._timeout)
        except WaitError as error:
            logger.warning("%s; the chief evaluates the final checkpoint itself", error)
            return None
        if report["state"] in _NO_RESULT:
            _log_no_result(report)
            return None
        return TrainResult.from_dict(report["result"], task=self._task)

    def _report_of_evaluator(self) -> dict[str, Any] | None:
        if self._given_up is not None and self._given_up.exists():
            return {"state": "failed", "error": "the launcher does not start it again", "reported": True}
        # A restarted job may have nothing left to train: its evaluator may fail before the chief has started.
        return self._rendezvous.task_report(EVALUATOR) or self._rendezvous.failure_before(EVALUATOR)

    # -- the others -----------------------------------------------------------------------------------------------

    def wait(self) -> TrainResult:
        """Wait for the result, in a task that does not evaluate."""
        self._wait("the end of training", lambda status: in_state(status, "finished"), timeout=float("inf"))
        result = self._wait("the result of the final evaluation", lambda _: self._rendezvous.result())
        return TrainResult.from_dict(result, self._task)

    def stand_by(self, model_dir: str) -> TrainResult:
        """Wait for the result, in an evaluator whose model directory is not the chief's."""
        assert self._rendezvous.tf_config.cluster is not None
        chief = self._rendezvous.tf_config.cluster.chief
        why = f"{model_dir} is not the model_dir of {chief}, which an evaluator needs"
        logger.warning("%s evaluates nothing: %s. %s evaluates the final checkpoint", self._task, why, chief)
        self._rendezvous.report("apart", error=why)
        outcome = self.wait()
        self._rendezvous.leave()
        return outcome

    def _wait(self, event: str, check: Callable[[Mapping[str, Any] | None], Any], timeout: float | None = None) -> Any:
        cluster = self._rendezvous.tf_config.cluster
        watch = None
        if cluster is not None:
            # The chief's server runs until all tasks have the result. An evaluator may not be able to connect to it,
            # and a chief without workers has none.
            known = not self._rendezvous.tf_config.is_evaluator
            watch = PeerWatch(cluster.chief, cluster.address(cluster.chief), known=known)
        timeout = self._timeout + MARGIN_SECS if timeout is None else timeout
        return self._rendezvous.wait(event, check, timeout=timeout, watch=watch)

    def through_chief(
        self, training: Mapping[str, Any], conclude: Callable[[Mapping[str, Any]], TrainResult]
    ) -> TrainResult | None:
        """Return the result that the chief publishes, in the evaluator; None: training was started again.

        Args:
            training: The chief's status at the end of training.
            conclude: Evaluates the final checkpoint of `training`. Called if this task provides the result, or no
                other task can.
        """
        rendezvous, outcome = self._rendezvous, None
        if training.get("result_by") == self._task:
            outcome = conclude(training)
            rendezvous.report("evaluated", of=training.get("session"), result=outcome.to_dict())

        def published(_: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
            # Empty if the chief of this session was started again.
            return {} if rendezvous.session != training.get("session") else rendezvous.result()

        result = None
        if not rendezvous.answered:
            # The chief has exited: use its result if there is one, else publish this task's.
            result = published()
        else:
            try:
                result = self._wait("the result that the chief publishes", published)
            except WaitError as error:
                if outcome is None:
                    raise
                logger.warning("%s; the result is this evaluator's", error)
        if result is not None:
            return TrainResult.from_dict(result, self._task) if result else None
        outcome = outcome or conclude(training)
        rendezvous.publish(outcome.to_dict())
        return outcome


def _log_no_result(report: Mapping[str, Any]) -> None:
    why = f": {report['error']}" if "error" in report else ""
    # The launcher has reported the failure itself.
    level = logging.INFO if report.get("reported") else logging.WARNING
    logger.log(level, "%s %s%s; the chief evaluates the final checkpoint", EVALUATOR, report["state"], why)
