"""The layer on Ray: real programs on Ray, and what goes along with a call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.entry import _parts
from otel_rl.hooks import StageHook
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.ray import announce, calling, missing, serving
from otel_rl.integrations.ray.calling import KEYWORD, OURS, TASK
from otel_rl.integrations.ray.hooks import INTEGRATION
from otel_rl.process.carrier import Carrier
from otel_rl.process.hooked import hooking
from otel_rl.process.identity import identifying
from otel_rl.process.state import state
from tests.fixtures import Recording
from tests.programs.launch import HERE, own_lines, run
from tests.programs.recorded import Node, Recorded

PROGRAM = str(HERE / "ray_job.py")
STEPS, SAMPLES = 3, 4
WHOLE = [
    "rollout",
    *["rl.sample"] * SAMPLES,
    "score",
    *["rl.reward"] * SAMPLES,
    "learn",
    *["rl.train", "forward"] * 2,
]


def number_of(root: Node) -> int:
    """Read the number of a step."""
    return int(root.attributes[v.ITERATION])


def recorded(directory: Path, *arguments: str) -> Recorded:
    """Run a job and read what it recorded: one run and attempt, every parent is there."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    output = run(directory, PROGRAM, *arguments, OTEL_RL_SIDECAR="false", PYTHONWARNINGS="ignore")
    assert [] == own_lines(output)
    found = Recorded(directory / "runs")
    assert ([], [], {}) == (found.orphans, found.run.damage, found.errors())
    assert [1, 1] == [len({node.span.resource[key] for node in found.nodes}) for key in (v.RUN_ID, v.ATTEMPT_ID)]
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """What one job recorded, of whose processes only the driver was told to record."""
    return recorded(tmp_path_factory.mktemp("ray"), "--instrument")


@pytest.mark.slow
def test_a_job_on_ray_is_one_run(found: Recorded) -> None:
    """And each step is one trace."""
    loops = [root for root in found.roots if root.name == v.LOOP]
    assert list(range(STEPS + 1)) == sorted(map(number_of, loops))
    assert Counter({v.LOOP: STEPS + 1, v.SETUP: 1, v.TEARDOWN: 1}) == Counter(root.name for root in found.roots)
    steps = {root.span.trace_id: number_of(root) for root in loops}
    of_steps = [node for node in found.nodes if "rl.step" in node.attributes]
    assert [] == [node.name for node in of_steps if steps[node.span.trace_id] != node.attributes["rl.step"]]


@pytest.mark.slow
def test_actors_and_tasks_record_below_the_driver(found: Recorded) -> None:
    """What they do is below the stage that called them."""
    for root in sorted((one for one in found.roots if one.name == v.LOOP), key=number_of)[:STEPS]:
        (container,) = root.children
        assert WHOLE == [name.strip() for name in container.outline()]
        pids = {node.name: node.span.resource[v.PROCESS_PID] for node in container.walk()}
        assert 4 == len({pids[name] for name in ("learn", v.SAMPLE, v.REWARD, v.TRAIN)})
    (setup,) = (root for root in found.roots if root.name == v.SETUP)
    assert 3 == len(setup.find("load")), "also that of an actor that is made between two steps"


@pytest.mark.slow
def test_a_killed_actor_loses_no_call_that_has_returned(found: Recorded) -> None:
    """Neither one whose calls are threads, nor one whose calls are tasks."""
    (last,) = (root for root in found.roots if root.name == v.LOOP and number_of(root) == STEPS)
    assert ["rl.sample", "rl.train", "forward"] == [name.strip() for name in last.children[0].outline()]


@pytest.mark.slow
def test_an_actor_that_holds_the_steps_is_killed_with_its_last_one_complete(tmp_path: Path) -> None:
    """The program only waits for it, and records nothing itself."""
    found = recorded(tmp_path, "--instrument", "--runner")
    loops = sorted((one for one in found.roots if one.name == v.LOOP), key=number_of)
    assert list(range(STEPS)) == [number_of(root) for root in loops]
    assert [WHOLE] * STEPS == [[name.strip() for name in root.children[0].outline()] for root in loops]
    assert {"Runner"} == {root.span.resource[v.ROLE] for root in loops}


