"""The end of torch's flight recorder: the collectives of a rank that have not ended, as the backend sees them.

torch writes the dump itself, on a thread of its own in C++, when something is written to a pipe that it listens to
(``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``), or when a collective timed out. Nothing is called in the process.
"""

from __future__ import annotations

import io
import os
import pickle
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

PIPE: Final = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_FILE: Final = "/tmp/nccl_trace_rank_"
WAIT_S: Final = 5.0
MOST_BYTES: Final = 256 << 20
MOST_ENTRIES: Final = 10


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dicts only: a dump is a file that anybody may have written."""

    def find_class(self, module: str, name: str, /) -> Any:
        raise pickle.UnpicklingError(f"a dump holds no {module}.{name}")


def recorded(pid: int, rank: int, since_s: float) -> list[str]:
    """Return the last collectives of a rank that have not ended, as lines; nothing without a recorder.

    Args:
        pid: of the process; its environment says where its recorder is.
        rank: in the world; the names of pipe and dump end with it.
        since_s: an older dump is none of this stall, s since 1970.
    """
    with suppress(OSError, ValueError, pickle.UnpicklingError, EOFError):
        environ = _environ(pid)
        dump = Path(f"{next((environ[name] for name in FILES if environ.get(name)), DEFAULT_FILE)}{rank}")
        if environ.get(PIPE):
            _ask(Path(f"{environ[PIPE]}{rank}.pipe"), dump)
        if dump.stat().st_mtime >= since_s and dump.stat().st_size <= MOST_BYTES:
            return list(lines(dump.read_bytes()))
    return []


def lines(data: bytes) -> Iterator[str]:
    """Yield a line for each of the last collectives of a dump that have not ended.

    Raises:
        UnpicklingError: it is no dump.
    """
    dump = _Plain(io.BytesIO(data)).load()
    entries = [one for one in dump.get("entries", ()) if not one.get("retired") and one.get("state") != "completed"]
    for one in entries[-MOST_ENTRIES:]:
        _, group = one["process_group"]
        number = one["p2p_seq_id"] if one.get("is_p2p") else one["collective_seq_id"]
        yield f"{one['profiling_name']} {number} of {group}: {one['state']}, sizes {one['input_sizes']}"


def _ask(pipe: Path, dump: Path) -> None:
    """Ask for a dump, and wait until it is there."""
    if not stat.S_ISFIFO(pipe.stat().st_mode):
        return
    before = dump.stat().st_mtime if dump.exists() else 0.0
    descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"1\n")
    finally:
        os.close(descriptor)
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and not (dump.exists() and dump.stat().st_mtime > before):
        time.sleep(0.1)


def _environ(pid: int) -> Mapping[str, str]:
    """Return the environment that a process was started with."""
    items = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    return dict(item.split("=", 1) for item in items if "=" in item)
