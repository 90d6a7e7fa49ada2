"""The one screen, whole, as a person sees it.

`WRITE_SCREENS=1 pytest tests/report/test_screen.py` writes the expected ones anew.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import trend
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding, Findings, Severity
from otel_rl.report.data.report import Report, Series
from otel_rl.report.findings.rule import Found, Rule
from otel_rl.report.screen import PARTS, Part
from otel_rl.report.sections import learning_table
from otel_rl.report.terminal import render
from otel_rl.report.to_markdown import to_markdown
from otel_rl.runs.settings_file import FILE
from tests.made_runs import BEGIN_NS, Plan, write_run

SCREENS = Path(__file__).parent / "screens"
LINES, COLUMNS = 45, 80
SHARES = {
    v.FORWARD: 0.24, v.SAMPLE: 0.21, v.BACKWARD: 0.15, v.LOG: 0.073, f"{v.LOGPROB} old": 0.04, f"{v.LOGPROB} ref": 0.03,
    v.REWARD: 0.046, v.EVALUATE: 0.041, v.SAMPLE_PROCESS: 0.034, v.COMM: 0.016, v.CLIP: 0.012, v.OPTIMIZER: 0.011,
    f"{v.IDLE} data": 0.009, v.ADVANTAGE: 0.006, v.CHECKPOINT: 0.004, v.OTHER: 0.028,
}  # fmt: skip
INSIDE = {(v.SAMPLE, f"{v.SAMPLE}.generate"): 0.15, (v.REWARD, f"{v.REWARD} judge"): 0.022}
SETTINGS = {
    "learning_rate": 0.002, "samples_per_rank": 16.0, "group_size": 8.0, "response_limit": 12.0,
    "updates_per_rollout": 2.0, "steps": 240.0, "temperature": 1.0, "kl_coefficient": 0.04,
}  # fmt: skip


def found(rule: str, severity: Severity, sentence: str, advice: str = "", **values: str) -> Finding:
    """Make a finding."""
    return Finding(rule=rule, kind="learn", severity=severity, sentence=sentence, advice=advice, values={**values})


CLEAN = Findings(
    time=[found("largest", "note", "Generating takes 44 % of a step, communication 33 %. Neither rank is slow.")],
    learn=[found("reward_rises", "note", "Reward 0.21 to 0.99, first above 0.9 in step 77.")],
    health=[found("healthy", "note", "No NaN, no hang, nothing lost. RSS 917 MiB, +35 MiB in 110 rollouts.")],
)
ILL = Findings(
    time=[
        found("slow_rank", "alarm", "Rank 1 is slower in everything (own time 97 against 58 ms): rank 0 waits 43 ms per"
              " step (30 %). It got 51 % of a core."),
        found("data", "warning", "The data loader holds the run back: 161 of 215 ms per step wait for the next batch "
              "(74 %)."),
    ],
    learn=[
        found("nan", "alarm", "Reward judge is NaN since step 21 (40 of 60 steps): nothing has been learned since "
              "(gradient 0.57 to 0.01).", "Find the answer that the reward cannot score, and give it a number.",
              who="Reward judge"),
        found("equal", "warning", "Since step 11 all answers of every group get the same reward (0.5): advantages are"
              " 0, 50 of 60 steps teach nothing.", "Look at what the reward function returns."),
        found("cut", "warning", "96 % of the responses are cut at max_completion_length 3."),
    ],
    health=[
        found("leak", "alarm", "Rank 0 grows by 19 MiB per step (862 to 2,021 MiB in 60 steps), 82 % of it inside the "
              "reward; 23 GiB are full in about 1,100 steps.", "Look at what the reward keeps of each answer."),
        found("lost", "warning", "2,468 spans were dropped: the journal is full."),
    ],
)  # fmt: skip


@pytest.fixture(autouse=True)
def _rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say what the rules of these findings read."""
    reads = {
        "nan": (v.REWARD_SCORE, v.FUNCTION_SCORE), "equal": (v.REWARD_ZERO_STD, v.REWARD_SCORE),
        "cut": (v.RESPONSE_CLIPPED,),
    }  # fmt: skip
    monkeypatch.setattr(learning_table, "READS", reads)


def series(name: str, values: Sequence[float], **qualifiers: str) -> Series:
    """Make a series."""
    return Series(
        name=name,
        qualifiers={key.replace("_", "."): value for key, value in qualifiers.items()},
        unit="",
        **trend(values),
        nonfinite=sum(not math.isfinite(value) for value in values),
        steps=list(range(1, len(values) + 1)),
        values=[value if math.isfinite(value) else None for value in values],
    )


