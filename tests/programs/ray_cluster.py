"""A Ray cluster that ran before the job came, and of which otel_rl knows nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.backends import free_ports
from tests.programs.launch import environment
from tests.waiting import wait_for

RAY = "-m", "ray.scripts.scripts"
"""What ``python`` runs as the command ``ray``."""


@contextmanager
def cluster(directory: Path, *, takes_jobs: bool = False) -> Iterator[str]:
    """Start a cluster of one node and give its address, or that at which it takes jobs; kill it at the end."""
    port, dashboard, agent = free_ports(3)
    options = [f"--port={port}", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"]
    options += ["--num-cpus=2", "--node-ip-address=127.0.0.1", f"--include-dashboard={str(takes_jobs).lower()}"]
    output = directory / "head.log"
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # sockets: it must be short
        command = [sys.executable, *RAY, "start", "--head", "--block", f"--temp-dir={folder}", *options]
        environ = environment(directory, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
        with output.open("w") as log:
            head = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        try:
            assert wait_for(lambda: "block forever" in output.read_text()), output.read_text()
            yield f"http://127.0.0.1:{dashboard}" if takes_jobs else f"127.0.0.1:{port}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGKILL)
            head.wait()
