"""What a report reads in a span: the work of what returned."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.report import WorkRow
from otel_rl.report.terminal import render
from tests.peers import MS, Did, Peer
from tests.watched import DEAD

DONE = [
    Did(v.SAMPLE, 5, more={v.SAMPLE_BATCH_SIZE: 16, v.TOKENS_PROMPT: 160, v.TOKENS_RESPONSE: 48}),
    Did(v.FORWARD, 5, more={v.TOKENS: 208, v.TOKENS_PADDING: 32}),
]
BEGUN = [
    Did(v.SAMPLE, 5, more={v.SAMPLE_BATCH_SIZE: 16, v.TOKENS_PROMPT: 160}),
    Did(v.FORWARD, 5, more={v.TOKENS: 208, v.TOKENS_PADDING: 32}),
]
"""They say at their begin what they are about to do, and are tried again."""


@pytest.mark.parametrize(("status", "more"), [(2, {}), (0, {v.TRUNCATED: True})], ids=["raised", "cut off"])
def test_what_did_not_return_is_no_work(tmp_path: Path, status: int, more: dict[str, bool]) -> None:
    """A rollout and a forward that are tried again count once."""
    rank = Peer(tmp_path, 0, 1, identity=DEAD)
    for number in range(1, 5):
        spans = rank.step(number, [*BEGUN, *DONE], is_journaled=False)
        for span in spans[: len(BEGUN)]:
            span.status = (status, "") if status else None
            span.attributes = {**(span.attributes or {}), **more}
        rank.write(spans[::-1])
    rank.die()
    expected = WorkRow(
        role="trainer",
        rank=0,
        samples=4 * 16,
        prompt_tokens=4 * 160,
        response_tokens=4 * 48,
        environment_tokens=None,
        padding_tokens=4 * 32,
        train_tokens=4 * 208,
    )
    report = build_report(open_run(tmp_path), rank.now_ns + 1_000 * MS)
    assert [expected] == report.work


def test_what_an_environment_wrote_is_neither_generated_nor_trained(tmp_path: Path) -> None:
    """Nor are prompts trained, where a forward says how many it has; the share of padding is of all positions."""
    rank = Peer(tmp_path, 0, 1, identity=DEAD)
    more = {v.TOKENS_PROMPT: 160, v.TOKENS_RESPONSE: 48, v.TOKENS_ENVIRONMENT: 12}
    forward = {**more, v.TOKENS: 220, v.TOKENS_PADDING: 32}
    rank.step(1, [Did(v.SAMPLE, 5, more={v.SAMPLE_BATCH_SIZE: 16, **more}), Did(v.FORWARD, 5, more=forward)])
    rank.die()
    report = build_report(open_run(tmp_path), rank.now_ns + 1_000 * MS)
    assert {32 / (32 + 220)} == {row.padding_share for row in report.efficiency.goodput}
    screen = io.StringIO()
    render(report, Console(file=screen, width=80))
    shown = [" ".join(line.split()) for line in screen.getvalue().splitlines()]
    row = shown.index("in all steps samples prompt tok. response tok. env. padding trained tok.") + 1
    assert "rank 0 16 160 48 12 32 48" == shown[row]
    assert "env.: tokens that tools or an environment wrote" in " ".join(shown[row + 1 :])


def test_what_its_writer_died_in_is_no_work(tmp_path: Path) -> None:
    """A reader closes it where its journal ends."""
    rank = Peer(tmp_path, 0, 1, identity=DEAD)
    rank.step(1, DONE)
    rank.open(v.SAMPLE, v.FORWARD)
    report = build_report(open_run(tmp_path), rank.now_ns + 1_000 * MS)
    assert [(16, 208)] == [(row.samples, row.train_tokens) for row in report.work]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (None, None)),
        ({v.TOKENS_PROMPT: 160}, (160, None)),
        ({v.TOKENS_RESPONSE: 0}, (None, 0)),
    ],
)
def test_tokens_that_no_rollout_says_are_not_known(
    tmp_path: Path, said: dict[str, int], expected: tuple[int | None, int | None]
) -> None:
    """They are not 0, which a rank may well say."""
    rank = Peer(tmp_path, 0, 1, identity=DEAD)
    rank.step(1, [Did(v.SAMPLE, 5, more={v.SAMPLE_BATCH_SIZE: 16, **said})])
    rank.die()
    report = build_report(open_run(tmp_path), rank.now_ns + 1_000 * MS)
    assert [expected] == [(row.prompt_tokens, row.response_tokens) for row in report.work]
    out = io.StringIO()
    render(report, Console(file=out, width=200))
    cells = ["-" if value is None else str(value) for value in expected]
    assert [["rank", "0", "16", *cells, "-", "-"]] == [
        line.split() for line in out.getvalue().splitlines() if line.startswith("rank 0  ") and " 16 " in line
    ]


def test_what_no_stage_says_is_not_known(tmp_path: Path) -> None:
    """A loop of one's own may give no numbers at all, or one that is 0."""
    for number, (sampled, trained, expected) in enumerate(
        (
            ({}, {}, (None, None, None)),
            ({v.BATCH_SIZE: 3, v.TOKENS_ENVIRONMENT: 0}, {v.TOKENS_RESPONSE: 5}, (3, 0, 5)),
            ({v.SAMPLE_BATCH_SIZE: 0}, {v.TOKENS: 0}, (0, None, 0)),
        )
    ):
        rank = Peer(tmp_path / str(number), 0, 1, identity=DEAD)
        for step in range(1, 5):
            rank.step(step, [Did(v.SAMPLE, 5, more=sampled), Did(v.FORWARD, 5, more=trained)])
        rank.die()
        report = build_report(open_run(tmp_path / str(number)), rank.now_ns + 1_000 * MS)
        times = None if expected[2] is None else 4 * expected[2]
        (row,), (mean,) = report.work, report.efficiency.ranks
        assert (None if expected[0] is None else 4 * expected[0], expected[1], times) == (
            row.samples, row.environment_tokens, row.train_tokens,
        )  # fmt: skip
        assert (None, expected[2]) == (mean.response_tokens, mean.train_tokens)


@pytest.mark.parametrize(("forward", "expected"), [({v.TOKENS_RESPONSE: 4}, 8), ({}, 9)], ids=["forwards", "around"])
def test_an_update_counts_where_its_forwards_say_nothing(
    tmp_path: Path, forward: dict[str, int], expected: int
) -> None:
    """Never both: it is around them."""
    rank = Peer(tmp_path, 0, 1, identity=DEAD)
    did = [Did(v.TRAIN, 20, more={v.TOKENS_RESPONSE: 9}), *[Did(v.FORWARD, 5, more=forward) for _ in range(2)]]
    rank.step(1, did)
    rank.die()
    report = build_report(open_run(tmp_path), rank.now_ns + 1_000 * MS)
    assert [expected] == [row.train_tokens for row in report.work]