def curves(*, is_ill: bool) -> list[Series]:
    """Make the series of a demo."""
    rising = [0.2 + 0.8 * min(1.0, place / 60) for place in range(120)]
    judge = [value if place < 20 or not is_ill else math.nan for place, value in enumerate(rising)]
    return [
        series(v.REWARD_SCORE, rising),
        series(v.FUNCTION_SCORE, judge, rl_reward_function="judge"),
        series(v.FUNCTION_SCORE, rising, rl_reward_function="parity"),
        series(v.EVAL_REWARD, [0.8, 0.8, 0.9, 1.0], rl_mode="eval"),
        series(v.REWARD_ZERO_STD, [0.0] * 60 + [0.5] * 60),
        series(v.LOSS, [-0.07, 0.1] * 60),
        series(v.GRAD_NORM, [0.5 + place % 7 for place in range(120)]),
        series(v.KL_REFERENCE, [place / 50 for place in range(120)]),
        series(v.ENTROPY, [3 - place / 50 for place in range(120)]),
        series(v.CLIP_FRACTION, [0.0] * 120),
        series(v.RESPONSE_LENGTH, [9.28 - place / 100 for place in range(120)]),
        series(v.RESPONSE_CLIPPED, [0.56, *[0.0] * 119]),
        series(v.LEARNING_RATE, [0.002 - place / 1e5 for place in range(120)]),
    ]


def like_the_demo(root: Path, ranks: int, findings: Findings) -> Report:
    """Make the report of a run with the stages and curves of the demo."""
    plan = Plan(ranks=ranks, slow_rank=ranks - 1 if findings is ILL else None)
    report = build_report(open_run(write_run(root, plan)), BEGIN_NS + 60_000_000_000)
    row = replace(report.stages[0], inside=None, comm_share=0.3 if ranks > 1 else 0.0)
    stages = []
    for stage, share in SHARES.items():
        stages.append(replace(row, stage=stage, share=share, comm_share=row.comm_share if share > 0.1 else 0.0))
        stages += [replace(row, stage=name, inside=stage, share=inner, comm_share=0.0)
                   for (around, name), inner in INSIDE.items() if around == stage]  # fmt: skip
    balance = [replace(report.balance[0], stage=stage) for stage in SHARES if stage not in (v.OTHER, v.REWARD, v.COMM)]
    slow = [one for one in report.balance if one.stage == v.REWARD]
    return replace(
        report,
        path="otel_rl_runs/healthy",
        settings=SETTINGS,
        stages=stages,
        balance=[*balance, *slow],
        series=curves(is_ill=findings.learn is ILL.learn),
        findings=findings,
    )


def shown(report: Report, parts: Sequence[Part] = (), width: int = COLUMNS) -> list[str]:
    """Render a report as lines, without spaces at their ends."""
    out = io.StringIO()
    render(report, Console(file=out, width=width), parts)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("findings", [CLEAN, ILL], ids=["clean", "ill"])
def test_a_report_is_one_screen(tmp_path: Path, ranks: int, findings: Findings) -> None:
    """Line by line; at most 45 of 80 columns."""
    lines = shown(like_the_demo(tmp_path, ranks, findings))
    file = SCREENS / f"{'ill' if findings is ILL else 'clean'}_{ranks}.txt"
    if os.environ.get("WRITE_SCREENS"):
        file.write_text("\n".join(lines) + "\n", "utf-8")
    assert file.read_text("utf-8").splitlines() == lines
    assert LINES >= len(lines)
    assert COLUMNS >= max(map(cell_len, lines))
    assert not any("…" in line for line in lines)


def test_a_made_run_is_one_screen(tmp_path: Path) -> None:
    """As it comes from a journal."""
    report = build_report(open_run(write_run(tmp_path, Plan(slow_rank=1, nan_loss_step=3, dropped=9))), BEGIN_NS)
    lines = shown(replace(report, path="healthy", findings=CLEAN))
    file = SCREENS / "made.txt"
    if os.environ.get("WRITE_SCREENS"):
        file.write_text("\n".join(lines) + "\n", "utf-8")
    assert file.read_text("utf-8").splitlines() == lines


