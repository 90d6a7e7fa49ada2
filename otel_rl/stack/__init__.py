"""A local stack for one box: Collector, Jaeger, Prometheus, and Tempo where there is one, started and stopped by us."""