@pytest.mark.slow
def test_an_actor_says_who_it_is(found: Recorded) -> None:
    """Its class is its role; its number that of its name, else the one that its creator counted."""
    known = {
        (node.span.resource[v.ROLE], node.span.resource[v.RANK], node.span.resource.get(v.ACTOR_NAME))
        for node in found.nodes
        if v.ACTOR_ID in node.span.resource
    }
    trainers = {("Trainer", 0, None), ("Trainer", 7, "trainer_7:0"), ("Trainer", 2, None)}
    assert {*trainers, ("Generator", 0, None), ("Generator", 1, None)} == known
    roles = {node.name: node.span.resource[v.ROLE] for node in found.nodes if v.ACTOR_ID not in node.span.resource}
    assert ("trainer", "worker") == (roles["learn"], roles[v.REWARD])


@pytest.mark.slow
def test_an_actor_that_records_nothing_leaves_no_journal(found: Recorded) -> None:
    """However often it is called."""
    journals = {path.name.partition("-")[0] for path in found.run.path.iterdir()}
    assert {"trainer", "Trainer", "Generator", "worker"} == journals


@pytest.mark.parametrize(("name", "number", "rank"), [("", 2, 2), ("a_1:4", 2, 1), ("a", 0, 0), ("a", None, 0)])
def test_an_actor_that_holds_steps_emits_their_roots(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, name: str, number: int | None, rank: int
) -> None:
    """Whatever its number. Only the first of its class, or one without a number elsewhere, holds those of the job."""
    ray = pytest.importorskip("ray")
    context = SimpleNamespace(get_actor_name=lambda: name, get_actor_id=lambda: "f00")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    state.inherit(kind="worker", role="worker", rank=0)
    serving.know_actor(type("Runner", (), {}), number)
    identity = state.identity
    assert ("Runner", rank, "f00") == (identity.role, identity.rank, identity.extra[v.ACTOR_ID])
    assert not identity.emits_root
    state.become_rank()
    assert ("Runner", 0, True) == (state.identity.role, state.identity.rank, state.identity.emits_root)
    assert (number == 0) == ("rank" in identifying.learned)


def test_an_actor_that_may_exist_is_counted_once(recording: Recording) -> None:
    """Ray asks for it first, and calls itself again where there is none."""
    kind = SimpleNamespace(__ray_metadata__=SimpleNamespace(class_name="Store"))
    numbers = []
    for _ in range(2):
        calling.count_actor((kind,), {"get_if_exists": True})
        calling.count_actor((kind,), {"get_if_exists": False})
        numbers.append(calling.calling.creating.number)
        calling.counted((kind,), {}, None)
    assert [0, 1] == numbers


# --- what goes along --------------------------------------------------------------------------------------------------


class Parameter:
    """Stands for one of a signature."""

    def __init__(self, name: str) -> None:
        self.name = name


OPEN = [Parameter("x"), Parameter(KEYWORD)]


def test_what_is_sent_are_plain_values(recording: Recording) -> None:
    """A process without otel_rl can read them; what Ray's own tracing says stays."""
    state.identify(system="verl")
    with otel_rl.step(7):
        carrier = Carrier.current()
        theirs = {KEYWORD: {"traceparent": "theirs"}}
        (_, args, kwargs), _ = calling.send((OPEN, [1], theirs), {}, carrier)
    said = json.loads(json.dumps(kwargs[KEYWORD][OURS]))
    assert ([1], "theirs", "verl", None) == (args, kwargs[KEYWORD]["traceparent"], said["system"], said["number"])
    assert carrier == Carrier(**said["carrier"]) == serving._called((), {KEYWORD: kwargs[KEYWORD]})
    assert {"traceparent": "theirs"} == theirs[KEYWORD]


