"""`python -m otel_rl.catalogue` writes `docs/catalogue.md`, `prometheus.md` and `findings.md`; tests compare them."""

from pathlib import Path

from otel_rl.catalogue import findings, prometheus, telemetry

docs = Path(__file__).parents[2] / "docs"
for module, name in ((telemetry, "catalogue.md"), (prometheus, "prometheus.md"), (findings, "findings.md")):
    (docs / name).write_text(module.render(), encoding="utf-8")
