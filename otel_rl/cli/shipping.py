"""What `otel-rl doctor` says of sending: where to, whether a server accepts it, and what of a run has been sent."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from time import time_ns
from typing import Final

from otel_rl.cli.checks import Check
from otel_rl.config import ConfigurationError
from otel_rl.journal.frame import Signal
from otel_rl.journal.read import Run
from otel_rl.runs.format import count, seconds, size
from otel_rl.sidecar import owner
from otel_rl.sidecar.settings import PREFIX, SIGNALS, Target, is_sent, targets
from otel_rl.sidecar.ship.client import connect, explain
from otel_rl.sidecar.ship.progress import load
from otel_rl.sidecar.streams import find_streams

ANSWER_S = 5.0
LOST: Final = frozenset({"rejected", "refused", "damaged"})
SUFFIXES: Final = (
    "ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE",
    "INSECURE",
)  # fmt: skip
HONOURED: Final = frozenset(
    f"{PREFIX}{signal}{suffix}" for signal in ("", "TRACES_", "METRICS_", "LOGS_") for suffix in SUFFIXES
) | {"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"}
"""What ``sidecar.settings`` reads."""


def sending(environ: Mapping[str, str] = os.environ) -> list[Check]:
    """Return where each signal is sent, and whether a server accepts it."""
    try:
        found = targets(environ)
    except ConfigurationError as error:
        return [Check("wrong", "sending", str(error))]
    if not found:
        return [Check("note", "sending", f"nothing: {PREFIX}ENDPOINT is not set, records stay in the journal")]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_target, found))


def sent(run: Run) -> list[Check]:
    """Return what of a run was sent, what the server did not accept, and what waits."""
    if not run.path.is_dir():
        return []
    streams = find_streams(run.path)
    expected = _expected()
    counts: Counter[tuple[str, str]] = Counter()
    retries: dict[str, Counter[tuple[str, str]]] = {}
    failures: dict[str, set[str]] = {}
    unsent = 0
    oldest_ns = 0
    for writer in sorted({name for name, _ in streams}):
        progress = load(run.path, writer)
        for signal, row in progress.items():
            counts.update({(signal, name): number for name, number in row.counts.items()})
            if row.retries:
                retries.setdefault(signal, Counter()).update(row.retries)
                failures.setdefault(signal, set()).update({row.failure} - {""})
            stream = streams.get((writer, signal))
            if stream is not None and signal in expected:
                unsent += row.waiting(stream)
                first_ns = 0
                with suppress(OSError):  # that a file cannot be read is said of the records
                    first_ns = row.first_ns(stream)
                oldest_ns = min(oldest_ns or first_ns, first_ns or oldest_ns)
    if not counts and not retries and not is_sent():
        return []
    rows = [
        Check("wrong" if name in LOST and number else "ok", f"{signal} {name.replace('_', ' ')}", count(number))
        for (signal, name), number in sorted(counts.items())
        if number
    ]
    age = f", the oldest for {seconds((time_ns() - oldest_ns) / 1e9)}" if unsent and oldest_ns else ""
    rows.append(Check("note" if unsent else "ok", "waiting", f"{size(unsent)} to be sent{age}"))
    put_off = [_put_off(signal, retries[signal], failures[signal]) for signal in sorted(retries)]
    return [*rows, *put_off, *_sidecars(run)]


def refusals(run: Run) -> str:
    """Return why nothing of a run is accepted at present; empty if it is, or if nothing was sent."""
    answers: dict[str, set[str]] = {}
    for writer in {name for name, _ in find_streams(run.path)}:
        for signal, row in load(run.path, writer).items():
            if row.failure:
                answers.setdefault(row.failure, set()).add(signal)
    return "; ".join(f"{answer} ({', '.join(sorted(signals))})" for answer, signals in sorted(answers.items()))


def _put_off(signal: str, retries: Counter[tuple[str, str]], failures: set[str]) -> Check:
    """Return how often requests were not accepted and why; it is wrong if that is so at present."""
    answers = ", ".join(
        f"{reason}{' (blocked)' if kind == 'blocked' else ''}: {count(number)}"
        for (kind, reason), number in sorted(retries.items())
    )
    last = f"; the last answer: {', '.join(sorted(failures))}" if failures else ""
    return Check("wrong" if failures else "note", f"{signal} put off", f"{answers}{last}")


def _sidecars(run: Run) -> list[Check]:
    nodes = {journal.identity.boot_id: journal.identity.host for journal in run.journals}
    found = []
    for boot_id, host in sorted(nodes.items(), key=lambda item: item[1]):
        identity = owner.living(run.path, boot_id)
        only = "" if owner.living(run.path, boot_id, sends=True) else ", which only watches for stalls"
        detail = f"pid {identity.pid} on {identity.host}{only}" if identity else f"none runs for the journals of {host}"
        found.append(Check("ok" if identity else "note", "sidecar", detail))
    return found


def _expected(environ: Mapping[str, str] = os.environ) -> frozenset[Signal]:
    """Return the signals that are to be sent; all if that is not set here: it is the trainers' to set."""
    try:
        found = targets(environ)
    except ConfigurationError:
        return frozenset(SIGNALS)
    return frozenset(target.signal for target in found) if is_sent(environ) else frozenset(SIGNALS)


def _target(target: Target) -> Check:
    how = f"{target.shown} by {target.protocol}{', TLS' if target.secure else ''}"
    client = connect(replace(target, timeout_s=min(target.timeout_s, ANSWER_S)))
    outcome = client.send(b"")
    client.close()
    if outcome.kind == "accepted":
        return Check("ok", target.signal, how)
    if outcome.kind in ("later", "blocked"):
        hint = "; check the certificates, too" if target.secure and outcome.kind == "later" else ""
        why = explain(outcome, target.signal) + hint * (not outcome.advice)
        return Check("wrong", target.signal, f"{how}: {why}; records wait in the journal")
    return Check("note", target.signal, f"{how}: the server answers, but refused an empty request ({outcome.reason})")
