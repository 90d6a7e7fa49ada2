"""What a person sees."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import RankSeconds, Report
from otel_rl.report.data.time_use import SlowCommunication
from otel_rl.report.terminal import render
from tests.made_runs import BEGIN_NS, Plan, write_run
from tests.peers import Did, Peer

PLANS = {
    "healthy": Plan(),
    "slow rank": Plan(slow_rank=1, nan_loss_step=3, dropped=1234, changed=3),
    "one rank": Plan(ranks=1),
    "many ranks": Plan(ranks=12, slow_rank=7),
    "killed": Plan(killed_in=v.BACKWARD),
    "hanging": Plan(killed_in=v.BACKWARD, is_alive=True),
    "launches": Plan(host_clock=True, checkpoint=True),
    "device": Plan(host_clock=True, device_ms=30.0, device_memory=True),
    "no step": Plan(steps=1, killed_in=v.SAMPLE),
    "long name": Plan(run_id="a-very-long-name-" * 6),
}


def shown(root: Path, plan: Plan, width: int) -> str:
    """Render a run as plain text."""
    out = io.StringIO()
    report = build_report(open_run(write_run(root, plan)), BEGIN_NS + 60_000_000_000)
    render(report, Console(file=out, width=width))
    return out.getvalue()


@pytest.fixture(scope="module")
def text_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], str]:
    """Give what is shown of a plan; each is played once."""
    return cache(lambda name, width: shown(tmp_path_factory.mktemp("shown"), PLANS[name], width))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(text_of: Callable[[str, int], str], name: str, width: int) -> None:
    """And no table cell is cut: nothing but a run's name may be shortened. The path is in one piece, to be copied."""
    first, *others, path = text_of(name, width).splitlines()
    assert width >= max(map(len, (first, *others)))
    assert ("…" in first) == (PLANS[name].run_id != "healthy")
    assert "…" not in "".join((*others, path))
    assert Path(path).is_dir()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("healthy", "TIME    Nothing stands out. Sampling takes 39 % of a step"),
        ("slow rank", "rl.reward            10.0 ms  20.0 ms  rank 1, 2.0x the others"),
        ("slow rank", "2,468 spans dropped (journal_full)"),
        ("slow rank", "6 values cut, replaced or left out (text_cut)"),
        ("slow rank", "2 NaN/Inf"),
        ("many ranks", "rl.reward            10.0 ms  10.0 ms  20.0 ms  rank 7, 2.0x the others"),
        ("killed", "rank 1 was last seen in rl.train.backward, step 12, at most 1 s before it died;"),
        ("hanging", "rank 1 may hang: in rl.train.backward, step 12, for 56.6 s (since "),
        ("hanging", "; the longest that ended took 16.0 ms\n\nlearning  "),
        ("hanging", "running"),
        ("killed", "killed, at least "),
        ("no step", "No step was finished"),
        ("launches", "* Timed on the host: launches of device work, not the work: no rank is named."),
        ("launches", "rl.checkpoint        10.0 ms     0 us  only rank 0"),
        ("healthy", "* Collectives hide inside and cannot be separated: no rank is named."),
        ("healthy", "10 steps: median 100 ms, p95 130 ms, without the first 2 after set-up."),
        ("healthy", "collectives in  per step   rank 0   rank 1\nrl.reward              1     0 us     0 us\n"),
        ("healthy", "rl.train.comm          1  1.00 ms  1.00 ms\nMeans per step"),
        ("healthy", "Those of compiled regions and of DDP on a device are not among them"),
        ("launches", "rl.train.comm     1 to 2  1.00 ms  11.0 ms"),
        ("many ranks", "collectives in  per step  shortest   median  longest\n"),
        ("many ranks", "rl.reward              1      0 us  10.0 ms  10.0 ms\n"),
        ("device", "rl.train.backward and rl.train.forward: the device's times; where the host waits"),
        ("device", "device      live  reserved     other        kv  slack  round."),
        ("device", "rank 1  5.00 GiB  10.0 GiB  13.0 MiB  19.0 MiB   50 %    50 %"),
        ("healthy", "in all steps  samples  prompt tok."),
        ("slow rank", "mean step   active     wait  transfer   hidden     idle    other  speed\n"),
        ("slow rank", "rank 0     86.0 ms  10.0 ms   1.00 ms  16.0 ms  1.00 ms  2.00 ms   1.00\n"),
        ("slow rank", "Rank 1 in rl.reward alone: 10.0 ms per step, 9.1 % of the median step: slow"),
        ("slow rank", "Bubbles of the step time: data 0.9 %, skew 4.3 %.\n"),
        ("one rank", "Bubbles of the step time: data 0.9 %.\n"),
        ("one rank", "goodput        time  share\nproductive   1.34 s   38 %\noverhead     2.12 s   60 %\n"),
        ("one rank", "overhead     2.12 s   60 %\n  set-up     2.00 s   57 %\n"),
        ("slow rank", "Wall time of 2 ranks together: 7.26 s; productive: rollout to update; "),
        ("healthy", "rank 0  host rss  1.02 GiB  rl.sample, step 3"),
    ],
)
def test_a_report_says(text_of: Callable[[str, int], str], name: str, sentence: str) -> None:
    """Each kind of run shows what it is about."""
    assert sentence in text_of(name, 80)


