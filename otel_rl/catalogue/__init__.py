"""Generated documentation: everything that otel_rl emits, and how Prometheus names it."""
