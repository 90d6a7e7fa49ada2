"""What a training process starts, see ``start``: it returns at once and goes on behind it.

By hand, from a directory without modules of one's own: ``python -m otel_rl.sidecar DIRECTORY``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from otel_rl.config import ConfigurationError
from otel_rl.sidecar.main import Sidecar, log_to
from otel_rl.sidecar.owner import ROLE
from otel_rl.sidecar.settings import targets


def main() -> int:
    """Ship a run; the exit code is that of ``otel-rl sidecar``."""
    directory = Path(sys.argv[1])
    if os.fork() > 0:
        os._exit(0)  # the sidecar is nobody's child
    os.setsid()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # sockets and devices of the trainer must not live on in here
    os.umask(0o077)
    try:
        return Sidecar(directory, targets()).run()
    except (ConfigurationError, ImportError, OSError) as error:  # grpc and requests are imported here
        log_to(directory / f"{ROLE}.log")(f"nothing is sent: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
