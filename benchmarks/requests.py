"""What finished requests cost: otel_rl, the stock SDK and rl-insight 0.3.0 side by side.

python benchmarks/requests.py [--rl-insight PYTHON]

Each way runs in a process of its own, in turns. An event loop finishes 10,000 (100,000) requests one by one (`bulk`:
all at once, as an engine's `generate` returns them), then the main thread multiplies matrices until everything behind
is done. otel_rl counts all in metrics and makes spans of those that its policy keeps; the two others make a span of
each and no metric. rl-insight needs Ray and a Python of its own (``python -m venv ENV; ENV/bin/pip install
rl-insight==0.3.0 numpy``); without ``--rl-insight ENV/bin/python`` it is left out. The server that it and the stock
exporter send to counts bytes and keeps nothing. Memory is that of the process: rl-insight has its events in Ray's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

if __name__ != "__main__":  # a program beside this file means the package of that name
    sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    del sys.modules[__name__]
    importlib.import_module(__name__)

ROWS = {
    "event_loop_us": "a request on the event loop, us",
    "slow_down_ms": "the main thread held up behind it, ms",
    "total_ms": "both together, ms",
    "memory_mib": "memory at its peak, MiB more",
}


class Sink(BaseHTTPRequestHandler):
    """Takes OTLP over HTTP, and what rl-insight asks of its server."""

    received = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/v1/"):
            type(self).received += len(body)
        self._answer(b"{}" if self.path.startswith("/api") else b"")

    def do_GET(self) -> None:
        if self.path == "/received":
            return self._answer(str(self.received).encode())
        return self._answer(json.dumps({"otlp_port": self.server.server_address[1]}).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Be silent."""


def run(python: str, way: str, count: int, rounds: int) -> dict[str, Any]:
    """Measure one way in a process of its own, against a server that runs in another."""
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        child = Path(__file__).with_name("request_paths.py")
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [python, str(child), way, str(count), str(rounds), endpoint]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, timeout=900, check=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    finally:
        server.kill()
        server.wait()


def serve() -> None:
    """Serve until killed; the port is printed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever).start()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way")
    parser.add_argument("--bursts", type=int, default=3, help="bursts in each process")
    parser.add_argument("--rl-insight", metavar="PYTHON", help="of an environment with rl-insight 0.3.0")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    ways = {"otel_rl": sys.executable, "otel_rl bulk": sys.executable, "stock": sys.executable}
    if options.rl_insight:
        ways["rl-insight"] = options.rl_insight
    document: dict[str, Any] = {}
    for count in options.counts:
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, python in ways.items():
                found[way].append(run(python, way, count, options.bursts))
        document[str(count)] = found
        print(f"\n{count:,} requests; medians of {options.rounds} x {options.bursts} bursts (least - greatest)")
        print(f"  {'':38s}" + "".join(f"{way:>30s}" for way in ways))
        for key, name in ROWS.items():
            cells = [_cell([burst[key] for child in found[way] for burst in child["rounds"]]) for way in ways]
            print(f"  {name:38s}" + "".join(f"{cell:>30s}" for cell in cells))
        sizes = [_cell([child["bytes"] for child in found[way]]) for way in ways]
        print(f"  {'bytes a request':38s}" + "".join(f"{cell:>30s}" for cell in sizes))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return None


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):,.2f} ({min(values):,.2f} - {max(values):,.2f})"


if __name__ == "__main__":
    main()
