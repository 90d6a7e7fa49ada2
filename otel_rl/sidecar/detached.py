"""The sidecar that a training process started, in a session of its own: see ``start``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from otel_rl.config import ConfigurationError
from otel_rl.runs.cycles import collect_seldom
from otel_rl.sidecar.main import Sidecar, log_to
from otel_rl.sidecar.owner import ROLE
from otel_rl.sidecar.settings import targets

NAME: Final = "otel-rl sidecar"
"""Its name in `top` and `ps -e`: 15 bytes, the most that the kernel keeps."""


def main() -> int:
    """Ship a run; the exit code is that of ``otel-rl sidecar``."""
    directory = Path(sys.argv[2])
    with suppress(OSError):  # no Linux
        Path("/proc/self/comm").write_text(NAME)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # sockets and devices of the trainer must not stay open here
    os.umask(0o077)
    collect_seldom()
    try:
        return Sidecar(directory, targets()).run()
    except (ConfigurationError, ImportError, OSError) as error:  # grpc and requests are imported here
        log_to(directory / f"{ROLE}.log")(f"nothing is sent: {error}")
        return 2
