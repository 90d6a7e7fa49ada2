"""Tests of what a report says of exceptions in processes that a driver calls, and of what the driver makes of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report
from tests.made_runs import FakeSpan
from tests.peers import MS, Did, Peer
from tests.watched import DEAD


class Led:
    """A driver, and what it calls in the stage of a step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.driver = Peer(directory, 0, 1, role="driver", identity=DEAD)
        self.driver.step(1, [Did(v.SAMPLE, 500)])
        self.peers: dict[tuple[str, int], Peer] = {}
        self.ids = itertools.count(100)

    def step(self, number: int, stage: str, error: str = "", outcome: str = "") -> FakeSpan:
        """Make a step whose stage fails, and which ends so itself; return the stage."""
        made = self.driver.step(number, [Did("", 10), Did(stage, 500)], is_journaled=False)
        for span in made:
            ended_with = error if span.name == stage else outcome
            if ended_with:
                span.status, span.attributes = (2, ""), {**(span.attributes or {}), v.ERROR_TYPE: ended_with}
        self.driver.write(made[::-1])
        return made[0]

    def call(
        self, who: tuple[str, int], name: str, caller: FakeSpan, ended_ms: int, error: str = "", host: str = ""
    ) -> FakeSpan:
        """Make a stage of a called process, which ends so long after its caller began."""
        peer = self.peer(who, {v.HOST_NAME: host} if host else {})
        ahead_ms = 3_600_000 if host else 0
        begin = caller.start_ns + ahead_ms * MS
        span = FakeSpan(name, caller.trace_id, next(self.ids), caller.span_id, begin + MS, begin + ended_ms * MS)
        if error:
            span.status, span.attributes = (2, ""), {v.ERROR_TYPE: error}
        peer.write([span])
        return span

    def peer(self, who: tuple[str, int], place: dict[str, str] | None = None) -> Peer:
        """Return a called process."""
        if who not in self.peers:
            self.peers[who] = Peer(self.directory, who[1], role=who[0], identity=DEAD, place=place)  # type: ignore[arg-type]
        return self.peers[who]

    def end(self) -> None:
        """Tear the driver down."""
        trace, root = (one(self.driver.attempt, v.TEARDOWN, 0) for one in (ids.trace_id, ids.root_id))
        now = self.driver.now_ns
        names = ((v.TEARDOWN, root, 0), (f"{v.RANK_SPAN} 0", 7, root))
        self.driver.write([FakeSpan(name, trace, own, parent, now, now + MS) for name, own, parent in names])

    def report(self) -> Report:
        return build_report(open_run(self.directory), 10**18)


def told(led: Led) -> tuple[str, dict[str, str]]:
    """Return the state of the run, and what is told of its health, by rule."""
    report = led.report()
    return report.state, {one.rule: one.sentence for one in report.findings.health}


AGENT, ACTORS = ("agent", 0), (("actor", 0), ("actor", 1))


@pytest.mark.parametrize("host", ["", "other"])
@pytest.mark.parametrize("heard", ["RuntimeError", "KeyError", "RayTaskError(KeyError)"])
def test_what_the_driver_raises_in_place_of_an_exception_follows_from_it(tmp_path: Path, heard: str, host: str) -> None:
    """Whatever its type, and whatever the clock of the called process says."""
    led = Led(tmp_path)
    led.call(AGENT, v.REWARD, led.step(2, v.SAMPLE, heard, heard), 400, "KeyError", host)
    sentence = f"Agent 0 failed with KeyError inside rl.reward, step 2; then driver 0 failed ({heard})."
    assert ("failed", {"failed": sentence}) == told(led)


def test_what_a_called_process_caught_is_not_why_the_driver_failed(tmp_path: Path) -> None:
    """Nor what had happened before it was interrupted."""
    led = Led(tmp_path)
    trajectory = led.call(AGENT, v.TRAJECTORY, led.step(2, v.SAMPLE, "ValueError", "ValueError"), 450)
    led.call(AGENT, v.REWARD, trajectory, 400, "KeyError")
    failed = "Driver 0 failed with ValueError inside rl.sample, step 2."
    called = "Agent 0 failed with KeyError inside rl.reward, step 2 (1 failure in all)."
    assert ("failed", {"failed": failed, "call_failed": called}) == told(led)
    led.call(AGENT, v.REWARD, led.step(3, v.SAMPLE, "KeyboardInterrupt", "KeyboardInterrupt"), 400, "KeyError")
    assert {"stopped", "call_failed", "failed_and_went_on"} == set(told(led)[1])


def test_a_call_after_which_the_driver_went_on_calling_is_not_why_it_failed(tmp_path: Path) -> None:
    """What it called at once with it may go on meanwhile."""
    led = Led(tmp_path)
    caller = led.step(2, v.SAMPLE, "ValueError", "ValueError")
    led.call(AGENT, v.TRAJECTORY, caller, 450)
    led.call(AGENT, v.TRAJECTORY, caller, 100, "KeyError")
    assert "Agent 0 failed with KeyError" in told(led)[1]["failed"]
    caller.start_ns += 200 * MS
    led.call(AGENT, v.TRAJECTORY, caller, 100)
    assert "Driver 0 failed with ValueError inside rl.sample, step 2." == told(led)[1]["failed"]