def test_a_decorated_method_takes_the_keyword_that_ray_gives_it() -> None:
    """Ray reads the parameters of what a decorator wraps; a generator and a static method do not take it."""
    ray = pytest.importorskip("ray")

    def decorated(method: Any) -> Any:
        @functools.wraps(method)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return inner

    class Actor:
        @decorated
        def closed(self, x: int) -> int:
            return x

        @decorated
        def open(self, x: int, **more: int) -> int:
            return x

        def items(self) -> Any:
            yield 1

        @staticmethod
        def alone(x: int) -> int:
            return x

    methods = ray.remote(Actor).__ray_metadata__.method_meta
    methods.methods["open"] = wrap(StageHook(target="ray:Actor.open", stage="rl.reward"), methods.methods["open"])
    calling.complete_signatures((), {}, methods)
    calling.complete_signatures((), {}, methods)
    names = {name: [one.name for one in methods.signatures[name]] for name in ("closed", "open", "items", "alone")}
    expected = {"closed": ["x", KEYWORD], "open": ["x", KEYWORD, "more"], "items": [], "alone": ["x"]}
    assert expected == names


def test_nothing_is_sent_where_nobody_takes_it(recording: Recording) -> None:
    """Static methods and generators have no place for it; outside of steps there is no carrier."""
    with otel_rl.step(7):
        for arguments in (([Parameter("x")], [1], {}), ([], [], {})):
            assert (arguments, {}) == calling.send(arguments, {}, Carrier.current())
    assert (((OPEN, [1], {})), {}) == calling.send((OPEN, [1], {}), {}, None)


def test_a_task_takes_the_carrier_out_again() -> None:
    """Its signature has a place for it before its own ``**options``."""

    def plain(x: int, *more: int, flag: bool = False, **options: int) -> Any:
        return x, more, flag, options

    task = calling.taking(plain)
    assert ["x", "more", "flag", TASK, "options"] == list(inspect.signature(task).parameters)
    assert (1, (2,), True, {"y": 3}) == task(1, 2, flag=True, y=3) == task(1, 2, flag=True, y=3, _otel_rl={})


@pytest.mark.medium
@pytest.mark.parametrize(
    ("autoload", "why"),
    [("/nowhere", "there is no /nowhere on this node"), ("/", f"{sys.executable} of this node has no otel_rl")],
)
def test_where_otel_rl_is_missing_a_task_runs_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autoload: str, why: str
) -> None:
    """And so does what goes along with the creation of an actor. Another node may have only Ray."""
    cloudpickle = pytest.importorskip("cloudpickle")
    for module in (calling, missing):
        monkeypatch.setattr(module, "AUTOLOAD", autoload)

    def double(x: int) -> int:
        return 2 * x

    double.__module__ = "__main__"
    (tmp_path / "sent").write_bytes(cloudpickle.dumps((missing.Missing(), calling.taking(double))))
    code = """
import importlib.util, pickle, sys
importlib.util.find_spec = lambda name: None
said, task = pickle.load(open("sent", "rb"))
print(said, task(4, _otel_rl={}), task(5, _otel_rl={}))
"""
    line = f"otel_rl: what runs here is not recorded: {why}\n"
    assert f"{line}{line}None 8 10\n" == run(tmp_path, "-c", code)