def test_slow_ranks_share_a_cell(tmp_path: Path) -> None:
    """Two are named, more are counted; a slow one that costs too little is not called even."""
    report = build_report(open_run(write_run(tmp_path, Plan(ranks=4, slow_rank=2))), BEGIN_NS)
    slow = next(row for row in report.balance if row.straggler)
    three, others = Rank("trainer", 3), [Rank("trainer", rank) for rank in (0, 3)]
    rows = [replace(slow, tied=[three]), replace(slow, tied=others), replace(slow, straggler=None)]
    out = io.StringIO()
    render(replace(report, balance=rows), Console(file=out, width=100))
    cells = re.findall(r"^rl\.reward +(?:[\d.]+ ms +){4}(.*?) *$", out.getvalue(), re.MULTILINE)
    assert ["rank 2 and 3, 2.0x the others", "3 ranks, 2.0x the others", "negligible"] == cells


def test_a_run_that_was_resumed_says_so(tmp_path: Path) -> None:
    """Each attempt with how it ended."""
    write_run(tmp_path, Plan(killed_in=v.SAMPLE))
    text = shown(tmp_path, Plan(attempt="b" * 32, first_step=6, shift_ms=60_000, steps=10), 80)
    assert "2 attempts: killed after 11 steps, then finished after 10 steps" in text
    assert "at most 1 s before it died; it was open" in " ".join(text.split())
    assert "was last seen in rl.sample, step 12, attempt 1, at most" in text


def test_each_attempt_has_its_goodput(tmp_path: Path) -> None:
    """Of many the last four."""
    for number in range(6):
        plan = Plan(attempt="bcdef0"[number] * 32, first_step=1 + number, steps=4, shift_ms=20_000 * number)
        text = shown(tmp_path, plan, 80)
    assert "goodput        time  share  attempt 3  attempt 4  attempt 5  attempt 6\n" in text
    assert re.search(r"^wasted +[\d.]+ s +\S+ % +\S+ % +\S+ % +\S+ % +0 %$", text, re.MULTILINE) is not None


def test_of_many_ranks_those_are_shown_that_others_wait_for(tmp_path: Path) -> None:
    """Sixteen of them, the slow one among them."""
    text = shown(tmp_path, Plan(ranks=20, slow_rank=19), 80)
    assert "\nrank 19    96.0 ms     0 us " in text
    assert "\n4 ranks that waited longer left out; wait: " in text


def test_slow_communication_is_said(tmp_path: Path) -> None:
    """Beside the table of what the ranks did."""
    report = build_report(open_run(write_run(tmp_path)), BEGIN_NS)
    rows = [
        SlowCommunication(role="trainer", stage=stage, transfer_s=0.04, share=0.4, count=1.0, pipeline=None)
        for stage in (v.BACKWARD, v.COMM)
    ]
    out = io.StringIO()
    render(
        replace(report, efficiency=replace(report.efficiency, slow_communication=rows)), Console(file=out, width=120)
    )
    for where in ("inside rl.train.backward", "under no stage"):
        line = f"Collectives {where} take 40.0 ms per step, 40 %, on every rank alike: slow communication.\n"
        assert line in out.getvalue()


