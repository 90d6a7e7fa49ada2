"""The directory that `otel-rl run` puts first on PYTHONPATH."""