def test_an_alarm_is_red_and_a_warning_yellow(tmp_path: Path) -> None:
    """A note has no colour."""
    out = io.StringIO()
    console = Console(file=out, width=COLUMNS, force_terminal=True, color_system="standard")
    findings = replace(ILL, time=CLEAN.time, health=ILL.health[1:])
    render(like_the_demo(tmp_path, 2, findings), console, ())
    text = out.getvalue()
    assert "\x1b[1;31mReward judge is NaN since step 21" in text
    assert "\x1b[33m2,468 spans were dropped: the journal is full.\x1b[0m" in text
    assert "    Generating takes 44 % of a step" in text.replace("\x1b[0m", "").replace("\x1b[1m", "")
    assert re.search(r"\x1b\[1;31m *NaN\x1b\[0m", text) is not None


def test_what_has_no_room_is_counted(tmp_path: Path) -> None:
    """--all has it, with the names of the rules."""
    many = [found(f"rule_{place}", "warning", f"Sentence {place} of some forty characters ends.") for place in range(9)]
    report = replace(like_the_demo(tmp_path, 2, CLEAN), findings=replace(CLEAN, learn=many))
    lines = shown(report)
    begin, end = (
        next(place for place, line in enumerate(lines) if line.startswith(name)) for name in ("LEARN", "HEALTH")
    )
    assert (4, "and 3 more: --all") == (end - begin, lines[end - 1].strip().split(". ")[-1])
    text = "\n".join(shown(report, ("all",)))
    assert "\n        Sentence 8 of some forty characters ends. (warning: rule_8)\n" in text


def test_a_broken_rules_file_is_on_the_screen_whatever_was_lost(tmp_path: Path) -> None:
    """HEALTH says what was lost, and nothing of the rules."""
    (tmp_path / FILE).write_text("[rules.unknow_time]\nlimit = 1\n")
    report = build_report(open_run(write_run(tmp_path, Plan(steps=9, dropped=5))), BEGIN_NS)
    assert "telemetry_lost" in [one.rule for one in report.findings.health]
    assert any("did you mean unknown_time" in line for line in shown(report))


def test_numbers_stay_with_their_units(tmp_path: Path) -> None:
    """A line is broken elsewhere."""
    sentence = "x" * 69 + " 12 % of it, 3.40 MiB and " + "y" * 40 + " 5 steps"
    report = replace(like_the_demo(tmp_path, 1, CLEAN), findings=replace(CLEAN, time=[found("a", "note", sentence)]))
    assert ["TIME    " + "x" * 69, "        12 % of it, 3.40 MiB and " + "y" * 40 + " 5", "        steps"] == [
        line for line in shown(report) if line.startswith("TIME") or "MiB and" in line or line.endswith("  steps")
    ]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_stands_below_the_screen(tmp_path: Path, part: Part) -> None:
    """And is not offered again; what a run does not have is not offered."""
    report = like_the_demo(tmp_path, 2, CLEAN)
    screen, more = shown(report), shown(report, (part,))
    offer = next(line for line in screen if line.startswith("more: "))
    assert "more: --ranks --compute --memory --goodput --all · otel-rl report -h" == offer
    until = screen.index(offer)
    assert screen[:until] == more[:until]
    if part == "requests":
        assert "--requests: nothing of it was recorded" in more
    else:
        assert len(more) > len(screen) + 2
        assert f"--{part}" not in more[until]


def test_everything_is_all_parts_together(tmp_path: Path) -> None:
    """With the exact names, and once."""
    report = like_the_demo(tmp_path, 2, CLEAN)
    text = "\n".join(shown(report, ("all",)))
    assert text == "\n".join(shown(report, PARTS))
    for name in ("\nstage ", "\nown time ", "\nmean step  ", "\ngoodput ", "\nmemory ", "\nover the steps "):
        assert 1 == text.count(name)


def test_markdown_has_the_same_parts(tmp_path: Path) -> None:
    """In their order, below headings."""
    report = like_the_demo(tmp_path, 2, ILL)
    text = to_markdown(report, ("memory",))
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert [
        "## otel\\_rl: healthy (finished, 3.63 s (set-up 2.00 s))",
        "### Learning",
        "### The step",
        "### Memory",
    ] == heads
    assert "**LEARN** **Reward judge is NaN since step 21" in text


def test_few_numbers_of_the_training_are_on_the_screen(tmp_path: Path) -> None:
    """Many are counted."""
    report = like_the_demo(tmp_path, 1, CLEAN)
    few = [series(f"mine {place}", [1.0, 2.0]) for place in range(2)]
    short = replace(report, series=report.series[:3], numbers=few)
    assert [True, True] == [any(line.startswith(f"mine {place} ") for line in shown(short)) for place in range(2)]
    assert "and 2 more: --all" in shown(replace(report, numbers=few))