def test_bounds_are_said_to_be_bounds(tmp_path: Path) -> None:
    """Of waits, and of what is made of them; a rank whose waits are all known has its numbers without a sign."""
    report = build_report(open_run(write_run(tmp_path, Plan(slow_rank=1))), BEGIN_NS)
    found = report.efficiency
    bounds = replace(
        found,
        ranks=[replace(found.ranks[0], is_wait_exact=False), *found.ranks[1:]],
        bubbles=[replace(row, is_exact=row.kind != "skew") for row in found.bubbles],
        goodput=[replace(row, is_idle_exact=False) for row in found.goodput],
    )
    out = io.StringIO()
    render(replace(report, efficiency=bounds), Console(file=out, width=80))
    text = " ".join(out.getvalue().split())
    for said in (
        "rank 0 86.0 ms >=10.0 ms <=1.00 ms 16.0 ms",
        "rank 1 96.0 ms 0 us 1.00 ms 16.0 ms",
        "; >=, <=: not every collective is recorded on every rank of its group: of many in a stage only the 32 ",
        "data 0.9 %, skew >=4.3 %.",
        ">=: more may be waits in collectives, so productive, overhead and other may be less.",
    ):
        assert said in text
    assert re.search(r"\bidle >=\d+ ms >=[\d.]+ % other \d", text) is not None
    assert max(map(len, out.getvalue().splitlines()[:-1])) <= 80  # the last is the path


def test_a_cluster_that_hangs_is_not_listed_whole(tmp_path: Path) -> None:
    """The longest open stages, and how many more there are."""
    assert "and 4 more" in shown(tmp_path, Plan(ranks=20, steps=1, killed_in=v.BACKWARD, is_alive=True), 80)


def test_one_rank_has_no_table_of_ranks(tmp_path: Path) -> None:
    """There is nobody to compare it with."""
    assert "own time" not in shown(tmp_path, PLANS["one rank"], 80)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tool [/x] call", "tool [/x] call"),
        ("[bold red]y", "[bold red]y"),
        (":x: [link=http://a]b[/link]", ":x: [link=http://a]b[/link]"),
        ("", "unnamed"),
        (" \t", "unnamed"),
        ("a\x1b[2J\x9b\u202e", "a\ufffd[2J\ufffd\ufffd"),
    ],
)
def test_any_name_of_a_stage_is_shown_literally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    """In the stage table, by rank, at a memory peak and as an open stage; nothing in it is markup or an escape."""
    monkeypatch.setattr(v, "ADVANTAGE", name)
    text = shown(tmp_path, Plan(killed_in=name or " ", slow_rank=1), 120)
    assert f"\n{expected} " in text
    assert f"was last seen in {expected}, step 12, at most" in text
    assert set() == set("\x1b\x9b\u202e") & set(text)


def test_a_role_is_shown_literally(tmp_path: Path) -> None:
    """Also as the title of a column."""
    out = io.StringIO()
    report = build_report(open_run(write_run(tmp_path)), BEGIN_NS)
    odd = [Rank("[/a]", one.rank) for one in report.ranks]
    rows = [replace(row, own=[replace(one, role="[/a]") for one in row.own]) for row in report.balance]
    render(replace(report, ranks=[*report.ranks, *odd], balance=rows), Console(file=out, width=120))
    assert re.search(r"own time +\[/a\] 0 +\[/a\] 1 ", out.getvalue()) is not None


def test_parts_of_memory_fit_into_the_terminal(tmp_path: Path) -> None:
    """The last ones are left out."""
    text = shown(tmp_path, PLANS["device"], 40)
    assert "device      live  reserved     other\n" in text


def test_a_loop_that_counts_anew_is_told(tmp_path: Path) -> None:
    """Two calls of a trainer in one process have the same numbers of steps."""
    peer = Peer(tmp_path, 0, 1)
    for number in (1, 2, 3):
        peer.step(number, [Did(v.REWARD, 5)])
    once = build_report(open_run(tmp_path), BEGIN_NS)
    for number in (1, 2):
        peer.step(number, [Did(v.REWARD, 5)], loop="train.2")
    twice = build_report(open_run(tmp_path), BEGIN_NS)
    lines = []
    for report in (once, twice):
        out = io.StringIO()
        render(report, Console(file=out, width=80))
        lines.append(next(line for line in out.getvalue().splitlines() if "1 rank" in line).split(" · ")[-1])
    assert (["3 steps, median 5.00 ms", "5 steps (1-3) in 2 loops, median 5.00 ms"], 2) == (lines, twice.steps.loops)


