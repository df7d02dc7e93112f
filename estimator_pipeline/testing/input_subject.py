"""The `input_fn` under test: called like in each kind of job, and read once for all checks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.testing import calling
from estimator_pipeline.testing import record_stream as streams
from estimator_pipeline.testing.record_stream import Stream
from estimator_pipeline.testing.report import Blocked, ComplianceFinding, Skip, format_exception, shared

__all__ = ["InputCheckOptions", "InputSubject", "ShardLayout", "uneven"]

_RANDOM = (
    "records differ when they are read again (random augmentation?), so their content does not identify them; pass "
    "key=, a function of a record's features and labels that returns its identity"
)


@dataclass(frozen=True)
class ShardLayout:
    """The number of input pipelines of a job, and of replicas per pipeline."""

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
    """The arguments of `check_input_fn`."""

    global_batch_size: int | None
    pipelines: tuple[int, ...]
    steps: int
    key: Callable[[Any, Any], Hashable] | None
    mode: str
    params: Any
    config: Any
    num_records: int | None
    finite: bool
    seed: int | None


class InputSubject:
    """An input_fn and the data that was read from it so far."""

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
        """Call the input_fn in the current graph, with the arguments that it has."""
        if calling.unfilled(self.input_fn, calling.INPUT_FN):
            self.check_parameters()
        takes = calling.parameters(self.input_fn)
        known = {"mode": self.options.mode, "params": self.options.params, "config": self.options.config}
        arguments = {name: value for name, value in known.items() if name in takes}
        # Without a strategy Estimator does not pass this argument.
        if context is not None and "input_context" in takes:
            arguments["input_context"] = context
        return self.input_fn(**arguments)

    def read(self, who: str, context: Any = None, *, seed: int | None = None, key: Any = None) -> Stream:
        """Call the input_fn and read its data; `seed` replaces the job's seed."""
        return streams.read(
            self.tf,
            lambda: self.call(context),
            who=who,
            steps=self.options.steps,
            seed=self.options.seed if seed is None else seed,
            key=key,
            to_the_end=not self.training,
        )

    @shared("returns_batches", hint="correct the error in the input_fn; Estimator calls it in a new graph")
    def base(self) -> Stream:
        """Read the input_fn without an input_context, like an Estimator without a strategy."""
        return self.read("the pipeline of a job without a strategy", key=self.options.key)

    @shared("returns_batches", hint="correct the error in the input_fn when it is called with an input_context")
    def pipelines(self, layout: ShardLayout) -> tuple[Stream, ...]:
        """Read all pipelines of a layout; empty where the input_fn has a valid reason to reject the layout."""
        streams = []
        for index in range(layout.pipelines):
            if not self.takes_context:
                streams.append(self.plain(index))
                continue
            context = self.tf.distribute.InputContext(layout.pipelines, index, layout.all_replicas)
            who = f"pipeline {index} of {layout}"
            try:
                streams.append(self.read(who, context, key=self.options.key))
            except ComplianceFinding:
                raise
            except Exception as error:
                if self.batch % layout.all_replicas == 0:
                    raise
                self.left_out[layout] = f"{layout} skipped; the input_fn rejects them: {format_exception(error)}"
                return ()
        return tuple(streams)

    @shared("returns_batches", hint="correct the error in the input_fn when it is called again")
    def plain(self, index: int) -> Stream:
        """Read a pipeline of an input_fn without an input_context: each pipeline makes the same call."""
        return self.base() if index == 0 else self.read(f"call {index + 1} of the input_fn", key=self.options.key)

    @property
    def batch(self) -> int:
        """The global batch size: as passed, or the batch size of a single pipeline."""
        return self.options.global_batch_size or max(self.base().sizes, default=1)

    @property
    def layouts(self) -> tuple[ShardLayout, ...]:
        layouts = [ShardLayout(n) for n in self.options.pipelines]
        # One process with two devices: one call of the input_fn, and the devices take batches in turn.
        return (
            (*layouts, ShardLayout(1, 2)) if self.takes_context and ShardLayout(1, 2) not in layouts else tuple(layouts)
        )

    def each(self) -> Iterable[tuple[ShardLayout, tuple[Stream, ...]]]:
        for layout in self.layouts:
            streams = self.pipelines(layout)
            if streams:
                yield layout, streams

    def all_streams(self) -> list[Stream]:
        return [self.base(), *(stream for _, streams in self.each() for stream in streams)]

    @shared("same_structure_in_each_call", hint="correct the error in the input_fn when it is called again")
    def specs(self) -> None:
        base = self.base()
        with self.tf.Graph().as_default():
            again = streams.build(self.tf, self.call)[2]
        for who, spec in [("a second call", again), *((s.who, s.spec) for s in self.all_streams())]:
            if {leaf.of_record for leaf in base.spec} != {leaf.of_record for leaf in spec}:
                raise ComplianceFinding(
                    f"{base.who} returns {', '.join(map(str, base.spec))}; {who} returns {', '.join(map(str, spec))}",
                    hint="return the same features and labels for every pipeline and in every call",
                )

    # Records -------------------------------------------------------------------------------------------------

    def require_records(self) -> None:
        """Raise Blocked if batches cannot be split into rows."""
        self.specs()
        text = next((stream.uneven for stream in self.all_streams() if stream.uneven), None)
        if text is not None:
            raise Blocked("rows_agree", uneven(text))

    def require_whole(self) -> None:
        self.require_records()
        part = next((stream for stream in self.all_streams() if not stream.whole), None)
        if part is None:
            return
        if len(part.texts) == sum(part.sizes) and self.options.key is None and self._contents_differ():
            raise Skip(_RANDOM)
        raise Skip(
            f"{len(part.batches)} batches of {part.who} were read, with {len(part.texts)} different records in "
            f"{sum(part.sizes)}, and there may be more; pass a larger steps=, or use less data"
        )

    @shared("evaluation_ends", hint="")
    def ends(self) -> None:
        base = self.base()
        if base.declared == -1:
            raise ComplianceFinding("the data repeats endlessly", hint="use no repeat() outside training")
        if not base.ended and len(base.texts) * 3 <= sum(base.sizes):
            raise ComplianceFinding(
                f"{len(base.batches)} batches hold {len(base.texts)} different records repeatedly, without an end",
                hint="use no repeat() outside training; pass num_epochs=1 to numpy_input_fn and pandas_input_fn",
            )
        if not base.ended:
            raise Skip(f"the data did not end within {len(base.batches)} batches; pass a larger steps=")

    def universe(self) -> dict[Hashable, str]:
        """Return every record that any pipeline reads, with its text."""
        return {record: text for stream in self.all_streams() for record, text in stream.texts.items()}

    def judge(self, finding: ComplianceFinding) -> None:
        """Raise the finding, unless the records' content changes so that it cannot identify them."""
        if self.options.key is None and self._contents_differ():
            raise Skip(_RANDOM)
        raise finding

    @shared("returns_batches", hint="correct the error in the input_fn when it is called again")
    def _contents_differ(self) -> bool:
        """Whether a second read with a different seed gives different contents, as random augmentation does."""
        base, other = self.base(), self.read("the second read", seed=(self.options.seed or 0) + 1)
        if not (base.whole and other.whole):
            return not set(base.texts) & set(other.texts)
        dropped = (base.static_batch or 1) - 1
        return len(set(base.texts) - set(other.texts)) > dropped


def uneven(text: str) -> ComplianceFinding:
    """Return the finding of the check `rows_agree`."""
    return ComplianceFinding(
        text, hint="batch features and labels together: call dataset.batch(...) last, before prefetch only"
    )
