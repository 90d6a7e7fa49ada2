"""The sidecar's own journal: the state of shipping, and the node's hardware, as metrics."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from otel_rl import ids, vocabulary
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import OtlpRequest, SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.probes.sample import Sample
from otel_rl.records import Log, MetricPoints, Number, Value
from otel_rl.sidecar.sampler import Sampler
from otel_rl.sidecar.ship_node import Node
from otel_rl.version import __version__

PERIOD_S: Final = 5.0
MAX_BYTES: Final = 256 << 20
DEVICE_ERRORS: Final = (vocabulary.XID, vocabulary.HW_ERRORS)
LONGEST_TEXT: Final = 128 << 10
"""Stacks are long."""


class OwnJournal:
    """Writes what the sidecar knows of itself and of its node."""

    def __init__(self, directory: Path, identity: WriterIdentity) -> None:
        self._writer = Writer(directory, identity, MAX_BYTES)
        self._encoder = SpanEncoder(_resource(directory, identity), __version__, max_text=LONGEST_TEXT)
        self._sampler = Sampler()
        self._start_ns = time.time_ns()
        self.device_errors: list[Sample] = []
        """Errors that the devices of the node have counted, as of the last sample."""

    def write(self, node: Node, more: Iterable[Sample] = ()) -> None:
        """Sample once and journal it, with more that the sidecar knows."""
        hardware = self._sampler.read()
        self.device_errors = [one for one in hardware if one.name in DEVICE_ERRORS and one.value]
        samples = [*hardware, *_of_shipping(node), *more]
        self.append(self._encoder.encode_metrics(self._points(samples)))
        self._writer.heartbeat()

    def append_logs(self, logs: Iterable[Log]) -> None:
        """Journal log records."""
        self.append(self._encoder.encode_logs(list(logs)))

    def append(self, requests: Iterable[OtlpRequest]) -> None:
        """Journal requests that are encoded already."""
        for request in requests:
            self._writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)

    def close(self) -> None:
        """Close the journal and the node's devices."""
        self._sampler.close()
        self._writer.close()

    def _points(self, samples: Iterable[Sample]) -> list[MetricPoints]:
        now_ns = time.time_ns()
        by_name: dict[str, list[Number]] = {}
        for name, value, labels in samples:
            by_name.setdefault(name, []).append(Number(now_ns, value, dict(labels)))
        found = []
        for name, numbers in by_name.items():
            row = vocabulary.METRICS[name]
            start_ns = self._start_ns if row.kind == "counter" else 0
            found.append(MetricPoints(name, row.kind, row.unit, row.meaning, numbers, start_ns))
        return found


def _of_shipping(node: Node) -> Iterable[Sample]:
    yield Sample(vocabulary.SELF_WAITING, node.waiting)
    yield Sample(vocabulary.SELF_OLDEST, node.oldest_s())
    yield Sample(vocabulary.SELF_WRITERS, len(node.trainers & node.living))
    for (signal, outcome), number in node.counts().items():
        of_signal = (vocabulary.SIGNAL, signal)
        if outcome == "fetched":  # these are among the others: a sum over outcomes would count them twice
            yield Sample(vocabulary.SELF_FETCHED, number, (of_signal,))
        else:
            yield Sample(vocabulary.SELF_SHIPPED, number, ((vocabulary.OUTCOME, outcome), of_signal))
    for (signal, kind, reason), number in node.retries().items():
        why = ((vocabulary.OUTCOME, kind), (vocabulary.REASON, reason), (vocabulary.SIGNAL, signal))
        yield Sample(vocabulary.SELF_RETRIED, number, why)


def _resource(directory: Path, identity: WriterIdentity) -> dict[str, Value]:
    """Return the resource of the sidecar: that of the trainers without rank and attempt."""
    return {
        vocabulary.SERVICE_NAME: "otel_rl-sidecar",
        vocabulary.SERVICE_INSTANCE_ID: ids.instance_id(identity.writer),
        vocabulary.HOST_NAME: socket.gethostname(),
        vocabulary.PROCESS_PID: os.getpid(),
        vocabulary.DISTRO_NAME: vocabulary.SCOPE,
        vocabulary.DISTRO_VERSION: __version__,
        vocabulary.RUN_ID: directory.name,
        vocabulary.ROLE: "sidecar",
    }