def test_ranks_whose_journals_are_elsewhere_are_told(tmp_path: Path) -> None:
    """Each node has a disk of its own, and the report is of one of them, for all attempts together."""
    for rank in range(6):
        Peer(tmp_path, rank, 6, attempt="b" * 16, clock_ms=-1000).step(1, [Did(v.REWARD, 5)])
    whole = build_report(open_run(tmp_path), BEGIN_NS)
    assert (6, 0, True) == (len(whole.ranks), whole.missing_ranks, "6 ranks · 1 step" in _text(whole))
    for rank in range(2):
        Peer(tmp_path, rank, 8).step(1, [Did(v.REWARD, 5)])
    part = build_report(open_run(tmp_path), BEGIN_NS)
    assert (6, 2, True) == (len(part.ranks), part.missing_ranks, "6 of 8 ranks · " in _text(part))


NAMES = ["reward_correctness_of_digit", "x" * 44, "y" * 72, "報酬関数" * 12, "\N{PARTY POPPER}" * 30]
LONGEST_S = 359_999.0
"""`99 h 59 min`: no duration is written longer."""


def largest(report: Report, name: str) -> Report:
    """Give every label a long name, and every number the most digits that it can have."""
    stages = [
        replace(row, stage=row.stage if row.stage == v.OTHER else f"{name}{place}", calls=123_456_789, share=1.0,
                inside=None if row.inside is None else f"{name}0", median_s=LONGEST_S, p95_s=LONGEST_S,
                total_s=LONGEST_S)
        for place, row in enumerate(report.stages)
    ]  # fmt: skip
    balance = [
        replace(row, stage=name, own=[replace(one, own_s=LONGEST_S) for one in row.own]) for row in report.balance
    ]
    comm = [
        replace(row, stage=name, ranks=[replace(one, count=1234.5, time_s=LONGEST_S) for one in row.ranks])
        for row in report.comm
    ]
    times = [
        replace(row, active_s=LONGEST_S, wait_s=LONGEST_S, transfer_s=LONGEST_S, idle_s=LONGEST_S, other_s=LONGEST_S)
        for row in report.efficiency.ranks
    ]
    series = [
        replace(row, first=-1.234e-100, last=-1.234e-100, low=-1.234e-100, high=1.234e100, nonfinite=12_345)
        for row in report.series
    ]
    return replace(
        report,
        run=name,
        stages=stages,
        balance=balance,
        comm=comm,
        series=series,
        numbers=[replace(row, name=name) for row in series],
        efficiency=replace(report.efficiency, ranks=times),
        memory=[replace(row, stage=name, bytes=(1 << 50) - 1) for row in report.memory],
        work=[replace(row, prompt_tokens=10**12, response_tokens=10**12) for row in report.work],
    )


@pytest.mark.parametrize("plan", ["many ranks", "device"])
def test_names_are_shortened_and_numbers_are_not(tmp_path: Path, plan: str) -> None:
    """In every table: a column of numbers is whole, or left out."""
    report = build_report(open_run(write_run(tmp_path, PLANS[plan])), BEGIN_NS + 60_000_000_000)
    for name, width in itertools.product(NAMES, (60, 80, 120)):
        out = io.StringIO()
        render(largest(report, name), Console(file=out, width=width))
        _check_labels(out.getvalue().splitlines()[:-1], name, width)  # the last is the path


def _check_labels(lines: list[str], name: str, width: int) -> None:
    """Look for what is cut or too wide."""
    assert width >= max(map(cell_len, lines))
    cells = [cell for line in lines for cell in line.split() if "…" in cell]
    assert cells or width == 120
    assert [] == [cell for cell in cells if not set(cell) & set(name)]
    table = lines[next(place for place, line in enumerate(lines) if line.startswith("stage ")) :]
    heads, (row, *_) = table[0].split()[1:], table[1:]
    whole = ["100 %", "123,456,789", "99 h 59 min", "99 h 59 min", "99 h 59 min"][: len(heads)]
    assert row.endswith("  ".join(whole))


def with_stages(report: Report, shares: list[float], inside: str | None = None) -> list[str]:
    """Render a report with stages of these shares as lines."""
    row = replace(report.stages[0], stage="rollout", share=0.9, inside=None)
    parent = replace(row, stage=v.REWARD, share=0.5)
    more = [replace(row, stage=f"sample {place}", share=share, inside=inside) for place, share in enumerate(shares)]
    stages = [row, *([parent] if inside else []), *more, replace(row, stage=v.OTHER, share=0.0)]
    lines = _text(replace(report, stages=stages)).splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("stage "))
    return lines[first + 1 : first + lines[first:].index("")]


