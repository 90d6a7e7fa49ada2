"""`python -m otel_rl.catalogue` writes the pages of `docs/` that are made of data; tests compare them."""

from pathlib import Path

from otel_rl.catalogue import findings, prometheus, run_tables, telemetry

docs = Path(__file__).parents[2] / "docs"
pages = {telemetry: "catalogue.md", prometheus: "prometheus.md", findings: "findings.md", run_tables: "tables.md"}
for module, name in pages.items():
    (docs / name).write_text(module.render(), encoding="utf-8")
