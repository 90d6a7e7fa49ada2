"""Calls between processes: the carrier goes along, is in use at the other end, and the program notices nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from otel_rl import guard
from otel_rl.hooks import Integration, RemoteHook
from otel_rl.hooks.hook import wrap
from otel_rl.process.carrier import Carrier
from otel_rl.testing import check_integration
from tests.fixtures import Recording

CARRIER = Carrier("run", "0123456789abcdef", "driver", "train 7", f"00-{1:032x}-{2:016x}-01")


@dataclass
class Message:
    """What goes from one process to another."""

    value: Any
    headers: dict[str, str] = field(default_factory=dict)


def inject(args: Any, kwargs: Any, carrier: Carrier) -> Any:
    """Put the carrier into a copy of the message."""
    return (Message(args[0].value, carrier.to_headers()), *args[1:]), kwargs


def extract(args: Any, kwargs: Any) -> Carrier | None:
    """Read it there."""
    return Carrier.from_headers(args[0].headers)


SEND = RemoteHook(target="far:send", inject=inject)
RECEIVE = RemoteHook(target="far:receive", extract=extract)


def place(carrier: Carrier | None) -> tuple[str, str] | None:
    """Return the step and the span that a carrier names; its role is this process's."""
    return None if carrier is None else (carrier.step, carrier.traceparent)


def receive(message: Message) -> tuple[Any, Any]:
    """Return what came, and the place that the current carrier names."""
    if message.value is None:
        raise ValueError("host")
    return message.value, place(Carrier.current())


async def receive_later(message: Message) -> tuple[Any, Any]:
    """Do the same in a task, among others."""
    await asyncio.sleep(0)
    return receive(message)


def test_a_carrier_goes_along_and_is_in_use_there(recording: Recording) -> None:
    """During the call only."""
    sent: list[Message] = []
    send = wrap(SEND, sent.append)
    message = Message(5)
    with CARRIER.use():
        send(message)
    assert {} == message.headers
    assert place(CARRIER) == place(Carrier.from_headers(sent[0].headers))
    there = wrap(RECEIVE, receive)
    before = Carrier.current()
    assert (5, place(CARRIER)) == there(sent[0])
    assert before == Carrier.current()


def test_tasks_have_a_carrier_of_their_own(recording: Recording) -> None:
    """Two calls at once in one thread."""
    there = wrap(RECEIVE, receive_later)
    other = Carrier("run", "0123456789abcdef", "driver", "train 8", f"00-{3:032x}-{4:016x}-01")

    async def both() -> list[Any]:
        return await asyncio.gather(*(there(Message(one.step, one.to_headers())) for one in (CARRIER, other)))

    assert [("train 7", place(CARRIER)), ("train 8", place(other))] == asyncio.run(both())


@pytest.mark.parametrize("headers", [{}, {"traceparent": "x"}])
def test_a_call_without_a_carrier_only_passes(recording: Recording, headers: dict[str, str]) -> None:
    """From a process that is not recorded, or with a header that is not ours."""
    assert (5, place(Carrier.current())) == wrap(RECEIVE, receive)(Message(5, headers))


def test_the_exception_is_the_hosts(recording: Recording) -> None:
    """And the carrier is in use no more."""
    before = Carrier.current()
    for function in (wrap(RECEIVE, receive), lambda message: asyncio.run(wrap(RECEIVE, receive_later)(message))):
        with pytest.raises(ValueError, match="host"):
            function(Message(None, CARRIER.to_headers()))
    assert before == Carrier.current()


@pytest.mark.guarded
def test_what_fails_of_ours_is_counted_and_the_call_goes_on(recording: Recording) -> None:
    """With the arguments that it had."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("ours")

    broken = RemoteHook(target="far:call", inject=fail, extract=fail)
    with CARRIER.use():
        assert (5, place(CARRIER)) == wrap(broken, receive)(Message(5))
    assert {"take the carrier of far:call": 1, "send a carrier with far:call": 1} == guard.errors


def test_without_a_recording_nothing_is_sent() -> None:
    """The call passes."""
    sent: list[Message] = []
    message = Message(5)
    with CARRIER.use():
        wrap(SEND, sent.append)(message)
    assert sent[0] is message


def test_it_keeps_the_contract() -> None:
    """With arguments that are no messages, too."""
    hook = RemoteHook(target="json:dumps", inject=inject, extract=extract)
    check_integration(Integration(name="far", package="pytest", supports=">=1", hooks=(hook,)))


@pytest.mark.parametrize("returned", [None, {"one": 1}, ((), {}, CARRIER), ((), None), (5, {})])
def test_a_call_goes_out_as_it_is_if_inject_returns_no_arguments(recording: Recording, returned: Any) -> None:
    """Its error is counted, and what it changed before is of no account."""

    def wrong(args: Any, kwargs: Any, carrier: Carrier) -> Any:
        kwargs["carrier"] = carrier
        return returned

    send = wrap(RemoteHook(target="far:send", inject=wrong), lambda *args, **kwargs: (args, kwargs))
    with CARRIER.use():
        assert ((5,), {"key": 6}) == send(5, key=6)
    assert 1 == guard.errors.pop("send a carrier with far:send")


def test_extract_finds_an_argument_that_was_passed_by_keyword(recording: Recording) -> None:
    """As the functions of every hook do."""
    message = Message(5, CARRIER.to_headers())
    assert (5, place(CARRIER)) == wrap(RECEIVE, receive)(message=message)
