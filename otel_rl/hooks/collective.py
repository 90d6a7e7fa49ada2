"""Hooks on functions that are a collective, or that wait for one which was launched before."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from otel_rl import vocabulary
from otel_rl.comm import buffers
from otel_rl.comm.collectives import Collective
from otel_rl.comm.groups import group_of
from otel_rl.comm.memory import comm
from otel_rl.guard import attempt
from otel_rl.hooks.arguments import Args, Bind, Kwargs, parameters
from otel_rl.hooks.hook import Before, Hook
from otel_rl.probes.memory import probes
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.trace.importlib_bootstrap import not_counted

WAITS = ("wait", "wait_tensor", "wait_tensors")
"""Functions that wait for a collective which was launched before."""
METHOD = "instancemethod"
"""Name of the type of pybind11's methods."""
POINT_TO_POINT = ("send", "recv", "send_object_list", "recv_object_list")
"""They are not collectives of the whole group, so they have no place in its order."""
FUNCTIONAL = "._functional_collectives:"
"""The targets of collectives whose tensors wait when they are used contain this."""
MOST_TENSORS = 1024
"""Tensors of one collective whose bytes are added up."""


@dataclass(frozen=True, kw_only=True)
class CollectiveHook(Hook):
    """A collective, or a function that waits for one: it counts in metrics, and the longest of a stage become spans.

    A collective that another one calls belongs to that one. Cost of a call: 2 us in a loop (``benchmarks/hotpath.py``);
    between matrix products each function that is called costs about as much: here are few.
    """

    position: int = 0
    """Position of this rank's input among the arguments."""
    before: Before | None = None
    """Runs before every call, also where the process is alone."""

    def replacement(self, original: Any, bind: Bind | None) -> Any:
        """Return the function that stands in the place of ``original``."""
        name = self.target.rpartition(":")[2].rpartition(".")[2]
        if name == "wait" and type(original).__name__ == METHOD:
            return wrap_method(self.target, self.before, original)
        return wrap_collective(self, name, original, bind)


@not_counted
def wrap_collective(hook: CollectiveHook, name: str, original: Any, bind: Bind | None) -> Callable[..., Any]:
    """Return the replacement of a function."""
    target, before, call = hook.target, hook.before, _call(hook, name, original)
    begin, end = call.begin, call.end

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if hooking.is_tracing() or hooking.compiler._is_compiling_flag or not state.on:
            return original(*args, **kwargs)
        if before is not None:
            given, named = bind(args, kwargs) if kwargs and bind is not None else (args, kwargs)
            attempt("begin", target, before, given, named)
        inside = hooking.in_collective
        # A trainer of one process calls two dozen collectives a step.
        if state.identity.world_size < 2 or inside.active:
            return original(*args, **kwargs)
        record = attempt("open", target, begin, args, kwargs)
        if record is None:
            return original(*args, **kwargs)
        device = probes.device
        begun = None if device is None else attempt("time", target, device.clock.exposed.begin, record)
        inside.active = True
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            inside.active = False
            buffers.give_up()
            attempt("close", target, record.fail, error)
            raise
        inside.active = False
        if device is not None and begun is not None:
            attempt("time", target, device.clock.exposed.end, begun)
        if record.goes_on or comm.before_making is not None:
            attempt("close", target, end, record, result)
        else:
            record.close()
        return result

    return collective


@not_counted
def wrap_method(target: str, before: Before | None, original: Any) -> Callable[..., Any]:
    """Return the replacement of ``Work.wait``.

    A Python subclass of ``Work`` that inherits the method, or calls it of its base, gets into pybind11's look for an
    overriding one. It ends, and torch's own runs, only where the calling function has the method's name and the object
    as its first argument; else ours would be found and call again, for ever.
    """
    call = _Wait("wait")

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if hooking.is_tracing() or hooking.compiler._is_compiling_flag or not state.on:
            return original(self, *args, **kwargs)
        if before is not None:
            attempt("begin", target, before, (self, *args), kwargs)
        if state.identity.world_size < 2 or hooking.in_collective.active:
            return original(self, *args, **kwargs)
        record = attempt("open", target, call.begin, (self,), kwargs)
        if record is None:
            return original(self, *args, **kwargs)
        device = probes.device
        begun = None if device is None else attempt("time", target, device.clock.exposed.begin, record)
        hooking.in_collective.active = True
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            hooking.in_collective.active = False
            attempt("close", target, record.fail, error)
            raise
        hooking.in_collective.active = False
        if device is not None and begun is not None:  # one that failed has no end: its stage has no sum
            attempt("time", target, device.clock.exposed.end, begun)
        attempt("close", target, record.close)
        return result

    return wait


