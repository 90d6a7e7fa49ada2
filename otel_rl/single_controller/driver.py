"""The driver of a job: its loop, its steps, and the parts of a step that its timers bracket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.hooks import Args, Kwargs, Memory, StageHook
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_stage
from otel_rl.trace.steps import Loop
from otel_rl.trace.tree import open_setup, say_of_setup

DRIVER: Final = "driver"
"""The role, by which readers know it."""
Timers = Mapping[str, tuple[str, tuple[tuple[str, Value], ...]]]
"""Name of a timer to the stage that it brackets, and the attributes of that stage."""
Gets = tuple[Callable[[], str | None], Callable[[BaseException | None], object] | None]
"""What to do before ``ray.get`` (it returns the name of the stage around it, if that is one), and after it."""
JOURNAL_S: Final = 1.0
"""How long a failure waits for the journal, at most."""


@dataclass(eq=False)
class Driver(Memory):
    """The training that this process drives."""

    trainer: Any = None
    """The framework's object whose loop is open."""
    gets: Gets | None = None
    """None: its waits in ``ray.get`` are told by its timers."""


driver = Driver.keep("driver")


def become_driver(system: str, system_version: str, job: Mapping[str, str] | None) -> None:
    """Be the process that holds the steps, before anything of the set-up is recorded.

    Args:
        system: name of the framework.
        system_version: its version.
        job: what is trained, as far as it is known: ``algorithm``, ``model_name``.
    """
    state.identify(system=system, system_version=system_version, **(job or {}))
    state.become_rank()  # an actor of Ray that turns out to hold the steps, and so their roots
    state.identify(role=DRIVER)
    open_setup()


def begin_loop(trainer: Any, output: str, settings: Mapping[str, Value] | None, gets: Gets | None = None) -> None:
    """Begin the training loop of a trainer.

    Args:
        trainer: its object; what its class overrides of hooked methods is hooked.
        output: where it writes: a second loop of equal class and output goes on with the first.
        settings: what a report shows of its configuration, by ``rl.settings.*``.
        gets: what ``GET`` does for it.
    """
    driver.trainer, driver.gets = trainer, gets
    hooking.follow(trainer)
    say_of_setup(dict(settings or {}))
    tracing.loop = Loop(of=(type(trainer), output))


def end_loop(args: Args, kwargs: Kwargs, result: object) -> None:
    """End the loop: its function has returned."""
    driver.trainer = None
    if tracing.loop is not None:
        tracing.loop.end()


def loop_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """End the loop: its function has raised."""
    driver.trainer = None
    if tracing.loop is not None:
        tracing.loop.end(error)


def begin_step(number: int) -> None:
    """Begin a step, which ends the one before."""
    if tracing.loop is not None:
        tracing.loop.begin(number)


def stage_of(timers: Timers, name: str) -> Stage | None:
    """Return the stage that a timer brackets, not yet open; None for a timer that is none."""
    stage, attributes = timers.get(name, ("", ()))
    return Stage(stage, dict(attributes), coarse=True) if stage else None


def say(attributes: Mapping[str, Value]) -> None:
    """Set attributes of the open stage."""
    stage = current_stage()
    if stage is not None:
        for key, value in attributes.items():
            stage.set_attribute(key, value)


def journal_now() -> None:
    """Wait until what was recorded is journaled: the program is about to leave without its exit handlers."""
    written = Event()
    state.journal(written.set)
    written.wait(JOURNAL_S)


def _get_begins(args: Args, kwargs: Kwargs) -> str | None:
    return driver.gets[0]() if driver.gets is not None else None


def _got(args: Args, kwargs: Kwargs, outcome: object) -> None:
    if driver.gets is not None and driver.gets[1] is not None:
        driver.gets[1](outcome if isinstance(outcome, BaseException) else None)


GET: Final = StageHook(
    target="ray:get",
    stage=_get_begins,
    attributes=((vocabulary.IDLE_REASON, "workers"),),
    after=_got,
    failed=_got,
    during=(driver, "trainer"),
)
"""The wait of a driver for results; all integrations have the same hook, so that none takes the place of another."""
