"""How busy the rollout engines of this process are: running and waiting requests, KV cache and its peak."""

from __future__ import annotations

from math import isfinite

from otel_rl import vocabulary as v
from otel_rl.metrics.record import Fold
from otel_rl.records import Labels, Point, Value
from otel_rl.requests.fields import whole
from otel_rl.requests.labels import Words
from otel_rl.requests.queue import EngineLoad, KvCache


class Engines:
    """Folds what engines say of themselves: the last value of each cycle, and the peak of the KV cache."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._words = Words()
        self._last: dict[Labels, EngineLoad] = {}
        self._peaks: dict[Labels, float] = {}
        self._sizes: dict[Labels, int] = {}
        """Bytes of the KV caches that take their memory ahead of time."""
        self._used: dict[Labels, int] = {}
        """Bytes of keys and values, at their highest in this step."""
        self._has_steps = False

    def add_load(self, load: EngineLoad) -> None:
        """Add the load of an engine.

        Raises:
            ValueError: one of its numbers is none; nothing of it is taken.
        """
        time_ns, running, waiting, preemptions = map(
            whole, (load.time_ns, load.running, load.waiting, load.preemptions)
        )
        usage = None if load.kv_usage is None else float(load.kv_usage)
        if time_ns is None or running is None or waiting is None or preemptions is None or not isfinite(usage or 0.0):
            raise ValueError(f"the load of an engine is not a number: {load.engine}")
        load = EngineLoad(load.engine, load.replica, time_ns, running, waiting, usage, preemptions)
        labels = self._labels(load.engine, load.replica)
        self._last[labels] = load
        if load.kv_usage is not None:
            self._peaks[labels] = max(self._peaks.get(labels, 0.0), load.kv_usage)
        if load.preemptions >= 0:
            self._fold.count(v.ENGINE_PREEMPTIONS, load.preemptions, labels)

    def add_cache(self, cache: KvCache) -> None:
        """Add how many bytes an engine's KV cache takes; a size that is new is written at once.

        Raises:
            ValueError: one of its numbers is none; nothing of it is taken.
        """
        size, used = (None if number is None else whole(number) for number in (cache.size, cache.used))
        if (size is None) != (cache.size is None) or (used is None) != (cache.used is None):
            raise ValueError(f"the size of an engine's KV cache is not a number: {cache.engine}")
        if min(size or 0, used or 0) < 0:
            raise ValueError(f"the size of an engine's KV cache is negative: {cache.engine}")
        labels = self._labels(cache.engine, cache.replica)
        if size is not None and self._sizes.get(labels) != size:
            self._sizes[labels] = size
            self._fold.point(Point(v.KV_BYTES, size, cache.time_ns, labels))
        if used is not None:
            self._used[labels] = max(self._used.get(labels, 0), used)

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
        """Return the highest KV-cache usage of any engine in this step so far."""
        return max(self._peaks.values(), default=None)

    def bytes(self) -> dict[str, Value]:
        """Return the bytes of the largest KV cache, and the most in use in this step so far, as far as known."""
        known = ((v.KV_BYTES_SPAN, self._sizes), (v.KV_BYTES_PEAK_SPAN, self._used))
        return {key: max(numbers.values()) for key, numbers in known if numbers}

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
        used, self._used = self._used, {}
        for name, numbers in ((v.KV_BYTES, self._sizes), (v.KV_BYTES_PEAK, used)):
            for labels, number in numbers.items():
                self._fold.point(Point(name, number, time_ns, labels))

    def _labels(self, engine: str, replica: str) -> Labels:
        named = ((v.PROVIDER, engine), (v.REPLICA, replica))
        return tuple((key, self._words.word(key, str(text))) for key, text in named if text)