def test_a_run_without_reward_shows_its_loss(tmp_path: Path) -> None:
    """Other trainings learn, too."""
    report = like_the_demo(tmp_path, 1, CLEAN)
    losses = [one for one in report.series if one.name == v.LOSS]
    assert any(line.startswith("loss  ") for line in shown(replace(report, series=losses)))
    assert not any(line.startswith("loss  ") for line in shown(report))


def test_asynchronous_training_shows_its_policy_lag(tmp_path: Path) -> None:
    """The lag of other training is 0, which is not shown."""
    report = like_the_demo(tmp_path, 1, CLEAN)
    assert "policy lag" not in "".join(shown(replace(report, series=[series(v.SAMPLE_LAG, [0.0] * 3)])))
    report = replace(report, series=[series(v.SAMPLE_LAG, [0.0, 1.0, 1.5])])
    [row] = [line.split() for line in shown(report) if line.startswith("policy")]
    assert ["policy", "lag", "0", "1.5", "0", "1.5"] == row[:6]


def test_a_number_that_is_not_finite_is_shown(tmp_path: Path) -> None:
    """NaN of the last step stands in `last`; no finding has to name it."""
    report = like_the_demo(tmp_path, 1, CLEAN)
    lost = series(v.LOSS, [1.0] * 10 + [math.nan] * 10)
    line = next(line for line in shown(replace(report, series=[*report.series, lost])) if line.startswith("loss "))
    assert ["loss", "1", "NaN", "1", "1", "▁" * 10 + "·" * 10, "10", "NaN/Inf"] == line.split()


def test_the_rules_of_the_marks_are_those_of_the_tables() -> None:
    """A mark follows what a rule reads."""
    rule: Rule[object] = Rule(
        name="a", severity="note", reads=("x",), condition="", window="", find=lambda _: Found(), sentence=""
    )
    assert {"a": ("x",)} == learning_table.reads_of([rule])


def test_a_large_unnamed_time_has_a_row(tmp_path: Path) -> None:
    """From a tenth of the step."""
    report = like_the_demo(tmp_path, 1, CLEAN)
    stages = [replace(row, share=0.4) if row.stage == v.OTHER else row for row in report.stages]
    lines = shown(replace(report, stages=stages))
    assert any(line.startswith("in no stage  ") for line in lines)


def test_a_long_step_is_on_the_screen(tmp_path: Path) -> None:
    """The other findings leave it out."""
    report = like_the_demo(tmp_path, 1, CLEAN)
    long = found("long_step", "note", "Step 4 is left aside: it took 9.00 s.")
    other = found("answers_often_cut", "note", "Half of the responses are cut.")
    text = "\n".join(shown(replace(report, findings=replace(CLEAN, time=[*CLEAN.time, long, other]))))
    assert ("Step 4 is left" in text, "Half of" in text) == (True, False)


def test_one_rank_has_no_peers(tmp_path: Path) -> None:
    """Nothing was lost."""
    report = build_report(open_run(write_run(tmp_path, Plan(ranks=1))), BEGIN_NS)
    alone = replace(report, comm=[], efficiency=replace(report.efficiency, bubbles=[]))
    assert "--ranks: nothing to compare for one rank" in shown(alone, ("ranks",))


def test_trouble_that_a_finding_says_is_not_said_again(tmp_path: Path) -> None:
    """--all has the lines; without the finding the screen has them."""
    report = build_report(open_run(write_run(tmp_path, Plan(dropped=9))), BEGIN_NS)
    line = "18 spans dropped (journal_full)"
    said = [found("telemetry_lost", "warning", "Lost: 18 spans.")]
    is_shown = [
        [line in shown(replace(report, findings=replace(CLEAN, health=health)), parts) for parts in ((), ("all",))]
        for health in (said, CLEAN.health)
    ]
    assert [[False, True], [True, True]] == is_shown


@pytest.mark.parametrize(("ranks", "lines"), [(1, 0), (2, 2), (6, 4)])
def test_ranks_that_died_are_listed_beside_the_finding(tmp_path: Path, ranks: int, lines: int) -> None:
    """One of them is in its sentence; of many the first ones and how many there are besides."""
    run = open_run(write_run(tmp_path, Plan(ranks=ranks, killed_in=v.BACKWARD)))
    report = build_report(run, BEGIN_NS + 60_000_000_000)
    killed = replace(report, findings=replace(CLEAN, health=[found("killed", "alarm", "Rank 0 was killed.")]))
    text = shown(killed, width=200)
    assert lines == sum("was last seen in" in line or line == "and 3 more lines: --all" for line in text)
    assert ranks == len({line for line in shown(killed, ("all",), 200) if "was last seen in" in line})
