"""The file in which a user changes the rules: what it does, and that what is wrong in it is said and does nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from otel_rl.report.data.rule_settings import KlRange, RuleSettings
from otel_rl.report.findings.curves import Learning, Numbers
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.judge import apply
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.rows.rule_file import RULES, rule_settings
from otel_rl.report.schema import to_json
from otel_rl.runs.settings_file import FILE, LARGEST, VARIABLE
from tests.fixtures import Recording
from tests.report.findings.test_health import REQUESTS, rows_of
from tests.report.test_requests import shown

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"


def settings(folder: Path, text: str) -> RuleSettings:
    """Read a file beside the runs of a folder."""
    (folder / FILE).write_text(text, encoding="utf-8")
    return rule_settings(folder, {})


def test_without_a_file_all_is_as_shipped(tmp_path: Path) -> None:
    """Nothing is said of a file that need not be there."""
    assert RuleSettings() == rule_settings(tmp_path, {})


def test_the_example_of_the_page_works(tmp_path: Path) -> None:
    """Every name in it is right, and each of its lines has an effect."""
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert settings(tmp_path, example) == RuleSettings(
        file=str(tmp_path / FILE),
        off=["low_gpu_use"],
        bounds={"engine_full": {"limit": 0.2}},
        advice={"engine_full": "Ask the platform team for larger engines."},
        kl=KlRange(stalled=0.001, healthy_from=0.005, healthy_to=0.1, aggressive=0.3),
    )


def test_the_variable_names_another_file(tmp_path: Path) -> None:
    """Instead of the one beside the runs; one that is not there is said."""
    (tmp_path / FILE).write_text("[rules.idle]\nenabled = false\n")
    other = tmp_path / "other.toml"
    other.write_text("[rules.slow_data]\nenabled = false\n")
    assert ["slow_data"] == rule_settings(tmp_path, {VARIABLE: str(other)}).off
    other.unlink()
    assert RuleSettings(
        file=str(other), problems=["It cannot be read (No such file or directory): the defaults hold."]
    ) == rule_settings(tmp_path, {VARIABLE: str(other)})


FULL = rows_of(requests=[REQUESTS], preempted={"vllm": 10})


def health(rules: RuleSettings) -> list[Finding]:
    """Judge an engine that preempted a tenth of its requests."""
    return apply(HEALTH, "health", FULL, None, rules)


def test_a_rule_can_be_switched_off_and_changed() -> None:
    """Its bound, its advice, whose braces are no values; and then nothing is wrong."""
    (found,) = health(RuleSettings())
    assert "engine_full" == found.rule
    assert ["healthy"] == [one.rule for one in health(RuleSettings(off=["engine_full"]))]
    assert ["healthy"] == [one.rule for one in health(RuleSettings(bounds={"engine_full": {"limit": 0.2}}))]
    (found,) = health(RuleSettings(advice={"engine_full": "Ask {Ada} [now]."}))
    assert "Ask {Ada} [now]." == found.advice


def test_what_a_rule_silences_stays_silent_without_it() -> None:
    """It found the cause, whether or not anybody wants to hear that."""
    values = {v.REWARD_ZERO_STD: [1.0] * 20, v.GRAD_NORM: [1.0] * 10 + [0.0] * 10}
    learning = Learning(series=[Numbers(name, {}, range(1, 21), of) for name, of in values.items()])
    assert "groups_equal" in {one.rule for one in apply(LEARN, "learn", learning)}
    found = {one.rule for one in apply(LEARN, "learn", learning, None, RuleSettings(off=["groups_equal"]))}
    assert found.isdisjoint({"groups_equal", "gradient_vanished"})


READ, HOLD = "It cannot be read", "the defaults hold."
PROBLEMS = {
    "[rules.divergance]\nenabled = false": "Unknown rule divergance is ignored; did you mean divergence?",
    "[rules.engine_full]\nlimits = 1": "Unknown setting of rules.engine_full limits is ignored; did you mean limit?",
    "[rules.engine_full]\nlimit = 'x'": "rules.engine_full.limit must be a number: the default 0.05 holds.",
    f"[rules.engine_full]\nlimit = 1{'0' * 400}": "rules.engine_full.limit must be a number: the default 0.05 holds.",
    "[rules.engine_full]\nlimit = nan": "rules.engine_full.limit must be a number: the default 0.05 holds.",
    "[rules.engine_full]\nlimit = true": "rules.engine_full.limit must be a number: the default 0.05 holds.",
    "[rules.engine_full]\nenabled = 0": "rules.engine_full.enabled must be true or false: the defaults hold.",
    "[rules.engine_full]\nadvice = 1": "rules.engine_full.advice must be a text: the defaults hold.",
    "rules = 1": "rules must be a table: the defaults hold.",
    "rules.idle = 1": "rules.idle must be a table: the defaults hold.",
    "[kl]\nhealthy = 1": "Unknown setting of kl healthy is ignored; did you mean healthy_to?",
    "[rule.idle]": "Unknown table rule is ignored; did you mean rules?",
    "[rules.idle\nenab": f"{READ} (Expected ']' at the end of a table declaration (at line 1, column 12)): {HOLD}",
    f"#{'x' * LARGEST}": f"{READ} (it is larger than 1 MiB): {HOLD}",
    f"a = {'[' * 100_000}": f"{READ} (maximum recursion depth exceeded): {HOLD}",
}


@pytest.mark.parametrize("text", PROBLEMS, ids=lambda text: text[:24])
def test_what_is_wrong_is_one_sentence_and_changes_nothing(tmp_path: Path, text: str) -> None:
    """The nearest right name is in it."""
    found = settings(tmp_path, text)
    assert RuleSettings(file=found.file, problems=[PROBLEMS[text]]) == found


def test_the_rest_of_a_file_holds(tmp_path: Path) -> None:
    """One wrong name takes no other setting with it; what is no text is no file of settings."""
    found = settings(tmp_path, "[rules.idle]\nlimit = 0.4\nx = 1\n[rules.nothing]\n[rules.slow_tail]\nenabled = false")
    assert ({"idle": {"limit": 0.4}}, ["slow_tail"], 2) == (found.bounds, found.off, len(found.problems))
    (tmp_path / FILE).write_bytes(b"\xff\xfe")
    (problem,) = rule_settings(tmp_path, {}).problems
    assert problem.startswith("It cannot be read ('utf-8' codec can't decode byte 0xff")


def test_a_pipe_is_no_file_of_settings(tmp_path: Path) -> None:
    """Nobody waits until something is written into it."""
    pipe = tmp_path / "rules"
    os.mkfifo(pipe)
    assert RuleSettings(file=str(pipe), problems=["It cannot be read (it is no file): the defaults hold."]) == (
        rule_settings(tmp_path, {VARIABLE: str(pipe)})
    )


def test_bounds_are_numbers_by_name() -> None:
    """Of rules that have some, as many as the page says; a name of a setting is no bound."""
    known = [(rule.name, name, value) for rule in RULES.values() for name, value in rule.bounds.items()]
    assert len(known) > 40
    assert [] == [one for one in known if one[1] in ("enabled", "advice") or not isinstance(one[2], (int, float))]
    page = PAGE.read_text("utf-8")
    assert all(f"`{name} = {value:g}`" in page for _, name, value in known)


def test_a_report_says_what_was_changed(recording: Recording) -> None:
    """A KL beyond the range has its limit beside it; a wrong name is a line, and the document has all of it."""
    for step in range(1, 4):
        with otel_rl.step(step):
            recording.tick(10)
            otel_rl.record(v.KL_REFERENCE, 0.2)
    run = recording.stop()

    def row_and_text() -> tuple[list[str], str]:
        text = shown(build_report(run, recording.clock.ns))
        (row, *_) = [line.strip() for line in text.splitlines() if line.startswith("KL to reference ")]
        return row.split()[-2:] if re.search("[<>]", row) else [], " ".join(text.split())

    row, text = row_and_text()
    assert [">", "0.1"] == row
    assert "KL to reference: usually 0.01 to 0.05 nat; below 0.005 stalled, above 0.1 too fast (defaults)." in text
    (run.path.parent / FILE).write_text("[kl]\naggressive = 0.5\n[rules.idel]\n")
    row, text = row_and_text()
    assert [] == row
    assert "above 0.5 too fast (yours)." in text
    assert "Unknown rule idel is ignored; did you mean idle?" in text
    (run.path.parent / FILE).write_text("[kl]\naggressive = 5\nstalled = 1\n")
    assert ["<", "1"] == row_and_text()[0]
    rules = json.loads(to_json(build_report(run, recording.clock.ns)))["rules"]
    assert (5.0, str(run.path.parent / FILE), []) == (rules["kl"]["aggressive"], rules["file"], rules["problems"])