class _Operation:
    """Where a collective has its input, its group, and whether it waits."""

    def __init__(self, hook: CollectiveHook, operation: str, original: Any) -> None:
        names, position = parameters(original), hook.position
        self.operation = operation
        self.input = position, names[position] if position < len(names) else ""
        self.group = _position(names, "group")
        self.asynchronous = _position(names, "async_op")
        self.has_names = bool(names)
        self.is_counted = operation not in POINT_TO_POINT
        self.is_functional = FUNCTIONAL in hook.target

    def begin(self, args: Args, kwargs: Kwargs) -> Collective | None:
        """Open the record of a call; None where this rank is not in the group."""
        position, name = self.group
        given = args[position] if len(args) > position else kwargs.get(name)
        if given is None:
            if not self.has_names:  # a function of C++ names its arguments nowhere
                given = next((value for value in args if hasattr(value, "group_name")), None)
        elif given.__class__ is int:  # so torch says that this rank is outside, and returns at once
            return None
        known = comm.groups.get(id(given))
        group = known[1] if known is not None else group_of(given)
        position, name = self.input
        value: Any = args[position] if len(args) > position else kwargs.get(name)
        sequence = 0
        if group is not None and self.is_counted:
            sequence = group.sequence = group.sequence + 1
            if sequence == 1 and probes.device is not None:  # most communicators are made by their first collective
                buffers.begin()
        try:
            size = value.nbytes
        except (AttributeError, RuntimeError):  # a list has none, and a sparse tensor refuses to say
            size = None
        if size.__class__ is not int:
            size = input_bytes(value)
        record = Collective(self.operation, size, group, sequence)
        position, name = self.asynchronous
        is_asynchronous = args[position] if len(args) > position else kwargs.get(name)
        if is_asynchronous or self.is_functional:
            record.goes_on = True
        if probes.device is not None:
            record.is_launch = is_on_device(value)
        return record

    def end(self, record: Collective, result: Any) -> None:
        """Close the record; one that was only launched is kept until the program waits for it."""
        if comm.before_making is not None:
            buffers.end()
        if record.goes_on and probes.device is not None:
            probes.device.clock.exposed.launched(record)
        launched: list[Any] = []
        if self.is_functional:
            results = result if type(result) is list else (result,)
            launched = [one.elem for one in results if hasattr(one, "elem")]
        elif hasattr(type(result), "wait"):  # what coalesced collectives give refuses to be asked itself
            launched = [result]
        if not record.goes_on or (self.is_functional and not launched):
            record.close()
            return
        record.forget()
        for waited in launched:
            _remember(waited, record)


class _Making:
    """A call that makes a group, in which the group's ranks wait for each other. Other ranks may make the same call.

    So it counts in no group's order, and its own group is known only once it is made.
    """

    def __init__(self, operation: str) -> None:
        self.operation = operation

    def begin(self, args: Args, kwargs: Kwargs) -> Collective:
        """Open the record of a call."""
        record = Collective(self.operation, 0)
        record.goes_on = True  # so ``end`` is asked, and no device waits for it
        return record

    def end(self, record: Collective, result: Any) -> None:
        """Close the record; a rank outside the group has no group to show."""
        if hasattr(result, "group_name"):
            record.group = group_of(result)
        record.close()


class _Wait:
    """What a wait is for, where the launch was seen."""

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self, args: Args, kwargs: Kwargs) -> Collective:
        """Open the record of a wait for a collective, as far as that is known."""
        waited = args[0] if args else next(iter(kwargs.values()), None)  # its only argument, by its name
        if type(waited) is list:
            waited = waited[0] if waited else None
        if self.name != "wait":  # what a functional collective gave is a wrapper of what was launched
            waited = getattr(waited, "elem", waited)
        _, launched = comm.launched.pop(id(waited), (None, None))
        if launched is None:
            return Collective(self.name, 0, is_wait=True)
        if probes.device is not None:
            probes.device.clock.exposed.awaited(launched)
        size, launched.bytes = launched.bytes, 0  # several tensors of one collective count its bytes once
        record = Collective(launched.operation, size, launched.group, launched.sequence, is_wait=True)
        record.is_launch = launched.is_launch  # its stream waits, and not the host
        return record

    def end(self, record: Collective, result: Any) -> None:
        """Close the record."""
        record.close()


def _call(hook: CollectiveHook, name: str, original: Any) -> _Operation | _Making | _Wait:
    if name in vocabulary.MAKING_A_GROUP:
        return _Making(name)
    return _Wait(name) if name in WAITS else _Operation(hook, name, original)


def _remember(waited: Any, record: Collective) -> None:
    """Keep a launched collective as long as what is to be waited for lives."""
    launched, key = comm.launched, id(waited)
    launched[key] = weakref.ref(waited, lambda _: launched.pop(key, None)), record


def input_bytes(value: Any) -> int:
    """Sum the bytes of a tensor or of a list of them; reads shapes, never data."""
    if isinstance(value, (list, tuple)):
        return sum(map(input_bytes, value[:MOST_TENSORS]))
    try:
        nbytes = getattr(value, "nbytes", 0)
    except RuntimeError:  # a sparse tensor refuses to say
        return 0
    return nbytes if isinstance(nbytes, int) else 0


def is_on_device(value: Any) -> bool:
    """Return whether what a collective sends lies on an accelerator; the first tensor of a list decides."""
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return getattr(value, "is_cpu", True) is False


_NOWHERE = 1 << 30


def _position(names: list[str], name: str) -> tuple[int, str]:
    """Return position and name of a parameter; if there is none, a position that no call reaches."""
    return (names.index(name) if name in names else _NOWHERE), name
