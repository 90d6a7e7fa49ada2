"""The containers of some traces, each as a record: what a rank did in a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.bubbles import REASONS, reason_of
from otel_rl.analysis.goodput import Goodput, Kind, kind_of
from otel_rl.analysis.stages import Comm
from otel_rl.analysis.steps import Step
from otel_rl.journal.read import SpanView
from otel_rl.report.fold.folded_spans import StepRecord, StepSums
from otel_rl.report.read.containers import NO_CALLS, UPDATE, skipped, skipped_calls
from otel_rl.report.read.span_attributes import ERROR, WorkSums, clock_set_ns, rank_of
from otel_rl.report.read.step_stages import PackedStages
from otel_rl.runs.spans import (
    nanoseconds,
    place,
    shares_samples,
    text,
)
from otel_rl.tables.stages import Within

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.report.fold.traces import Traces
    from otel_rl.tables.forest import Ints

KINDS: Final = (Kind.WASTED, Kind.IDLE, Kind.OVERHEAD, Kind.PRODUCTIVE)
NOWHERE: Final = 99


class Steps:
    """What is said of each container, all at once."""

    def __init__(self, traces: Traces, within: Within, rows: Ints, is_step: NDArray[np.bool_]) -> None:
        self.traces, self.within, self.rows = traces, within, rows
        self.index = np.flatnonzero(is_step)
        table, writer = traces.table, traces.writer
        self.row = within.table.forest.order[within.inside.place]
        """The row of each span that is inside a container."""
        self.name = table["name"][self.row]
        self.skipped, self.wasted = self._skipped()
        self.goodput = self._goodput(is_step)
        self.covered = within.covered_ns().tolist()
        columns = zip(within.activities().tolist(), self._bubbles(), self.goodput, self._work(), strict=True)
        self.sums = [StepSums(*one).pack() for one in columns]
        self.first = writer.run.count_steps(len(rows))
        """The number of the first record."""
        stages: list[dict[Any, Any]] = [{} for _ in rows]
        for number, path, times in within.stage_times():
            stages[number][path] = times
        self.stages = stages
        self.direct = [one[within.roots].tolist() for one in within.table.direct]

    def _flags(self, wanted: Iterable[str]) -> NDArray[np.bool_]:
        known = set(wanted)
        return np.array([name in known for name in self.traces.names] or [False], bool)[self.name]

    def _skipped(self) -> tuple[dict[int, frozenset[Any]], list[tuple[int, int, int, int]]]:
        """Return what lies in updates that the optimizer skipped, as most runs have none."""
        table, within = self.traces.table, self.within
        is_skipped = self._flags((v.OPTIMIZER,)) & (table[v.OPTIMIZER_SKIPPED][self.row] == 1)
        calls: dict[int, frozenset[Any]] = {}
        wasted: list[tuple[int, int, int, int]] = []
        is_update = self._flags(UPDATE)
        for root in sorted({*within.inside.root[is_skipped].tolist()}):
            container = self.traces.view(int(self.rows[root]))
            of = np.flatnonzero(is_update & (within.inside.root == root))
            views = []
            self.traces.make_views(self.row[of])
            for one in of.tolist():
                view = self.traces.view(int(self.row[one]))
                is_direct = within.inside.level[one] == 1
                views.append(view._replace(parent_id=container.span_id if is_direct else b""))
            calls[root] = skipped_calls(container, views)
            wasted += [(root, 0, *one) for one in skipped(views, container.start_ns)]
        return calls, wasted

    def _goodput(self, is_step: NDArray[np.bool_]) -> list[Goodput]:
        within = self.within
        kinds = [kind_of(name) for name in self.traces.names]
        places = [KINDS.index(kind) if kind in KINDS else NOWHERE for kind in kinds]
        place_of = np.array(places or [NOWHERE], np.int64)[self.name]
        whole = [
            (number, KINDS.index(Kind.OVERHEAD), int(within.begin[number]), int(within.end[number]))
            for number in np.flatnonzero(~is_step).tolist()
        ]
        parts = within.partition(place_of, len(KINDS), [*self.wasted, *whole])
        return [
            Goodput(productive, overhead, idle, wasted, other)
            for wasted, idle, overhead, productive, other in parts.T.tolist()
        ]

    def _bubbles(self) -> list[tuple[int, ...]]:
        texts, reason = self.traces.names, self.traces.table[v.IDLE_REASON][self.row]
        known = [REASONS.index(reason_of(one)) for one in texts]
        named = np.where(reason >= 0, np.array(known or [0], np.int64)[np.maximum(0, reason)], REASONS.index("other"))
        layer = np.where(self._flags((v.IDLE,)), named, NOWHERE)
        return [tuple(one[: len(REASONS)]) for one in self.within.partition(layer, len(REASONS)).T.tolist()]

    def _work(self) -> list[WorkSums]:
        table, within = self.traces.table, self.within
        is_sample, is_forward, is_train = (self._flags((one,)) for one in (v.SAMPLE, v.FORWARD, v.TRAIN))
        counts = (is_sample | is_forward | is_train) & (within.around(self._flags((v.EVALUATE,))) == 0)
        counts &= ~table.is_text(v.MODE, "eval")[self.row] & (table["status"][self.row] != ERROR)
        counts &= ~table.has(v.TRUNCATED)[self.row]
        index = np.flatnonzero(counts)
        row, root = self.row[index], within.inside.root[index]
        is_sample, is_forward, is_train = is_sample[index], is_forward[index], is_train[index]

        def number(key: str) -> Ints:
            return table.integers(key)[row]

        def has(key: str) -> NDArray[np.bool_]:
            return table.has(key)[row]

        prompt, response, environment = (
            number(key) for key in (v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT)
        )
        tokens, batch = number(v.TOKENS), number(v.SAMPLE_BATCH_SIZE)
        has_trained = ~is_sample & (has(v.TOKENS) | has(v.TOKENS_RESPONSE))
        has_forwards = np.zeros(len(within.roots), bool)
        has_forwards[root[is_forward & has_trained]] = True
        trained = is_forward | (is_train & ~has_forwards[root])
        fields = {
            "samples": np.where(is_sample, np.where(batch != 0, batch, number(v.BATCH_SIZE)), 0),
            "prompt_tokens": np.where(is_sample, prompt, 0),
            "response_tokens": np.where(is_sample, response, 0),
            "environment_tokens": np.where(is_sample, environment, 0),
            "padding_tokens": np.where(trained & has(v.TOKENS), number(v.TOKENS_PADDING), 0),
            "padded_tokens": np.where(trained & has(v.TOKENS_PADDING), tokens, 0),
            "forward_tokens": np.where(trained, tokens, 0),
            "train_tokens": np.where(
                trained, np.where(response != 0, response, np.maximum(0, tokens - prompt - environment)), 0
            ),
            "has_samples": is_sample & (has(v.SAMPLE_BATCH_SIZE) | has(v.BATCH_SIZE)),
            "has_prompts": is_sample & has(v.TOKENS_PROMPT),
            "has_responses": is_sample & has(v.TOKENS_RESPONSE),
            "has_environment": is_sample & has(v.TOKENS_ENVIRONMENT),
            "has_trained": trained & has_trained,
            "has_generated": trained & has(v.TOKENS_RESPONSE),
        }
        sums = {name: np.zeros(len(within.roots), np.int64) for name in fields}
        for name, values in fields.items():
            np.add.at(sums[name], root, values.astype(np.int64))
        return [
            WorkSums(**dict(zip(sums, row, strict=True)))
            for row in zip(*(one.tolist() for one in sums.values()), strict=True)
        ]

    def record(self, number: int) -> StepRecord:
        container = self.traces.view(int(self.rows[number]))
        trace = int(self.traces.trace[self.rows[number]])
        iteration = self.traces.number_of[trace]
        assert iteration is not None
        is_open = container.attributes.get(v.TRUNCATED) is True
        original: SpanView = self.traces.table["view"][self.rows[number]]
        return StepRecord(
            attempt=text(container.resource, v.ATTEMPT_ID),
            rank=rank_of(container.resource),
            step=Step(container.start_ns, container.end_ns, text(container.attributes, v.LOOP_NAME), iteration),
            covered_ns=self.covered[number],
            sums=self.sums[number],
            stages=PackedStages(self.stages[number], self.traces.writer.run.shapes),
            direct_comm=Comm(self.direct[0][number], self.direct[1][number]),
            is_truncated=is_open or container.status_code == ERROR,
            number=self.first + number,
            skipped=self.skipped.get(number, NO_CALLS),
            pipeline=place(container.resource, v.RANK_PP),
            samples=shares_samples(container.resource),
            is_open=is_open,
            clock_set_ns=clock_set_ns(original),
            restart_of=text(container.attributes, v.LOOP_RESTART_OF),
            cpu_ns=nanoseconds(container.attributes.get(v.CPU_TIME)),
            algorithm=text(container.attributes, v.ALGORITHM) or text(container.resource, v.ALGORITHM),
            model=text(container.attributes, v.MODEL_NAME) or text(container.resource, v.MODEL_NAME),
        )
