"""What Prometheus makes of the metrics: names, labels, who emits them, and queries; ``docs/prometheus.md`` shows it."""
