"""`python -m otel_rl.catalogue` writes `docs/catalogue.md` and `docs/prometheus.md`; tests compare both."""

from pathlib import Path

from otel_rl.catalogue import prometheus, telemetry

docs = Path(__file__).parents[2] / "docs"
for module, name in ((telemetry, "catalogue.md"), (prometheus, "prometheus.md")):
    (docs / name).write_text(module.render(), encoding="utf-8")
