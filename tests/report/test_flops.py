"""FLOPs, MFU and the ledger in a report: read from the journals of several ranks, in the terminal and as data."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otel_rl import vocabulary as v
from otel_rl.analysis.checksums import LogprobSums, MaskSums, TokenSums
from otel_rl.analysis.ledger import Passage
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.observing.ledger import attributes
from otel_rl.observing.passes import LedgerRow
from otel_rl.records import Log, MetricPoints, Number
from otel_rl.report.build import build_report
from otel_rl.report.data.details import Flops, Ledger, LedgerMismatch, RankFlops
from otel_rl.report.data.ranks import Rank
from otel_rl.report.terminal import render
from tests.made_runs import BEGIN_NS, MS, Plan, resource, write_run

TOKENS = TokenSums(100, 900, 90, 5000)
MASK = MaskSums(40, 32, 4, 0, 28)
CLEAN = LogprobSums(32, 0.02, 0.001, 0.1, 0, (0.1, 0.99, 0.1))
ATTEMPT = "a" * 32


def row(step: int, boundary: str, **changes: Any) -> Passage[int]:
    """Make a clean row."""
    return replace(Passage(step=step, rank=0, boundary=boundary, tokens=TOKENS, mask=MASK), **changes)


def write(root: Path, by_rank: dict[int, list[Any]]) -> Path:
    """Add rows of the ledger, logs and metrics of some ranks to a healthy run."""
    plan = Plan(ranks=4)
    path = write_run(root, plan)
    for rank, records in by_rank.items():
        rows = [one for one in records if isinstance(one, Passage)]
        logs = [one for one in records if isinstance(one, Log)]
        logs += [
            Log(v.LEDGER, BEGIN_NS + MS, {v.ITERATION: one.step, v.LOOP_NAME: "train", **attributes(LedgerRow(one, 4))})
            for one in rows
        ]
        metrics = [one for one in records if isinstance(one, MetricPoints)]
        writer = Writer(
            path, replace(WriterIdentity.current("trainer", rank, "0.1.0"), start_time=2), max_bytes=1 << 30
        )
        encoder = SpanEncoder(resource(plan, rank), "0.1.0")
        for request in encoder.encode_logs(logs) + encoder.encode_metrics(metrics):
            writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
        writer.close()
    return path


def shown(path: Path) -> str:
    """Render the report."""
    console = Console(file=io.StringIO(), width=120)
    render(build_report(open_run(path), BEGIN_NS), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def mismatch(step: int, boundary: str, fault: str, *ranks: int) -> LedgerMismatch:
    """Make what the report says of a fault."""
    return LedgerMismatch(
        attempt=ATTEMPT,
        loop="train",
        step=step,
        boundary=boundary,
        fault=fault,
        ranks=[Rank("trainer", rank) for rank in ranks],
        of_ranks=4,
        samples=[],
        num_samples=0,
    )


def test_every_mismatch_of_every_rank_is_listed(tmp_path: Path) -> None:
    """With step, boundary, fault and the ranks that have it; steps that differ in nothing else share a line."""
    by_rank: dict[int, list[Any]] = {rank: [] for rank in range(4)}
    for step, rank in itertools.product(range(1, 41), range(4)):
        is_shifted = rank == 3 and step in (7, 8, 9, 30)
        tokens = replace(TOKENS, weighted=800) if is_shifted else TOKENS
        zeros = 20 if step == 12 and rank in (0, 2) else 0
        nonfinite = 1 if (step, rank) == (40, 1) else 0
        by_rank[rank] += [
            row(step, "rl.sample"),
            row(step, "rl.train.forward", tokens=tokens, nonfinite=nonfinite, logprobs=replace(CLEAN, zeros=zeros)),
        ]
    path = write(tmp_path, by_rank)
    between = "rl.sample -> rl.train.forward"
    shifted = [mismatch(step, between, "tokens shifted by one", 3) for step in (7, 8, 9, 30)]
    zero = mismatch(12, "rl.train.forward", "logprobs padded with zeros", 0, 2)
    nan = mismatch(40, "rl.train.forward", "values that are NaN or infinite", 1)
    found = build_report(open_run(path), BEGIN_NS).ledger
    assert Ledger(steps=40, rows=320, mismatches=[*shifted[:3], zero, shifted[3], nan]) == found
    lines = [line for line in shown(path).splitlines() if line.startswith("correctness: ")]
    assert [
        f"correctness: tokens shifted by one, {between}: rank 3 of 4 ranks, steps 7-9, 30",
        "correctness: logprobs padded with zeros, rl.train.forward: rank 0 and rank 2 of 4 ranks, step 12",
        "correctness: values that are NaN or infinite, rl.train.forward: rank 1 of 4 ranks, step 40",
    ] == lines


def test_rows_of_a_batch_that_outlasts_steps_are_compared_with_theirs(tmp_path: Path) -> None:
    """They come steps later."""
    late = [
        row(1, "rl.sample"),
        *(row(step, "rl.sample") for step in range(2, 9)),
        row(1, "rl.train.forward", mask=None),
    ]
    broken = row(2, "rl.train.forward", tokens=replace(TOKENS, plain=101), mask=None)
    found = build_report(open_run(write(tmp_path, {0: [*late, broken]})), BEGIN_NS).ledger
    assert [(2, "other tokens")] == [(one.step, one.fault) for one in found.mismatches]


def test_a_clean_run_has_no_line(tmp_path: Path) -> None:
    """Nor has one without any ledger."""
    path = write(tmp_path, {0: [row(1, "rl.sample"), row(1, "rl.train.forward", logprobs=CLEAN)]})
    assert Ledger(steps=1, rows=2, mismatches=[]) == build_report(open_run(path), BEGIN_NS).ledger
    assert "correctness" not in shown(path)
    bare = write_run(tmp_path / "bare", Plan())
    assert (Flops(ranks=[], notes=[]), Ledger(steps=0, rows=0, mismatches=[])) == (
        build_report(open_run(bare), BEGIN_NS).flops,
        build_report(open_run(bare), BEGIN_NS).ledger,
    )
    assert "FLOP/s" not in shown(bare)


def points(name: str, values: list[float], **labels: Any) -> MetricPoints:
    """Make one point for each value."""
    formula = {v.FLOPS_FORMULA: "megatron", **labels}
    return MetricPoints(
        name, "gauge", "1", "", [Number(BEGIN_NS + MS * at, one, formula) for at, one in enumerate(values)]
    )


def test_flops_and_mfu_are_medians_of_each_rank(tmp_path: Path) -> None:
    """With formula and peak; what is not known is a dash, and why is said."""
    update, step = {v.FLOPS_SCOPE: "update"}, {v.FLOPS_SCOPE: "step", v.CLOCK: "host"}
    peak = {v.FLOPS_PEAK: 989.4e12, v.FLOPS_PEAK_SOURCE: "a paper"}
    note = "the FLOPs of this model cannot be known: model type 'mamba'"
    path = write(
        tmp_path,
        {
            0: [
                points(v.FLOPS_RATE, [1e14, 4e14, 3e14], **update),
                points(v.MFU, [0.1, 0.4, 0.3], **update, **peak),
                points(v.FLOPS_RATE, [2e9], **step),
            ],
            1: [points(v.FLOPS_RATE, [5e12], **update), Log(v.FLOPS_NOTE, BEGIN_NS, {}, note, 13)],
        },
    )
    common = {"role": "trainer", "formula": "megatron"}
    unknown = {"mfu": None, "peak": None, "peak_source": ""}
    slow = {"scope": "step", "steps": 1, "per_second": 2e9, "is_host_clock": True, **unknown}
    fast = {"mfu": 0.3, "peak": 989.4e12, "peak_source": "a paper", "is_host_clock": False, "per_second": 3e14}
    expected = [
        RankFlops(rank=0, scope="update", steps=3, **fast, **common),
        RankFlops(rank=0, **slow, **common),
        RankFlops(rank=1, scope="update", steps=1, per_second=5e12, is_host_clock=False, **unknown, **common),
    ]
    assert Flops(ranks=expected, notes=[note]) == build_report(open_run(path), BEGIN_NS).flops
    text = shown(path)
    start = text.index("FLOP/s")
    assert [
        "FLOP/s           update  step",
        "rank 0  300 T  MFU 30 %   2 G",
        "rank 1              5 T     -",
        "Of one device by Megatron's formula, padding excluded, median over steps; peak 989 TFLOP/s (a paper). "
        "Times of the host,",
        "so of launches: too high where the device lags.",
        "The FLOPs of this model cannot be known: model type 'mamba'.",
    ] == [line.rstrip() for line in text[start:].splitlines()[:6]]


def test_what_a_user_records_under_our_names_is_no_flops(tmp_path: Path) -> None:
    """Without the scope, or with another, or no number at all."""
    update = {v.FLOPS_SCOPE: "update"}
    rates = [points(v.FLOPS_RATE, [1.0]), points(v.FLOPS_RATE, [2.0], **{v.FLOPS_SCOPE: "mine"})]
    path = write(tmp_path, {0: [*rates, points(v.FLOPS_RATE, [float("nan"), 3e9], **update)]})
    found = build_report(open_run(path), BEGIN_NS).flops.ranks
    assert [("update", 1, 3e9)] == [(one.scope, one.steps, one.per_second) for one in found]


@pytest.mark.parametrize(
    "part",
    [
        {v.LEDGER_TOKENS: [1, 2, 3]},
        {v.LEDGER_TOKENS: "abcd"},
        {v.LEDGER_MASK: [1, 2, 3, 4, 5, 6]},
        {v.LEDGER_MASK: [1.5] * 5},
        {v.LEDGER_LOGPROBS: [40.0, 9.0, 3.0, 4.0]},
        {v.LEDGER_LOGPROBS: [float("nan")] * 8},
        {v.LEDGER_LOGPROBS: [float("inf")] * 8},
        {v.LEDGER_LOGPROBS: "abcdefgh"},
    ],
)
def test_a_part_of_a_row_in_another_form_is_left_out(tmp_path: Path, part: dict[str, Any]) -> None:
    """The rest of the row counts."""
    place = {v.ITERATION: 1, v.LOOP_NAME: "train", v.LEDGER_BOUNDARY: "rl.train.forward", v.LEDGER_NONFINITE: 1}
    path = write(tmp_path, {0: [row(1, "rl.sample"), Log(v.LEDGER, BEGIN_NS + 2 * MS, {**place, **part}, "", 9)]})
    expected = [mismatch(1, "rl.train.forward", "values that are NaN or infinite", 0)]
    found = build_report(open_run(path), BEGIN_NS).ledger
    assert Ledger(steps=1, rows=2, mismatches=[replace(one, of_ranks=1) for one in expected]) == found
