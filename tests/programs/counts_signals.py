"""A trainer that says which signals it gets, until SIGQUIT; then how often it got each."""

import os
import signal
import sys
import time
from collections import Counter
from types import FrameType

got: Counter[str] = Counter()


def note(number: int, frame: FrameType | None) -> None:
    """Say it at once: print is not reentrant."""
    name = signal.Signals(number).name
    got[name] += 1
    os.write(1, f"got {name}\n".encode())
    if number == signal.SIGQUIT:
        os.write(1, f"counted {dict(sorted(got.items()))}\n".encode())
        sys.exit(7)


for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "CONT"):
    signal.signal(getattr(signal, f"SIG{name}"), note)
os.write(1, b"ready\n")
while True:
    time.sleep(60)
