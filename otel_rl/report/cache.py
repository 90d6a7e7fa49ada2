"""What was read of a run, kept in a file beside it, so that the next report reads only what came since.

The file may be deleted at any time. It is used by the user who wrote it, if the same code reads the same files that
have only grown; else the run is read anew. Reading it makes nothing but values: classes of the rooms that hold them,
numbers, texts and arrays.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import otel_rl
from otel_rl.guard import guard
from otel_rl.journal.files import Journal
from otel_rl.journal.read import Run
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.memory_course import Raise
from otel_rl.report.reading import Points, RunReading
from otel_rl.tables.calls import Calls

NAME: Final = "report.cache"
MAGIC: Final = b"otel_rl report cache\n"
LEAST_BYTES: Final = 16 << 20
LEAST_SHARE: Final = 0.1
"""So much, and this part of all, has to be new before it is worth writing: a second of reading."""
DIGEST_BYTES: Final = 16
ROOMS: Final = ("otel_rl.report.", "otel_rl.tables.", "otel_rl.analysis.")
"""Their classes hold values and do nothing when they are made."""
HOLDERS: Final = frozenset(
    {
        ("otel_rl.journal.views", "SpanView"),
        ("otel_rl.journal.views", "PointView"),
        ("otel_rl.journal.views", "LogView"),
        ("otel_rl.journal.bookmark", "Bookmark"),
        ("otel_rl.journal.frame", "Damage"),
        ("otel_rl.journal.columns.decode", "SpanColumns"),
        ("array", "_array_reconstructor"),
        ("array", "array"),
        ("builtins", "dict"),
        ("builtins", "int"),
        ("builtins", "list"),
        ("builtins", "set"),
        ("collections", "Counter"),
        ("collections", "defaultdict"),
    }
)
SHARED: Final = frozenset({StepRecord, Raise, Calls, Points})
"""What the end of a reading does not change, and what a large run has most of."""
ARRAYS: Final = frozenset({"_frombuffer", "_reconstruct", "dtype", "ndarray", "scalar"})


def load(run: Run) -> RunReading:
    """Return what is known of a run, to read on; nothing, if it was not read by this code, or its files are others."""
    with guard("read the cache of a report"):
        for path in _places(run):
            if body := _body(path):
                return restore(body, run)
    return _attached(RunReading(), run)


def save(run: Run, reading: RunReading) -> None:
    """Keep a reading that is not finished, if enough is new in it; what cannot be written is not kept."""
    size = reading.read_bytes()
    if size - reading.kept_bytes < max(LEAST_BYTES, LEAST_SHARE * size):
        return
    with guard("write the cache of a report"):
        body = dump(reading)
        for path in _places(run):
            if _write(path, body):
                reading.kept_bytes = size
                return


def dump(reading: RunReading) -> bytes:
    """Return a reading that is not finished as bytes. Cost: 30 bytes and 0.2 us a span."""
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(reading)
    return file.getvalue()


def restore(body: bytes, run: Run) -> RunReading:
    """Return the reading of which these are the bytes, to read on, or an empty one if the run is another now.

    Raises:
        pickle.UnpicklingError: the bytes are those of something else.
    """
    reading = _Unpickler(body, run).load()
    return _attached(reading if isinstance(reading, RunReading) and reading.fits(run) else RunReading(), run)


def copied(reading: RunReading, run: Run) -> RunReading:
    """Return a copy that may be finished; what that does not change is shared, so that the reading goes on after it."""
    file, shared = io.BytesIO(), list[Any]()
    _Copier(file, shared).dump(reading)
    return _attached(_Uncopier(file.getvalue(), run, shared).load(), run)


def _attached(reading: RunReading, run: Run) -> RunReading:
    reading.attach(run)
    return reading


def _places(run: Run) -> list[Path]:
    """Return where the file of a run may be: beside it, or where others cannot write, in the user's own directory."""
    path = run.path.absolute()
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    elsewhere = root / "otel_rl" / f"{blake2b(os.fsencode(path), digest_size=DIGEST_BYTES).hexdigest()}.cache"
    return [path / NAME, elsewhere] if path.is_dir() else [elsewhere]


def _body(path: Path) -> bytes:
    """Return what this user's code wrote into a file; nothing if there is none, or it is damaged."""
    try:
        if not path.is_file():  # a pipe of that name would be waited for
            return b""
        with open(path, "rb") as file:
            is_own = os.fstat(file.fileno()).st_uid == os.geteuid()
            head, digest, body = file.read(len(MAGIC) + DIGEST_BYTES), file.read(DIGEST_BYTES), file.read()
    except OSError:
        return b""
    is_whole = head == MAGIC + _code() and digest == blake2b(body, digest_size=DIGEST_BYTES).digest()
    return body if is_own and is_whole else b""


def _write(path: Path, body: bytes) -> bool:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        if path.name != NAME:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(MAGIC + _code() + blake2b(body, digest_size=DIGEST_BYTES).digest())
            file.write(body)
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        return False
    return True


@cache
def _code() -> bytes:
    """Return what tells this code from another: a number may be defined anew without a new version."""
    digest = blake2b(repr(sys.version_info[:2]).encode(), digest_size=DIGEST_BYTES)
    root = Path(otel_rl.__file__).parent
    for room in ("analysis", "journal", "report", "runs", "tables", "vocabulary"):
        for file in sorted((root / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.digest()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> str | None:
        return value.identity.writer if isinstance(value, Journal) else None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, MappingProxyType):
            return _frozen, (dict(value),)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, body: bytes, run: Run) -> None:
        super().__init__(io.BytesIO(body))
        self._journals = {journal.identity.writer: journal for journal in run.journals}

    def persistent_load(self, writer: Any) -> Journal:
        if writer not in self._journals:
            raise pickle.UnpicklingError(f"the files of {writer} are gone")
        return self._journals[writer]

    def find_class(self, module: str, name: str) -> Any:
        is_array = module.startswith("numpy") and name in ARRAYS
        is_known = is_array or (module, name) in HOLDERS or (module, name) == (__name__, _frozen.__name__)
        found = super().find_class(module, name) if is_known or module.startswith(ROOMS) else None
        if is_known or (isinstance(found, type) and found.__module__ == module and "." not in name):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is nothing that a report keeps")


class _Copier(_Pickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shared = shared

    def persistent_id(self, value: Any) -> Any:
        if type(value) in SHARED:
            self._shared.append(value)
            return len(self._shared) - 1
        return super().persistent_id(value)


class _Uncopier(_Unpickler):
    def __init__(self, body: bytes, run: Run, shared: list[Any]) -> None:
        super().__init__(body, run)
        self._shared = shared

    def persistent_load(self, known: Any) -> Any:
        return self._shared[known] if isinstance(known, int) else super().persistent_load(known)


def _frozen(values: dict[str, Any]) -> MappingProxyType[str, Any]:
    return MappingProxyType(values)
