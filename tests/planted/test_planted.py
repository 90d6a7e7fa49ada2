"""Tests that reports name planted problems in the first sentence of a finding, and are quiet about clean trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("trl")

from otel_rl.report.data.finding import Finding
from tests.planted import plants
from tests.planted.cases import Case, Judged, cases, judge, record
from tests.planted.problems import CLEAN, PROBLEMS, Shape

TRAINED = ["lr_high", "leak", "slow_rank"]
"""The others of ``PROBLEMS`` take too long for each change: ``python -m tests.planted.run`` trains them all."""
QUIET = [Shape(trainer="rloo", ranks=2)]


def said(rule: str, sentence: str) -> Finding:
    """A warning of TIME."""
    return Finding(rule=rule, kind="time", severity="warning", sentence=sentence, advice="", values={})


OTHERS = said("slower_since", "Steps take 1.6 times as long since step 31.")
TOKENIZER = said("around_generation", "rl.sample takes 112 ms, of which tokenizing 80 ms.")


def test_every_problem_is_planted_and_named_once() -> None:
    """A problem without a function would train a clean model."""
    names = [problem.name for problem in PROBLEMS]
    assert len(set(names)) == len(names)
    assert all(callable(getattr(plants, name)) for name in names)


def test_clean_trainings_have_folders_of_their_own() -> None:
    """Two with one name would be one run."""
    assert len({case.run_id for case in cases(["clean"])}) == len(CLEAN)


@pytest.mark.parametrize(
    ("name", "is_right", "findings"),
    [
        ("slow_tokenizer", True, [OTHERS, TOKENIZER]),
        ("slow_tokenizer", False, [OTHERS, said("idle", "Waiting holds the run back.")]),
        ("slow_tokenizer", False, [OTHERS]),
        ("slower_middle", True, [OTHERS]),
        ("slow_rank", True, [said("starved_rank", "Rank 1 is slower in almost everything.")]),
        ("slow_rank", False, [said("starved_rank", "Rank 0 is slower in almost everything.")]),
    ],
)
def test_what_another_program_caused_is_left_out(name: str, is_right: bool, findings: list[Finding]) -> None:
    """One that began in the middle of the training makes its steps longer, which TIME says first."""
    (case,) = cases([name])
    assert is_right == Judged(case, findings).is_right


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(TRAINED), ids=TRAINED)
def test_the_first_sentence_names_the_cause(case: Case, tmp_path: Path) -> None:
    """Each is a real training, recorded as a user would."""
    record(case, tmp_path)
    judged = judge(case, tmp_path)
    assert judged.is_right, judged.findings


@pytest.mark.slow
@pytest.mark.parametrize("shape", QUIET, ids=lambda shape: shape.name)
def test_a_clean_training_raises_nothing(shape: Shape, tmp_path: Path) -> None:
    """Neither an alarm nor a warning of LEARN and HEALTH; what TIME says depends on what else the machine does."""
    case = Case(shape.name, shape.seed, shape.ranks, options=shape.options)
    record(case, tmp_path)
    assert [one for one in judge(case, tmp_path).raised if one.kind != "time"] == []
