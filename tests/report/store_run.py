"""Store a recorded run for ``test_stored_reports.py``: `python -m tests.report.store_run RUN NAME [PLACE ...]`.

Places, such as the home directory of who recorded it, become others of the same length.
"""

from __future__ import annotations

import io
import re
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_rl.journal.frame import Frame, pack, scan

RUNS: Final = Path(__file__).with_name("stored")


def without(places: Sequence[str], payload: bytes) -> bytes:
    for place in map(str.encode, places):
        payload = payload.replace(place, re.sub(rb"[^/]", b"x", place))
    return payload


def rewritten(places: Sequence[str], data: bytes) -> bytes:
    """Return a segment with the same frames, whose payloads name no such place."""
    frames = [item for item in scan(data) if isinstance(item, Frame)]
    return b"".join(
        pack(item.type, without(places, item.payload), item.count, item.first_ns, item.last_ns) for item in frames
    )


def store(run: Path, name: str, places: Sequence[str]) -> None:
    with tarfile.open(RUNS / f"{name}.tar.xz", "w:xz") as archive:
        for file in sorted(run.iterdir()):
            if file.suffix == ".page":
                continue
            data = file.read_bytes()
            data = rewritten(places, data) if file.suffix == ".otlp" else without(places, data)
            entry = tarfile.TarInfo(file.name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    store(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
