"""Points of clocks that are wrong take no other with them, through every shipped pipeline into the real Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.otlp import HOUR_S, metrics, send
from tests.backend.test_sizes import WAYS, failed, way
from tests.backend.test_tiers import Site, site
from tests.backends import prometheus
from tests.rules import alerts
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

__all__ = ["site"]
MINUTE_S = 60
STORED = {24 * HOUR_S: False, 22.9 * HOUR_S: True, -8.9 * MINUTE_S: True, -11 * MINUTE_S: False, -59 * MINUTE_S: False}
"""By the age of a point in s."""


@pytest.mark.parametrize("name", WAYS)
def test_a_point_of_a_wrong_clock_takes_no_other_with_it(name: str, site: Site, tmp_path: Path) -> None:
    """Prometheus refuses a request for a point more than ten minutes ahead; what is dropped is alerted on."""
    (expr,) = [rule["expr"] for rule in alerts() if rule["alert"] == "OtelRlCollectorDrops"]
    with prometheus(tmp_path) as store, way(name, tmp_path, site, OTEL_RL_PROMETHEUS=store.url) as found:
        for number, age_s in enumerate(STORED):
            request = metrics(f"skew.{number}", (0, 1, 1.0), (1, age_s, 2.0), (2, 1, 3.0))
            assert "OK" == send(found[0].grpc, "metrics", request)
        for number, is_stored in enumerate(STORED.values()):
            asked = f"last_over_time(skew_{number}_seconds[26h] offset -1h)"
            expected = {"0", "1", "2"} if is_stored else {"0", "2"}
            assert wait_for(lambda: expected == {row["metric"]["rl_rank"] for row in store.query(asked)})  # noqa: B023
        assert 0 == failed(found)
        (row,) = wait_for(lambda: store.query(expr))
    assert ("filter/too_old", str([*STORED.values()].count(False))) == (row["metric"]["filter"], row["value"][1])