@pytest.mark.parametrize("heard", ["RuntimeError", "DistBackendError", "ValueError"])
def test_of_ranks_that_fail_in_one_call_the_first_is_the_cause(tmp_path: Path, heard: str) -> None:
    """Not the one of which the driver hears: it may have heard in a collective that its peer was gone."""
    led = Led(tmp_path)
    caller = led.step(2, v.TRAIN, f"RayTaskError({heard})", f"RayTaskError({heard})")
    stage = led.call(ACTORS[0], v.TRAIN, caller, 490, heard)
    if heard == "RuntimeError":
        led.call(ACTORS[0], v.COMM, stage, 489, heard)
    led.call(ACTORS[1], v.TRAIN, caller, 300, "KeyError")
    state, found = told(led)
    errors = " and ".join(sorted((heard, f"RayTaskError({heard})")))
    sentence = f"Actor 1 failed with KeyError inside rl.train, step 2; then 2 more failed ({errors})."
    assert ("failed", {"failed": sentence}) == (state, found)


def test_a_call_whose_failure_the_driver_survives_fails_no_run(tmp_path: Path) -> None:
    """Be it of a rank, and in its last step."""
    led = Led(tmp_path)
    led.call(ACTORS[0], v.CHECKPOINT, led.step(2, v.TRAIN, "RayTaskError(OSError)"), 100, "OSError")
    led.call(ACTORS[0], v.TRAIN, led.step(3, v.TRAIN, "RayTaskError(OSError)"), 100, "OSError")
    led.call(ACTORS[1], v.TRAIN, led.step(4, v.TRAIN, "RayTaskError(OSError)"), 100, "OSError")
    led.end()
    sentence = "Actor 1, like 1 more, failed with OSError inside rl.train, step 4 (3 failures in all)."
    assert ("finished", {"call_failed": sentence}) == told(led)


def test_a_rollout_that_runs_ahead_is_the_cause_in_the_step_after_it(tmp_path: Path) -> None:
    """Its driver asks for it then. One of longer ago is another one."""
    led = Led(tmp_path)
    ahead = led.step(2, v.TRAIN)
    ahead.trace_id = 77
    led.call(AGENT, v.TRAJECTORY, ahead, 400, "KeyError")
    led.step(3, v.IDLE, "RayTaskError(KeyError)", "RayTaskError(KeyError)")
    sentence = "Agent 0 failed with KeyError inside rl.sample.trajectory, step 2; then driver 0 failed "
    assert ("failed", {"failed": f"{sentence}(RayTaskError(KeyError))."}) == told(led)
    led.step(4, v.IDLE, "RayTaskError(KeyError)", "RayTaskError(KeyError)")
    assert "Driver 0 failed with RayTaskError(KeyError) inside rl.idle, step 4." == told(led)[1]["failed"]


def test_a_rank_that_was_killed_is_the_cause_of_what_its_driver_hears_of_another(tmp_path: Path) -> None:
    """The other rank sees in a collective that its peer is gone. gloo has no class of its own for that."""
    led = Led(tmp_path)
    caller = led.step(2, v.TRAIN, "RayTaskError(RuntimeError)", "RayTaskError(RuntimeError)")
    stage = led.call(ACTORS[0], v.TRAIN, caller, 490, "RuntimeError")
    led.call(ACTORS[0], v.COMM, stage, 489, "RuntimeError")
    led.peer(ACTORS[1]).open(v.TRAIN)
    sentence = "Actor 1 was killed, last seen in rl.train: it ended without an exception; then 2 more failed"
    assert {"killed": f"{sentence} (RayTaskError(RuntimeError) and RuntimeError)."} == told(led)[1]


def test_a_called_process_that_exits_is_named(tmp_path: Path) -> None:
    """Its driver hears only that it is gone; that another one failed before is no cause of that."""
    for error in ("SystemExit", "KeyError"):
        led = Led(tmp_path / error)
        led.call(AGENT, v.REWARD, led.step(2, v.SAMPLE, "ActorDiedError", "ActorDiedError"), 400, error)
        _, found = told(led)
        if error == "SystemExit":
            ended = "SystemExit ended it inside rl.reward, step 2. Agent 0 raised it."
            assert {"stopped": f"The run was stopped early. {ended}"} == found
        else:
            assert "Driver 0 failed with ActorDiedError inside rl.sample, step 2." == found["failed"]


def test_the_end_of_a_called_process_fails_no_run_whose_driver_ended_well(tmp_path: Path) -> None:
    """As when it hears in its tear-down that others are gone."""
    led = Led(tmp_path)
    led.end()
    assert ("finished", {"healthy"}) == (led.report().state, set(told(led)[1]))
    agent = led.peer(AGENT)
    agent.now_ns = led.driver.now_ns + MS
    trace, error = ids.trace_id(agent.attempt, v.TEARDOWN, 1), {v.ERROR_TYPE: "ConnectionError"}
    for name, own, parent in ((v.TEARDOWN, 8, 0), (f"{v.RANK_SPAN} 0", 9, 8)):
        agent.write([FakeSpan(name, trace, own, parent, agent.now_ns, agent.now_ns + MS, error, status=(2, ""))])
    assert ("finished", {"healthy"}) == (led.report().state, set(told(led)[1]))
