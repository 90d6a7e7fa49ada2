"""How far a reader has come in the files of a writer, and what it saw there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rl.journal.frame import SIGNALS, Damage, Frame, Signal

if TYPE_CHECKING:
    from otel_rl.journal.files import SegmentFile

MARK_BYTES: Final = 16


@dataclass
class Bookmark:
    """What was read of each file, by its path; what came since can be read on its own."""

    ends: dict[str, int] = field(default_factory=dict)
    """Where the last whole frame that was read ends, in bytes."""
    marks: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Where the last frame with a payload ends, and its last bytes: a file with other bytes there is another one."""
    last_ns: int = 0
    records: dict[Signal, int] = field(default_factory=lambda: {"traces": 0, "metrics": 0, "logs": 0})
    damage: list[Damage] = field(default_factory=list)
    """What is no whole frame, between frames that are."""
    torn: dict[str, list[Damage]] = field(default_factory=dict)
    """The end of a file that is no whole frame, so far: it is read again."""
    undecodable: list[Damage] = field(default_factory=list)
    """Frames whose content is no OTLP."""
    is_written: bool = False
    """Whether the writer lived when a reader began to read: then the end of its newest file is no damage."""

    def frames(self, segment: SegmentFile) -> Iterator[Frame]:
        """Yield the whole frames of a file that were not read yet."""
        name = _name(segment.path)
        begin = self.ends.get(name, 0)
        if begin and segment.size <= begin:
            return
        torn: list[Damage] = []
        for item in segment.items(begin):
            if isinstance(item, Damage):
                torn.append(item)
            else:
                self.damage, torn = self.damage + torn, []
                self.ends[name] = item.end
                if item.payload:
                    self.marks[name] = item.end, item.payload[-MARK_BYTES:]
                if item.type in SIGNALS:
                    self.last_ns = max(self.last_ns, item.last_ns)
                    self.records[SIGNALS[item.type]] += item.count
                yield item
        self.torn[name] = torn

    def all_damage(self, newest: Collection[Path]) -> list[Damage]:
        """Return the damage that is known, by file; ``newest`` are those that the writer may be writing."""
        open_ends = {_name(path) for path in newest} if self.is_written else set()
        torn = []
        for name, listed in self.torn.items():
            is_being_written = name in open_ends and listed and listed[-1].reason != "unreadable"
            torn += listed[:-1] if is_being_written else listed
        return sorted([*self.damage, *torn], key=lambda one: (one.path, one.offset)) + self.undecodable

    def fits(self, segments: Collection[SegmentFile]) -> bool:
        """Return whether all that was read is still there, but for the first segments, which the size cap removes."""
        of_name = {_name(one.path): one for one in segments}
        first = {one.signal: one.number for one in sorted(segments, key=lambda one: -one.number) if one.number >= 0}
        return all(self._is_same(of_name[name]) if name in of_name else _is_before(name, first) for name in self.ends)

    def _is_same(self, segment: SegmentFile) -> bool:
        name = _name(segment.path)
        end, mark = self.marks.get(name, (0, b""))
        try:
            with open(segment.path, "rb") as file:
                file.seek(end - len(mark))
                return file.read(len(mark)) == mark and segment.size >= self.ends[name]
        except OSError:
            return False


def _is_before(name: str, first: Mapping[str, int]) -> bool:
    """Return whether a segment that is gone came before the first one that is there."""
    *_, signal, number, _ = name.split(".")
    return number.isdecimal() and int(number) < first.get(signal, 0)


def _name(path: Path) -> str:
    return str(path.absolute())
