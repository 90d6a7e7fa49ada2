"""`python -m otel_rl.catalogue` writes the pages of ``PAGES`` into `docs/`; tests compare them."""

from pathlib import Path

from otel_rl.catalogue import dictionary, findings, frameworks, prometheus, run_tables, telemetry

PAGES = (
    (telemetry, "catalogue.md"),
    (prometheus, "prometheus.md"),
    (findings, "findings.md"),
    (dictionary, "metrics.md"),
    (frameworks, "frameworks.md"),
    (run_tables, "tables.md"),
)
docs = Path(__file__).parents[2] / "docs"
for module, name in PAGES:
    (docs / name).write_text(module.render(), encoding="utf-8")
