"""How busy the rollout engines of this process are: running and waiting requests, KV cache and its peak."""

from __future__ import annotations

from math import isfinite

from otel_rl import vocabulary as v
from otel_rl.metrics import Fold
from otel_rl.records import Labels, Point
from otel_rl.requests import Load
from otel_rl.rollouts.columns import whole
from otel_rl.rollouts.labels import Words


class Engines:
    """Folds what engines say of themselves: the last value of each cycle, and the peak of the KV cache."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._words = Words()
        self._last: dict[Labels, Load] = {}
        self._peaks: dict[Labels, float] = {}
        self._has_steps = False

    def take(self, load: Load) -> None:
        """Take in what an engine says.

        Raises:
            ValueError: one of its numbers is none; nothing of it is taken.
        """
        time_ns, running, waiting, preemptions = map(
            whole, (load.time_ns, load.running, load.waiting, load.preemptions)
        )
        usage = None if load.kv_usage is None else float(load.kv_usage)
        if time_ns is None or running is None or waiting is None or preemptions is None or not isfinite(usage or 0.0):
            raise ValueError(f"the load of an engine is no number: {load.engine}")
        load = Load(load.engine, load.replica, time_ns, running, waiting, usage, preemptions)
        told = ((v.PROVIDER, load.engine), (v.REPLICA, load.replica))
        labels = tuple((key, self._words.word(key, str(text))) for key, text in told if text)
        self._last[labels] = load
        if load.kv_usage is not None:
            self._peaks[labels] = max(self._peaks.get(labels, 0.0), load.kv_usage)
        if load.preemptions > 0:
            self._fold.count(v.ENGINE_PREEMPTIONS, load.preemptions, labels)

    def emit(self, anchor: int) -> None:
        """Write the last values since the last time, each at its own time; ``anchor`` places it on the wall clock."""
        last, self._last = self._last, {}
        for labels, load in last.items():
            time_ns = load.time_ns + anchor
            self._fold.point(Point(v.RUNNING, load.running, time_ns, labels))
            self._fold.point(Point(v.WAITING, load.waiting, time_ns, labels))
            if load.kv_usage is not None:
                self._fold.point(Point(v.KV_USAGE, load.kv_usage, time_ns, labels))

    def peak(self) -> float | None:
        """Give the highest KV-cache usage of any engine in this step so far."""
        return max(self._peaks.values(), default=None)

    def step_over(self, time_ns: int) -> None:
        """Write the peaks of a step."""
        self._has_steps = True
        self._write_peaks(time_ns)

    def rollout_over(self, time_ns: int) -> None:
        """Write the peaks of a rollout, in a process that has no steps: a server's."""
        if not self._has_steps:
            self._write_peaks(time_ns)

    def _write_peaks(self, time_ns: int) -> None:
        peaks, self._peaks = self._peaks, {}
        for labels, peak in peaks.items():
            self._fold.point(Point(v.KV_PEAK, peak, time_ns, labels))
