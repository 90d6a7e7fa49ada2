"""End the Ray cluster that ROLL left behind: the processes whose RAY_TMPDIR is the one given, and no others."""

import contextlib
import os
import shutil
import signal
import sys
import time

folder = sys.argv[1]


def ours():
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environ = file.read().split(b"\0")
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    command = file.read()
            except OSError:
                continue
            if f"RAY_TMPDIR={folder}".encode() in environ and b"run.sh" not in command and b"stop_ray" not in command:
                found.append(int(name))
    return found


for number in (signal.SIGTERM, signal.SIGKILL):
    for process in ours():
        with contextlib.suppress(OSError):
            os.kill(process, number)
    for _ in range(30):
        if not ours():
            break
        time.sleep(0.1)
shutil.rmtree(folder, ignore_errors=True)
