"""A program that closes all descriptors after its set-up, as daemons do, and opens files under their numbers.

Then everything happens that uses what otel_rl had open. At the end it prints what the status page says.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import otel_rl
from otel_rl import entry
from otel_rl.journal.page import ANSWERED, ASKED, SIGNAL, SIZE, STALLED
from otel_rl.process.state import state

WRITTEN = b"weights!" * 8


def work(number: int) -> None:
    """Do a step."""
    with otel_rl.step(number), otel_rl.stage("sample", batch_size=1):
        otel_rl.record("rl.reward.score", number)
    assert otel_rl.flush(60.0)


def main() -> None:
    """Close, open, and go on with everything: stacks, a stall, another name of the run, a fork."""
    otel_rl.instrument()
    work(0)
    flusher: Any = entry._parts.flusher
    page = flusher.dispatcher.page._page
    os.closerange(3, 4096)
    for number in range(40):
        os.write(os.open(f"shard{number}", os.O_CREAT | os.O_RDWR), WRITTEN)
    page.words[ASKED] += 1
    work(1)
    os.kill(os.getpid(), page.words[SIGNAL])
    page.words[STALLED] = 1
    work(2)
    state.inherit(run_id="renamed")
    work(3)
    if os.fork() == 0:
        work(4)
        sys.exit()
    os.wait()
    flusher.dispatcher.page.heartbeat()
    stacks = Path(page.memory).read_bytes()[SIZE:].decode()
    found = page.words[ASKED] == page.words[ANSWERED], "Thread MainThread" in stacks, "(most recent call" in stacks
    print(*found, flush=True)


if __name__ == "__main__":
    main()
