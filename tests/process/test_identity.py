"""Tests of who a process is."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from otel_rl import vocabulary
from otel_rl.config import LAUNCH, Config
from otel_rl.process import state
from otel_rl.process.identity import (
    Identity,
    folder_name,
    from_launcher,
    identifying,
    is_made_up,
    make_attempt,
    new_launch,
)
from otel_rl.process.memory_limit import memory_limit
from otel_rl.process.state import Runtime


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, -1, 1, True)),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, (0, 0, 4, True)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, (3, 1, 4, False)),
        ({"RANK": "x", "WORLD_SIZE": "-1", "LOCAL_RANK": ""}, (0, -1, 1, True)),
        ({"RANK": "\u0663"}, (0, -1, 1, True)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}, (3, 1, 4, False)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "0", "WORLD_SIZE": "16"}, (0, -1, 16, True)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}, (0, -1, 1, True)),
    ],
)
def test_the_launcher_says_the_rank(environ: dict[str, str], expected: tuple[Any, ...]) -> None:
    """Nonsense counts as unsaid; rank 0 knows its attempt at once."""
    identity = from_launcher(Config(), environ)
    assert expected == (identity.rank, identity.local_rank, identity.world_size, identity.known)
    assert (identity.known, os.getpid()) == (bool(identity.run_id), identity.pid)


def test_what_srun_says_is_not_about_workers_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """They inherit the task that started Ray on their node."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/ray/default_worker.py", raising=False)
    identity = from_launcher(Config(), {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"})
    assert (0, 1) == (identity.rank, identity.world_size)


@pytest.mark.parametrize(
    ("rank", "run_id", "environ", "expected"),
    [
        ("0", "", {}, ("7-0", "7-0")),
        ("3", "mine", {"TORCHELASTIC_RESTART_COUNT": "0"}, ("7-0", "mine")),
        ("3", "mine", {"TORCHELASTIC_RESTART_COUNT": "2"}, ("7-0.2", "mine")),
    ],
)
def test_a_launcher_names_the_attempt(
    rank: str, run_id: str, environ: dict[str, str], expected: tuple[str, str]
) -> None:
    """On every rank; torchrun keeps the name when it starts them anew, and counts."""
    identity = from_launcher(Config(attempt_id="7-0", run_id=run_id), {"RANK": rank, "WORLD_SIZE": "4", **environ})
    assert expected == (identity.attempt_id, identity.run_id)


def test_the_resource_says_what_is_known() -> None:
    """What is not known is left out; 0 is known."""
    identity = Identity(run_id="r", attempt_id="a", rank=0, pid=5, started_ns=6, host="h", extra={"team": "x"})
    assert {
        "team": "x",
        vocabulary.SERVICE_NAME: "rl-trainer",
        vocabulary.SERVICE_INSTANCE_ID: identity.instance_id,
        vocabulary.HOST_NAME: "h",
        vocabulary.PROCESS_PID: 5,
        vocabulary.DISTRO_NAME: "otel_rl",
        vocabulary.DISTRO_VERSION: identity.resource("")[vocabulary.DISTRO_VERSION],
        vocabulary.RUN_ID: "r",
        vocabulary.ATTEMPT_ID: "a",
        vocabulary.ROLE: "trainer",
        vocabulary.RANK: 0,
        vocabulary.WORLD_SIZE: 1,
    } == identity.resource("")


def test_the_resource_says_how_much_memory_the_host_has() -> None:
    """Once for each process, since a reader asks when a leak will have filled it."""
    identity = from_launcher(Config(), {})
    assert memory_limit() == identity.memory_limit == identity.resource("")[vocabulary.MEMORY_LIMIT]


@pytest.mark.parametrize(
    ("system", "asked", "expected"), [("trl", "", "trl-trainer"), ("", "", "rl-trainer"), ("trl", "mine", "mine")]
)
def test_the_service_is_named_after_system_and_role(system: str, asked: str, expected: str) -> None:
    """Unless OTEL_SERVICE_NAME says otherwise."""
    assert expected == Identity(system=system).resource(asked)[vocabulary.SERVICE_NAME]


def test_the_users_resource_attributes_are_kept_but_ours_win() -> None:
    """``service.name`` among them is OTEL_SERVICE_NAME's business."""
    config = Config(resource_attributes=(("team", "x"), ("rl.rank", "9"), ("service.name", "theirs")))
    resource = from_launcher(config, {}).resource(config.service_name)
    assert ("x", 0, "rl-trainer") == (resource["team"], resource[vocabulary.RANK], resource[vocabulary.SERVICE_NAME])


def test_the_instance_tells_processes_ranks_and_attempts_apart() -> None:
    """And stays the same while nothing of it changes."""
    base = Identity(attempt_id="a", pid=1, started_ns=2)
    others = [Identity(attempt_id="b", pid=1, started_ns=2), Identity(attempt_id="a", rank=1, pid=1, started_ns=2)]
    others.append(base.in_child())
    assert 4 == len({identity.instance_id for identity in (base, *others)})
    assert base.instance_id == Identity(attempt_id="a", pid=1, started_ns=2).instance_id


def test_all_starts_of_a_program_below_one_launch_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an attempt of it; other programs, other launches and those who work for others are not meant."""

    def name(program: str, launch: str, **of: Any) -> str:
        monkeypatch.setattr(sys.modules["__main__"], "__file__", program, raising=False)
        monkeypatch.setenv(LAUNCH, launch)
        return make_attempt(Identity(**of)).run_id

    # Workers of pytest-xdist are one program, started several times at once.
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "of_no_other.py", *sys.argv[1:]])
    first, inner = new_launch({}), new_launch({LAUNCH: "outer"})
    assert inner.startswith("outer/")
    names = [name("train.py", first), name("train.py", first), name("sft.py", first), name("train.py", inner)]
    assert (3, names[0]) == (len({*names}), names[1])
    assert [True] * 4 == list(map(is_made_up, names))
    assert first[:15] == names[0][:15]
    assert names[0] not in {name("train.py", first, kind="engine"), name("train.py", first, rank=1)}
    assert "mine" == name("train.py", first, run_id="mine")
    assert not is_made_up("mine")


def test_a_found_attempt_keeps_the_name_that_the_user_gave() -> None:
    """Only where there is none, one is made from date, time and attempt."""
    named, made = make_attempt(Identity(run_id="mine")), make_attempt(Identity())
    assert ("mine", made.attempt_id[:6]) == (named.run_id, made.run_id.rpartition("-")[2])


@pytest.mark.parametrize(
    ("run_id", "expected"),
    [
        ("run-1.a=b@c+d", "run-1.a=b@c+d"),
        ("a/b\\c d", "a_b_c_d-09692e38"),
        ("../../etc", "_.._etc-f470a0ab"),
        ("...", "_-7456c252"),
        ("", "_-1271cf25"),
        ("x" * 300, f"{'x' * 119}-b12499e1"),
        ("训" * 100, f"{'训' * 39}-99ba6f3d"),
        ("läuft", "läuft"),
        ("\ud800\n", "__-ab8c1bc6"),
        ("my run", "my_run-40c4e919"),
        ("my/run", "my_run-416e8727"),
    ],
)
def test_a_run_has_a_folder(run_id: str, expected: str) -> None:
    """Whatever its name, it is one folder below the root, no hidden one, and nobody else's."""
    assert expected == folder_name(run_id)


@pytest.fixture(autouse=True)
def _renewed() -> Iterator[None]:
    """Leave nothing to other tests."""
    yield
    identifying.renew()


def test_a_rank_that_becomes_known_while_the_resource_freezes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flusher's thread freezes and the program's learns, at one moment: neither undoes the other's change."""
    ours = Runtime()
    identifying.renew()
    freezing, learned = threading.Event(), threading.Event()

    def changed(identity: Identity, **changes: Any) -> Identity:
        made = replace(identity, **changes)
        if "coordinates" in changes and "rank" not in changes:
            freezing.set()
            learned.wait(0.1)  # time enough for the other thread, if nothing keeps it off
        return made

    monkeypatch.setattr(state, "replace", changed)
    flusher = threading.Thread(target=ours.freeze)
    flusher.start()
    assert freezing.wait(60)
    ours.identify(rank=3, world_size=8)
    learned.set()
    flusher.join(60)
    assert (3, 8, True) == (ours.identity.rank, ours.identity.world_size, identifying.frozen)


def test_what_becomes_known_counts_until_the_resource_is_frozen() -> None:
    """Empty values say nothing; a new rank or attempt always counts."""
    state = Runtime()
    identifying.renew()
    state.identify(system="trl", model_name="", algorithm=None, rank=0)
    identifying.frozen = True
    state.identify(system="other")
    state.identify(rank=2, world_size=4)
    state.identify(attempt_id="a", run_id="r")
    known = state.identity
    assert ("trl", "", 2, 4, "a", "r") == (
        known.system,
        known.model_name,
        known.rank,
        known.world_size,
        known.attempt_id,
        known.run_id,
    )
