"""The commands of `otel-rl`, one file each."""
