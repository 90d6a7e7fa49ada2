"""`python -m otel_rl.catalogue` writes `docs/catalogue.md` and `docs/prometheus.md`."""

from otel_rl.catalogue.telemetry import main

main()
