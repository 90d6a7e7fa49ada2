"""Stalls of a real verl, planted one after the other into the training of two steps: each is found while it lasts."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.records import Value
from tests.programs.launch import ROOT
from tests.verl.training import UNDER_OTEL_RL, Trained, train

pytestmark = pytest.mark.verl

FAULTS = "endless_request:10:1,reward_backtracks:18:2,stopped_rank:10:2"
"""What stalls, for how many seconds, and in which step."""
BOUNDS = "600,rl.sample.serve=4,rl.reward=4,rl.train=4"
PLANTED = Path(__file__).parent / "planted"
TELLS = v.STALL_STATE, v.STALL_ROLE, v.STALL_RANK, v.STAGE, v.STALL_STEP, v.STALL_CAUSE


@pytest.fixture(scope="module")
def stalled(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The training with the stalls, 90 s."""
    directory = tmp_path_factory.mktemp("stalled")
    shutil.copytree(inputs, directory / "inputs")
    path = os.pathsep.join(filter(None, (str(ROOT), str(PLANTED), os.environ.get("PYTHONPATH", ""))))
    planted = {"FAULT": FAULTS, "VERL_USE_EXTERNAL_MODULES": "verl_faults", "PYTHONPATH": path}
    return train(directory, under=UNDER_OTEL_RL, OTEL_RL_STALL_AFTER=BOUNDS, **planted)


def told(trained: Trained) -> list[tuple[dict[str, Value], str]]:
    """Return attributes and evidence of what was told of stalls, in order."""
    (run,) = trained.recorded()
    logs = sorted((log for log in run.logs() if log.event_name == v.STALL), key=lambda log: log.time_ns)
    return [(dict(log.attributes), str(log.body)) for log in logs]


def test_the_training_goes_on_as_without(bare: Trained, stalled: Trained) -> None:
    """No metric of verl that is no measurement differs by a bit."""
    assert 0 == stalled.code, stalled.output[-8000:]
    assert bare.metrics() == stalled.metrics()


def test_each_is_found_and_ends(stalled: Trained) -> None:
    """The last link of each, and nothing else."""
    expected: list[tuple[object, ...]] = []
    for link in (
        ("Server", 0, v.SAMPLE_SERVE, 1, "stage"),
        ("reward", 0, v.REWARD, 2, "silent"),
        ("actor", 1, v.TRAIN, 2, "stopped"),
    ):
        expected += [("found", *link), ("ended", *link)]
    assert expected == [tuple(attributes[key] for key in TELLS) for attributes, _ in told(stalled)]


def test_chains(stalled: Trained) -> None:
    """Who waits for whom, without numbers and ids."""
    chains = [str(attributes[v.STALL_CHAIN]) for attributes, _ in told(stalled) if attributes[v.STALL_STATE] == "found"]
    assert [
        [
            "Server 0 holds everybody up: rl.sample.serve (request ID) in step 1, for T (normally T).",
            "Agent loop 0 waits in rl.sample.turn (sample ID, group ID, engine 127.0.0.1:8000) in step 1 for T.",
        ],
        [
            "Reward worker 0 holds everybody up: rl.reward in step 2, for T (normally T).",
            "Agent loop 0 waits in N calls of rl.sample.trajectory in step 2 for T.",
            "The process has given no sign of life for T: something holds its interpreter, or it does not run.",
        ],
        [
            "Actor 1 holds everybody up: rl.train in step 2, for T.",
            "Actor 0 waits in all_gather_object N of default_pg in step 2 for T.",
            "Driver 0 waits in rl.train (actor) in step 2 for T.",
            "The process has been stopped (SIGSTOP) for at most T.",
        ],
    ] == [_plain(chain) for chain in chains]


def _plain(chain: str) -> list[str]:
    """Leave out what differs from run to run; who waits longest differs, too."""
    chain = re.sub(r"[0-9a-f-]{32,}(_\d)?", "ID", chain)
    chain = re.sub(r"\b\d[\d.]* (s|ms|us)\b", "T", chain)
    first, *others = re.split(r"(?<=\.) ", re.sub(r"\b\d+ (calls )?of ", r"N \1of ", chain))
    return [first, *sorted(others)]


def test_evidence_names_the_line(stalled: Trained) -> None:
    """The stacks have what was planted, except of a process that is stopped."""
    found = [body for attributes, body in told(stalled) if attributes[v.STALL_STATE] == "found"]
    planted = [re.search(r'"[^"]*verl_faults.py", line \d+ in (\w+)', body) for body in found]
    assert ["wait_for_engine", "parse_answer", None] == [match and match[1] for match in planted]
