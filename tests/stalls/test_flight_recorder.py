"""Tests of reading torch's flight recorder, with a real dump of gloo and a thread in place of NCCL's that listens."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from otel_rl.stalls.flight_recorder import lines, recorded

ENTRY: dict[str, Any] = {
    "record_id": 2, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 215, "p2p_seq_id": 0,
    "op_id": 3, "profiling_name": "nccl:all_reduce", "time_created_ns": 1, "input_sizes": [[3]],
    "input_dtypes": ["Float"], "output_sizes": [[3]], "output_dtypes": ["Float"], "state": "started",
    "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False, "is_p2p": False,
}  # fmt: skip
"""As torch 2.15 writes it, without frames."""
EXPECTED = ["nccl:all_reduce 215 of default_pg: started, sizes [[3]]"]


def dump(*entries: dict[str, Any]) -> bytes:
    """Write a dump."""
    return pickle.dumps({"version": "2.10", "entries": list(entries), "pg_status": {}, "pg_config": {}})


def test_only_what_has_not_ended_is_shown() -> None:
    """And of that the last ten."""
    ended = [{**ENTRY, "state": "completed"}, {**ENTRY, "retired": True}]
    numbered = [{**ENTRY, "collective_seq_id": number} for number in range(20)]
    shown = [f"nccl:all_reduce {number} of default_pg: started, sizes [[3]]" for number in range(10, 20)]
    assert (EXPECTED, shown) == (list(lines(dump(*ended, ENTRY))), list(lines(dump(*numbered))))


def test_a_dump_runs_no_code() -> None:
    """Whoever wrote it."""
    with pytest.raises(pickle.UnpicklingError):
        list(lines(pickle.dumps({"entries": [os.system]})))


def test_torch_is_asked_by_its_pipe(tmp_path: Path) -> None:
    """It dumps when something is written."""
    pipe, file = tmp_path / "pipe_1.pipe", tmp_path / "dump_1"
    os.mkfifo(pipe)
    listened = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def listen() -> None:
        select.select([listened], [], [])
        file.write_bytes(dump(ENTRY))

    environ = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_"),
    }
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE) as process:
        thread = threading.Thread(target=listen)
        thread.start()
        while not os.path.exists(f"/proc/{process.pid}/environ"):
            pass
        found = [recorded(process.pid, 1, 0.0), recorded(process.pid, 2, 0.0)]
        thread.join()
        process.kill()
    os.close(listened)
    assert found == [EXPECTED, []]