@pytest.mark.guarded
@pytest.mark.parametrize("target", [hook.target for hook in INTEGRATION.hooks if hook.target != "ray:init"])
def test_a_private_name_that_is_gone_is_said_in_one_line(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    """The others are hooked."""
    pytest.importorskip("ray")
    module, _, path = target.partition(":")
    owner, _, name = path.rpartition(".")
    monkeypatch.delattr(attrgetter(owner)(import_module(module)) if owner else import_module(module), name)
    otel_rl.uninstrument()
    otel_rl.instrument(["ray"])
    lines = [record.getMessage() for record in caplog.records]
    otel_rl.uninstrument()
    assert [name] == [name for line in lines if name in line and "\n" not in line] and 1 == len(lines)


# --- the job ----------------------------------------------------------------------------------------------------------


def test_the_job_is_told_whose_run_it_is(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what the program says, and without secrets."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "key=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@collector")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "owner=me@example.com")
    monkeypatch.setenv("OTEL_RL_PROCESS_KIND", "driver")
    asked = {"env_vars": {"A": "1", "PYTHONPATH": "theirs"}, "pip": ["x"]}
    _, kwargs = announce.announce((), {"runtime_env": asked, "num_cpus": 2}, None)
    variables = kwargs["runtime_env"]["env_vars"]
    assert (["x"], 2, "1") == (kwargs["runtime_env"]["pip"], kwargs["num_cpus"], variables["A"])
    assert state.identity.attempt_id == variables["OTEL_RL_ATTEMPT_ID"]
    assert variables["PYTHONPATH"].endswith("autoload:theirs")
    assert "secret" not in str(kwargs)
    assert "owner=me@example.com" == variables["OTEL_RESOURCE_ATTRIBUTES"]
    assert "OTEL_RL_PROCESS_KIND" not in variables
    assert {"A": "1", "PYTHONPATH": "theirs"} == asked["env_vars"]


def test_what_a_job_was_submitted_with_is_changed_there(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses to start if ``init`` says it again."""
    theirs = {"OTEL_RL_DIR": "runs", "PYTHONPATH": "/code", "A": "1"}
    monkeypatch.setenv(announce.JOB, json.dumps({"runtime_env": {"pip": ["x"], "env_vars": theirs}, "metadata": {}}))
    for _ in range(2):
        _, kwargs = announce.announce((), {}, None)
        assert {"OTEL_RL_RUN_ID", "OTEL_RL_ATTEMPT_ID"} == kwargs["runtime_env"]["env_vars"].keys()
        ours = {"OTEL_RL_DIR": str(state.config.directory), "PYTHONPATH": f"{missing.AUTOLOAD}:/code", "A": "1"}
        expected = {"runtime_env": {"pip": ["x"], "env_vars": ours}, "metadata": {}}
        assert expected == json.loads(os.environ[announce.JOB])


# --- calls ------------------------------------------------------------------------------------------------------------


class Server:
    """A class that becomes an actor's."""

    def __init__(self, size: int) -> None:
        self.size = size

    def load(self, weights: list[int]) -> int:
        """Take weights."""
        return len(weights) + self.size

    async def generate(self, prompt: int, *, extra: int = 0) -> int:
        """Answer."""
        return prompt + extra

    def __call__(self, value: int) -> int:
        """Be a method of Python's."""
        return value


def replaced(original: Any) -> Any:
    """Return a function that has the signature of another one, and takes only what its author knew of."""
    if inspect.iscoroutinefunction(original):

        async def call(self: Any, value: Any, *, extra: int = 0) -> Any:
            return await original(self, value, extra=extra)

    else:

        def call(self: Any, value: Any) -> Any:
            return original(self, value)

    return functools.wraps(original)(call)


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_method_gets_what_it_would_get_without_us(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, is_on: bool, is_replaced: bool
) -> None:
    """Whoever has put it there: what replaces a method of Ray's has the signature that Ray made, not its keyword."""
    tracing = pytest.importorskip("ray.util.tracing.tracing_helper")
    monkeypatch.setattr(serving, "know_actor", lambda kind, number: None)
    monkeypatch.setattr(state, "journal", lambda then: then())
    kind = type("Actor", (Server,), dict(vars(Server)))
    tracing._inject_tracing_into_class(kind)
    names = "__init__", "load", "generate", "__call__"
    made = [replaced(getattr(kind, name)) if is_replaced else getattr(kind, name) for name in names]
    assert [KEYWORD] * 4 == [list(inspect.signature(one).parameters)[-1] for one in made]
    init, load, generate, call = (serving.serving(name, one) for name, one in zip(names, made, strict=True))
    monkeypatch.setattr(calling.calling.creating, "number", 0)
    (_, _, sent), _ = calling.send((OPEN, [], {}), {}, None)
    if not is_on:
        otel_rl.uninstrument()
    actor = kind.__new__(kind)
    init(actor, 1, **sent)
    assert (4, 9) == (load(actor, [1, 2, 3], **sent), asyncio.run(generate(actor, 4, extra=5, **sent)))
    assert 5 == call(actor, 5, **sent)


def test_a_constructor_that_is_a_coroutine_is_awaited(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray awaits it, for an actor with coroutines."""
    monkeypatch.setattr(serving, "know_actor", lambda kind, number: None)
    monkeypatch.setattr(state, "journal", lambda then: then())
    seen = []

    async def init(self: object, size: int) -> None:
        await asyncio.sleep(0)
        seen.append(size)

    served = serving.serving("__init__", init)
    assert inspect.iscoroutinefunction(served)
    monkeypatch.setattr(calling.calling.creating, "number", 0)
    (_, _, sent), _ = calling.send((OPEN, [], {}), {}, None)
    asyncio.run(served(object(), 1, **sent))
    assert [1] == seen


def test_what_tracing_of_rays_own_says_goes_on(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what we added to it."""
    monkeypatch.setattr(state, "journal", lambda then: then())
    theirs = {"traceparent": "theirs"}

    def method(*args: int, **kwargs: Any) -> Any:
        return args, kwargs

    serve = serving.serving("method", method)
    monkeypatch.setattr(calling.calling.creating, "number", 0)
    (_, _, sent), _ = calling.send((OPEN, [], {KEYWORD: theirs}), {}, None)
    assert ((1,), {"x": 2, KEYWORD: theirs}) == serve(1, x=2, **sent)
    assert ((), {KEYWORD: theirs}) == serve(**{KEYWORD: theirs})
    assert ((), {KEYWORD: None}) == serve(**{KEYWORD: None})


def test_a_loop_goes_on_while_a_call_is_journaled(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flusher answers when another task has run."""
    seen: list[str] = []
    answers: list[Any] = []
    monkeypatch.setattr(state, "journal", answers.append)

    async def method() -> int:
        with otel_rl.stage("sample"):
            return 5

    async def other() -> None:
        await asyncio.sleep(0)
        seen.append("other")
        answers[0]()

    async def both() -> list[Any]:
        return await asyncio.gather(serving.journaled(method)(), other())

    assert [5, None] == asyncio.run(both())
    assert ["other"] == seen


def test_a_call_that_recorded_nothing_waits_for_nothing(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that follows another at once asks, but does not wait."""
    asked: list[Any] = []

    def journal(then: Any) -> None:
        asked.append(then)
        state.queue.clear()
        if len(asked) == 1:
            then()

    with otel_rl.stage("sample"):
        pass
    monkeypatch.setattr(state, "journal", journal)
    monkeypatch.setattr(serving, "GAP_NS", 10**12)
    for _ in range(2):
        assert 5 == serving.journaled(lambda: 5)()
    assert 1 == len(asked)

    def record() -> int:
        with otel_rl.stage("sample"):
            return 6

    assert 6 == serving.journaled(record)()
    assert 2 == len(asked)


# --- classes that arrive by value -------------------------------------------------------------------------------------


def test_a_class_that_arrives_is_hooked_by_its_name(recording: Recording) -> None:
    """Or by that of a base; the base stays, and all is undone."""

    class Base:
        def work(self, x: int) -> int:
            return x + 1

    class Actor(Base):
        def inner(self) -> int:
            return 3

    originals = Base.work, Actor.inner
    for target, stage in (
        ("Base.work", "rl.train"),
        ("Actor.inner", "rl.reward"),
        ("Actor.gone", "x"),
        ("Z.work", "x"),
    ):
        _parts.patches.expect(StageHook(target=target, stage=stage))
    for _ in range(2):
        hooking.arrived(Actor)
    with otel_rl.step(1):
        assert (2, 3) == (Actor().work(1), Actor().inner())
        assert 2 == Base().work(1)
    spans = recording.stop().spans()
    assert {"rl.train": 1, "rl.reward": 1} == Counter(span.name for span in spans if span.name in (v.TRAIN, v.REWARD))
    assert (originals[0], originals[1], False) == (Base.work, Actor.inner, "work" in vars(Actor))
