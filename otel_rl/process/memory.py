"""What a part of the package remembers while this process records."""

from __future__ import annotations

from typing import ClassVar, TypeVar

M = TypeVar("M", bound="Memory")


class Memory:
    """Base of all memories: a dataclass whose fields have defaults, with one kept instance in the module of its class.

    Use it for what must survive from one call to the next, instead of module globals:

        @dataclass(eq=False)
        class Comm(Memory):
            groups: dict[int, Group] = field(default_factory=dict)

        comm = Comm.keep("comm")

    Every recording begins with the defaults, and so does a forked child: nothing of the parent's is used twice. The
    object stays the same, so other modules import it by name.
    """

    kept: ClassVar[list[Memory]] = []
    _name: str

    @classmethod
    def keep(cls: type[M], name: str) -> M:
        """Make the instance that the module keeps as ``name``; a pickle (Ray) holds this name, not what is in it."""
        memory = cls()
        memory._name = name
        Memory.kept.append(memory)
        return memory

    def __reduce__(self) -> str:
        return self._name

    def renew(self) -> None:
        """Forget everything: the recording is over."""
        vars(self).update(vars(type(self)()))

    def after_fork_in_child(self) -> None:
        """Forget what belongs to the parent: everything, unless a memory knows better."""
        self.renew()


def renew_all() -> None:
    """Begin every memory anew."""
    for memory in Memory.kept:
        memory.renew()


def after_fork_in_child() -> None:
    """Begin every memory anew in a forked child."""
    for memory in Memory.kept:
        memory.after_fork_in_child()
