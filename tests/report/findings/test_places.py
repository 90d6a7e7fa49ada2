"""Where a finding is seen: its step, since when, rank and stage are fields, equal to what its sentence says."""

from __future__ import annotations

import gzip
import json

import pytest

from otel_rl.report.data.finding import Finding
from otel_rl.report.data.ranks import Rank
from tests.report.findings.synthetic import check_place
from tests.report.test_stored_reports import RUNS, STORED


def stored(name: str) -> list[Finding]:
    document = json.loads(gzip.decompress((STORED / f"{name}.json.gz").read_bytes()))
    rows = [row for of in document["findings"].values() for row in of]
    return [Finding(**{**row, "rank": Rank(**row["rank"]) if row["rank"] else None}) for row in rows]


@pytest.mark.parametrize("name", RUNS)
def test_fields_say_what_the_sentence_says(name: str) -> None:
    """Of all findings of all stored reports; those of learning are checked wherever they are tested."""
    for one in stored(name):
        check_place(one)
        if one.kind == "time" and one.stage and "everything" not in one.sentence:
            assert one.stage in one.sentence


@pytest.mark.parametrize(
    ("name", "rule", "step", "since", "rank", "stage"),
    [
        ("slow_rank_of_8", "slow_stage", None, None, Rank("trainer", 5), "rl.reward"),
        ("nan_loss_and_losses", "nan_at_times", 3, None, None, None),
        ("killed", "killed", 12, None, Rank("trainer", 0), "rl.train.backward"),
        ("going_on", "hanging", 12, None, Rank("trainer", 0), "rl.sample"),
        ("roll_critic_stall", "stood_still", 1, None, Rank("reward-quiz", 0), "rl.reward"),
        ("roll_failed_reward", "failed", 1, None, Rank("reward-quiz", 0), "rl.reward"),
        ("trl_demo", "healthy", None, 6, Rank("trainer", 0), None),
        ("healthy", "largest", None, None, None, None),
    ],
)
def test_a_finding_is_somewhere(
    name: str, rule: str, step: int | None, since: int | None, rank: Rank | None, stage: str | None
) -> None:
    (one,) = [one for one in stored(name) if one.rule == rule]
    assert (one.step, one.since, one.rank, one.stage) == (step, since, rank, stage)
