"""What the sidecars of a run said of its devices: errors, lowered clocks, use."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import mean
from otel_rl.journal.read import PointView
from otel_rl.report.data.devices import RankDevice
from otel_rl.report.data.ranks import Rank
from otel_rl.report.fold.folded_spans import Host, StepRecord
from otel_rl.runs.spans import text

UNCORRECTED: Final = "uncorrected"
Readings = tuple["array[int]", "array[float]"]


class DevicePoints:
    """The points of devices: the last of each counter, all of each gauge, 16 bytes each."""

    NAMES: Final = (v.XID, v.HW_ERRORS, v.THROTTLE, v.GPU_UTILIZATION)

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, str, str], float]] = defaultdict(dict)
        """By device, and by writer, name and kind: a restarted sidecar counts anew."""
        self._readings: dict[str, dict[tuple[str, str], Readings]] = defaultdict(dict)

    def add(self, point: PointView) -> None:
        device = text(point.attributes, v.HW_ID)
        if point.name in (v.XID, v.HW_ERRORS):
            kind = text(point.attributes, v.XID_CODE if point.name == v.XID else v.ERROR_TYPE)
            self._counts[device][point.journal.identity.writer, point.name, kind] = point.value
            return
        key = point.name, text(point.attributes, v.THROTTLE_REASON)
        times, values = self._readings[device].setdefault(key, (array("q"), array("d")))
        times.append(point.time_ns)
        values.append(point.value)

    def rows(
        self, attempt: str, hosts: Mapping[tuple[str, Rank], Host], records: Iterable[StepRecord]
    ) -> list[RankDevice]:
        """Return the devices that ranks of an attempt say they use."""
        ranks: defaultdict[str, list[Rank]] = defaultdict(list)
        for (of, rank), host in sorted(hosts.items()):
            if of == attempt and host.device and (host.device in self._counts or host.device in self._readings):
                ranks[host.device].append(rank)
        steps = [record.step for record in records if record.attempt == attempt] if ranks else []
        begin_ns, end_ns = (
            min((one.begin_ns for one in steps), default=0),
            max((one.end_ns for one in steps), default=0),
        )
        return [self._row(device, of, begin_ns, end_ns) for device, of in ranks.items()]

    def _row(self, device: str, ranks: Sequence[Rank], begin_ns: int, end_ns: int) -> RankDevice:
        counts: Counter[tuple[str, str]] = Counter()
        for (_, name, kind), number in self._counts.get(device, {}).items():
            counts[name, kind] += round(number)
        inside = {
            key: [value for time_ns, value in zip(*readings, strict=True) if begin_ns <= time_ns <= end_ns]
            for key, readings in self._readings.get(device, {}).items()
        }
        used = inside.get((v.GPU_UTILIZATION, ""), [])
        return RankDevice(
            ranks=ranks,
            device=device,
            xids={kind: number for (name, kind), number in counts.items() if name == v.XID and number},
            uncorrected=counts[v.HW_ERRORS, UNCORRECTED],
            readings=max(map(len, inside.values()), default=0),
            use=mean(used) if used else None,
            throttled={why: mean(found) for (name, why), found in inside.items() if name == v.THROTTLE and found},
        )