@pytest.mark.parametrize("inside", [None, v.REWARD])
@pytest.mark.parametrize(
    ("shares", "rows", "said"),
    [
        ([0.002] * 10 + [0.0005] * 2990, 10, "and 2,990 more below 0.1 %, together 149 %"),
        ([0.002] * 10 + [0.0005] * 8, 18, None),
        ([0.0] * 9, 0, "and 9 more below 0.1 %, together 0 %"),
        ([0.01] * 39 + [0.003, 0.002], 39, "and 2 more, each at most 0.3 %, together 0.5 %"),
    ],
)
def test_small_stages_are_counted(
    tmp_path: Path, inside: str | None, shares: list[float], rows: int, said: str | None
) -> None:
    """Also rewards of single samples; a few small ones are shown, and more than a screen never is."""
    report = build_report(open_run(write_run(tmp_path)), BEGIN_NS)
    if said and "each" in said and inside:
        shares = shares[1:]  # the row of the stage around them
        rows -= 1
    lines = with_stages(report, shares, inside)
    assert rows == sum(line.strip().startswith("sample ") for line in lines)
    assert [said] * (said is not None) == [line for line in lines if line.startswith("and ")]
    assert any(line.startswith(v.OTHER) for line in lines)


def test_what_is_in_a_counted_stage_is_counted_with_it(tmp_path: Path) -> None:
    """Its own share is in that of the stage around it."""
    report = build_report(open_run(write_run(tmp_path)), BEGIN_NS)
    row = replace(report.stages[0], stage="rollout", share=0.9, inside=None)
    small = [replace(row, stage=f"sample {place}", share=0.0005) for place in range(10)]
    nested = [replace(row, stage="judge", share=0.0004, inside=one.stage) for one in small]
    rewards = [replace(row, stage=v.REWARD, share=0.0009), replace(row, stage="digits", share=0.0009, inside=v.REWARD)]
    lines = _text(replace(report, stages=[row, *rewards, *small])).splitlines()
    assert "and 12 more below 0.1 %, together 0.6 %" in lines
    lines = _text(replace(report, stages=[row, *small, *nested])).splitlines()
    assert "and 10 more below 0.1 %, together 0.5 %" in lines


def test_a_thousand_ranks_are_not_listed_whole(tmp_path: Path) -> None:
    """Each table has the ones that matter, and says how many it leaves out."""
    report = build_report(open_run(write_run(tmp_path, PLANS["device"])), BEGIN_NS)
    fullest = {3, 500, 999}
    memory = [
        replace(report.memory[0], rank=rank, bytes=2000 + (rank in fullest), kind=kind)
        for rank in range(1000)
        for kind in ("host rss", "device allocated")
    ]
    parts = [replace(report.memory_parts[0], rank=rank, reserved_bytes=rank) for rank in range(1000)]
    work = [replace(report.work[0], rank=rank, train_tokens=rank) for rank in range(1000)]
    own = [RankSeconds(role="trainer", rank=rank, own_s=1.0) for rank in range(1000)]
    balance = [
        replace(report.balance[0], stage=f"stage {place}", own=own, is_comparable=True, straggler=None)
        for place in range(50)
    ]
    slow = [replace(one, stage="reward", straggler=Rank("trainer", 7), ratio=2.0) for one in balance[:1]]
    comm = [replace(report.comm[0], stage=f"comm {place}") for place in range(50)]
    big = replace(report, memory=memory, memory_parts=parts, work=work, balance=[*balance, *slow], comm=comm)
    lines = _text(big).splitlines()
    assert ["and 1,968 more, which --json has", "and 984 more, which --json has", "and 984 more, which --json has"] == [
        line for line in sorted(lines) if line.startswith("and ") and line.endswith("has")
    ]
    assert ["and 10 more stages", "and 11 more stages"] == sorted(
        line for line in lines if line.endswith("more stages")
    )
    assert fullest <= {int(line.split()[1]) for line in lines if "host rss" in line}
    assert any(line.startswith("reward ") and "rank 7" in line for line in lines)
    assert 270 > len(lines)


def _text(report: Report) -> str:
    out = io.StringIO()
    render(report, Console(file=out, width=80))
    return out.getvalue()
