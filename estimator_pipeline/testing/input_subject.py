"""An `input_fn` under the checks: called as each kind of job calls it, and read once for all the checks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.testing import calling
from estimator_pipeline.testing import record_stream as streams
from estimator_pipeline.testing.record_stream import Stream
from estimator_pipeline.testing.report import Blocked, ComplianceFinding, Skip, shared, tell

__all__ = ["InputCheckOptions", "InputSubject", "ShardLayout", "uneven"]

_RANDOM = (
    "records are not the same when they are read again (random augmentation?), so they cannot be known by their "
    "content; give key=, a function of a record's features and labels that identifies it"
)


@dataclass(frozen=True)
class ShardLayout:
    """A job: how many pipelines read, each for how many replicas."""

    pipelines: int
    replicas: int = 1

    @property
    def all_replicas(self) -> int:
        return self.pipelines * self.replicas

    def __str__(self) -> str:
        pipelines = "1 pipeline" if self.pipelines == 1 else f"{self.pipelines} pipelines"
        return pipelines if self.replicas == 1 else f"{pipelines} with {self.replicas} replicas each"


@dataclass
class InputCheckOptions:
    """The arguments of check_input_fn; see there."""

    global_batch_size: int | None
    pipelines: tuple[int, ...]
    steps: int
    key: Callable[[Any, Any], Hashable] | None
    mode: str
    params: Any
    config: Any
    num_records: int | None
    finite: bool
    deterministic: bool
    seed: int | None


class InputSubject:
    """An input_fn and what was read from it so far."""

    def __init__(self, input_fn: Callable[..., Any], options: InputCheckOptions) -> None:
        self.input_fn = input_fn
        self.options = options
        self.tf = compat.tensorflow()
        self.left_out: dict[ShardLayout, str] = {}

    # Calling and reading -------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return self.options.mode == "train"

    @property
    def takes_context(self) -> bool:
        return "input_context" in calling.parameters(self.input_fn)

    @shared("parameters_are_known", hint="")
    def check_parameters(self) -> None:
        calling.check_parameters(self.input_fn, calling.INPUT_FN, kind="an input_fn")

    def call(self, context: Any = None) -> Any:
        """Calls the input_fn, in the current graph, with what it takes."""
        if calling.unfilled(self.input_fn, calling.INPUT_FN):
            self.check_parameters()
        takes = calling.parameters(self.input_fn)
        given = {"mode": self.options.mode, "params": self.options.params, "config": self.options.config}
        arguments = {name: value for name, value in given.items() if name in takes}
        # Without a strategy Estimator leaves the argument away.
        if context is not None and "input_context" in takes:
            arguments["input_context"] = context
        return self.input_fn(**arguments)

    def read(self, who: str, context: Any = None, *, seed: int | None = None, key: Any = None) -> Stream:
        """Calls the input_fn and reads; `seed` in place of the job's."""
        return streams.read(
            self.tf,
            lambda: self.call(context),
            who=who,
            steps=self.options.steps,
            seed=self.options.seed if seed is None else seed,
            key=key,
            to_the_end=not self.training,
        )

    @shared("returns_batches", hint="correct what the input_fn raises; Estimator calls it in a graph of its own")
    def base(self) -> Stream:
        """The input_fn called without an input_context, as by an Estimator without a strategy."""
        return self.read("the pipeline of a job without a strategy", key=self.options.key)

    @shared("returns_batches", hint="correct what the input_fn raises when it is given an input_context")
    def pipelines(self, layout: ShardLayout) -> tuple[Stream, ...]:
        """All pipelines of a layout; an empty tuple where the input_fn rightly refuses the layout."""
        found = []
        for index in range(layout.pipelines):
            if not self.takes_context:
                found.append(self.plain(index))
                continue
            context = self.tf.distribute.InputContext(layout.pipelines, index, layout.all_replicas)
            who = f"pipeline {index} of {layout}"
            try:
                found.append(self.read(who, context, key=self.options.key))
            except ComplianceFinding:
                raise
            except Exception as error:
                if self.batch % layout.all_replicas == 0:
                    raise
                self.left_out[layout] = f"{layout} left out, as the input_fn refuses them: {tell(error)}"
                return ()
        return tuple(found)

    @shared("returns_batches", hint="correct what the input_fn raises when it is called again")
    def plain(self, index: int) -> Stream:
        """Without an input_context every pipeline makes the same call."""
        return self.base() if index == 0 else self.read(f"call {index + 1} of the input_fn", key=self.options.key)

    @property
    def batch(self) -> int:
        """The global batch: as told, or what a single pipeline reads."""
        return self.options.global_batch_size or max(self.base().sizes, default=1)

    @property
    def layouts(self) -> tuple[ShardLayout, ...]:
        layouts = [ShardLayout(n) for n in self.options.pipelines]
        # One process with two devices: the input_fn is called once, and each device takes batches from it in turn.
        return (
            (*layouts, ShardLayout(1, 2)) if self.takes_context and ShardLayout(1, 2) not in layouts else tuple(layouts)
        )

    def each(self) -> Iterable[tuple[ShardLayout, tuple[Stream, ...]]]:
        for layout in self.layouts:
            found = self.pipelines(layout)
            if found:
                yield layout, found

    def all_streams(self) -> list[Stream]:
        return [self.base(), *(stream for _, found in self.each() for stream in found)]

    @shared("same_structure_in_each_call", hint="correct what the input_fn raises when it is called again")
    def specs(self) -> None:
        base = self.base()
        with self.tf.Graph().as_default():
            again = streams.build(self.tf, self.call)[2]
        for who, spec in [("another call", again), *((s.who, s.spec) for s in self.all_streams())]:
            one, other = {x.of_record for x in base.spec}, {x.of_record for x in spec}
            if one != other:
                raise ComplianceFinding(
                    f"{base.who} gives {', '.join(map(str, base.spec))}; {who} gives {', '.join(map(str, spec))}",
                    hint="return the same features and labels whatever the pipeline, and however often it is called",
                )

    # What records there are ----------------------------------------------------------------------------------

    def require_records(self) -> None:
        """Raises Blocked where batches have no rows that could be told apart or compared."""
        self.specs()
        told = next((stream.uneven for stream in self.all_streams() if stream.uneven), None)
        if told is not None:
            raise Blocked("rows_agree", uneven(told))

    def require_whole(self) -> None:
        self.require_records()
        part = next((stream for stream in self.all_streams() if not stream.whole), None)
        if part is None:
            return
        if len(part.texts) == sum(part.sizes) and self.options.key is None and self._contents_differ():
            raise Skip(_RANDOM)
        raise Skip(
            f"{len(part.batches)} batches of {part.who} were read, with {len(part.texts)} different records in "
            f"{sum(part.sizes)}, and there may be more; give a larger steps=, or less data"
        )

    @shared("evaluation_ends", hint="")
    def ends(self) -> None:
        base = self.base()
        if base.declared == -1:
            raise ComplianceFinding("the data repeats without end", hint="no repeat() outside training")
        if not base.ended and len(base.texts) * 3 <= sum(base.sizes):
            raise ComplianceFinding(
                f"{len(base.batches)} batches hold {len(base.texts)} different records again and again, without end",
                hint="no repeat() outside training; with numpy_input_fn and pandas_input_fn say num_epochs=1",
            )
        if not base.ended:
            raise Skip(f"the end was not seen in {len(base.batches)} batches; give a larger steps=")

    def universe(self) -> dict[Hashable, str]:
        """Every record that any pipeline reads, with its text."""
        return {record: text for stream in self.all_streams() for record, text in stream.texts.items()}

    def judge(self, finding: ComplianceFinding) -> None:
        """Raises the finding, unless records have no lasting content by which they could be known."""
        if self.options.key is None and self._contents_differ():
            raise Skip(_RANDOM)
        raise finding

    @shared("returns_batches", hint="correct what the input_fn raises when it is called again")
    def _contents_differ(self) -> bool:
        """Whether a second reading with another seed gives other contents, as random augmentation does."""
        one, other = self.base(), self.read("a second reading", seed=(self.options.seed or 0) + 1)
        if not (one.whole and other.whole):
            return not set(one.texts) & set(other.texts)
        dropped = (one.static_batch or 1) - 1
        return len(set(one.texts) - set(other.texts)) > dropped


def uneven(text: str) -> ComplianceFinding:
    """What the check rows_agree says."""
    return ComplianceFinding(
        text, hint="batch features and labels together: dataset.batch(...) as the last step but prefetch"
    )
