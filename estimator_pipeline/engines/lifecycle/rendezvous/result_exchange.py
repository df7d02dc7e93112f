"""The result's way from whoever evaluates the final checkpoint to every task of the job.

The chief says with the end of training who brings the result (`result_by`), and everybody obeys: the evaluator, where
the job has one, or the chief itself. An evaluator writes what it has into its own file; the chief publishes it, the
same for all. So two tasks never publish two results, whoever is late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline.cluster import EVALUATOR, TFConfig, from_environ
from estimator_pipeline.cluster.peers import PeerWatch
from estimator_pipeline.cluster.resolution import EVALUATOR_VARIABLE
from estimator_pipeline.engines.lifecycle.rendezvous.chief_status import in_state
from estimator_pipeline.engines.lifecycle.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.lifecycle.result import TrainResult
from estimator_pipeline.engines.lifecycle.settings import TrainOptions
from estimator_pipeline.errors import ConfigError, WaitError
from estimator_pipeline.utils.logger import logger

__all__ = ["ResultExchange", "evaluator_of_job", "told_of_evaluator"]

# How much longer the other tasks wait for the result than the chief waits for the evaluator's.
MARGIN_SECS = 60.0
# States of the evaluator's after which it brings no result.
_BRINGS_NONE = ("failed", "preempted", "apart")


def told_of_evaluator(settings: TrainOptions, tf_config: TFConfig, environ: Mapping[str, str]) -> bool | None:
    """Whether the job has an evaluator task, as far as anybody says so: the caller, the launcher or TF_CONFIG.

    Raises:
        ConfigError: ESTIMATOR_PIPELINE_EVALUATOR says neither "1" nor "0".
    """
    if settings.evaluator is not None:
        return settings.evaluator
    given = environ.get(EVALUATOR_VARIABLE, "")
    if given not in ("", "0", "1"):
        raise ConfigError(
            f"{EVALUATOR_VARIABLE}={given!r} does not say whether the job has an evaluator task",
            code="environment/bad-value",
            hint='set it to "1" or "0" for all tasks, or leave it unset',
        )
    if given:
        return given == "1"
    return True if tf_config.cluster is not None and tf_config.cluster.evaluator is not None else None


def evaluator_of_job(wanted: bool, environ: Mapping[str, str]) -> bool | None:
    """Whether a task of the job evaluates beside training; None: one may, and shows itself by then.

    A process without a cluster is the whole job: it would wait for an evaluator that nobody has started.

    Args:
        wanted: what the job file says.
        environ: of this task.
    """
    if not wanted:
        return None
    task = from_environ(environ)
    if task.cluster is not None or task.is_evaluator:
        return True
    if environ.get(EVALUATOR_VARIABLE, "") == "":
        logger.warning(
            "There is no TF_CONFIG, so this process runs the whole job: it also evaluates and exports, which "
            "evaluator:0 of cluster.evaluator does in a cluster (estimator-pipeline launch starts one)"
        )
    return None


class ResultExchange:
    """One task's part in it.

    Args:
        rendezvous: of the run.
        told: see :func:`told_of_evaluator`.
        timeout: seconds that the chief waits for the evaluator's result; the others wait a little longer for the
            chief's.
    """

    def __init__(self, rendezvous: Rendezvous, *, told: bool | None, timeout: float) -> None:
        self._rendezvous, self._told, self._timeout = rendezvous, told, timeout
        self._task = str(rendezvous.tf_config.task)

    # -- the chief ------------------------------------------------------------------------------------------------

    def is_evaluators(self) -> bool:
        """Whether the evaluator is to bring the result. Where nobody says so, it is if it has greeted by now."""
        report = self._rendezvous.task_report(EVALUATOR)
        if report is not None and report["state"] in _BRINGS_NONE:
            _tell_none(report)
            return False
        return report is not None if self._told is None else self._told

    def from_evaluator(self) -> TrainResult | None:
        """What the evaluator brings; None: nothing, and the chief has to evaluate."""

        def look(_: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
            report = self._rendezvous.task_report(EVALUATOR)
            if report is None:
                return None
            brought = report["state"] == "evaluated" and report["of"] == self._rendezvous.session
            return report if brought or report["state"] in _BRINGS_NONE else None

        try:
            report = self._rendezvous.wait("the evaluator's result", look, timeout=self._timeout)
        except WaitError as error:
            logger.warning("%s; the chief evaluates the final checkpoint itself", error)
            return None
        if report["state"] in _BRINGS_NONE:
            _tell_none(report)
            return None
        return TrainResult.from_dict(report["result"], task=self._task)

    # -- the others -----------------------------------------------------------------------------------------------

    def wait(self) -> TrainResult:
        """The result, for a task that has nothing else to do with it."""
        self._wait("the end of training", lambda said: in_state(said, "finished"), timeout=float("inf"))
        result = self._wait("the result of the final evaluation", lambda _: self._rendezvous.result())
        return TrainResult.from_dict(result, self._task)

    def stand_by(self, model_dir: str) -> TrainResult:
        """The result, for an evaluator that does not see the chief's checkpoints.

        Args:
            model_dir: its own.
        """
        assert self._rendezvous.tf_config.cluster is not None
        chief = self._rendezvous.tf_config.cluster.chief
        why = f"{model_dir} is not the model_dir of {chief}, and an evaluator needs that one"
        logger.warning("%s evaluates nothing: %s. %s evaluates the final checkpoint", self._task, why, chief)
        self._rendezvous.report("apart", error=why)
        outcome = self.wait()
        self._rendezvous.leave()
        return outcome

    def _wait(self, what: str, look: Callable[[Mapping[str, Any] | None], Any], timeout: float | None = None) -> Any:
        cluster = self._rendezvous.tf_config.cluster
        watch = None
        if cluster is not None:
            # The chief's server is there until everybody has the result. An evaluator may be out of its reach, and a
            # chief that trains alone has none.
            known = not self._rendezvous.tf_config.is_evaluator
            watch = PeerWatch(cluster.chief, cluster.address(cluster.chief), known=known)
        timeout = self._timeout + MARGIN_SECS if timeout is None else timeout
        return self._rendezvous.wait(what, look, timeout=timeout, watch=watch)

    def through_chief(
        self, training: Mapping[str, Any], conclude: Callable[[Mapping[str, Any]], TrainResult]
    ) -> TrainResult | None:
        """The result as the chief publishes it, for the evaluator.

        Args:
            training: the chief's word of the end of training.
            conclude: evaluates the final checkpoint, given `training`. Called where this task brings the result, or
                nobody else can.

        Returns:
            The result; None: training has begun anew.
        """
        outcome = None
        if training.get("result_by") == self._task:
            outcome = conclude(training)
            self._rendezvous.report("evaluated", of=training.get("session"), result=outcome.to_dict())

        def look(_: Mapping[str, Any] | None = None) -> TrainResult | str | None:
            if self._rendezvous.session != training.get("session"):
                return "anew"
            done = self._rendezvous.result()
            return None if done is None else TrainResult.from_dict(done, self._task)

        if not self._rendezvous.answered:
            # The chief has gone: what is there stands, and nobody else brings what is not.
            found = look()
            return self._published(outcome or conclude(training)) if found is None else _unless_anew(found)
        try:
            return _unless_anew(self._wait("the result that the chief publishes", look))
        except WaitError as error:
            if outcome is None:
                raise
            logger.warning("%s; the result is this evaluator's", error)
            return self._published(outcome)

    def _published(self, outcome: TrainResult) -> TrainResult:
        self._rendezvous.publish(outcome.to_dict())
        return outcome


def _tell_none(report: Mapping[str, Any]) -> None:
    why = f": {report['error']}" if "error" in report else ""
    logger.warning("%s %s%s; the chief evaluates the final checkpoint", EVALUATOR, report["state"], why)


def _unless_anew(found: TrainResult | str) -> TrainResult | None:
    return None if isinstance(found, str) else found
