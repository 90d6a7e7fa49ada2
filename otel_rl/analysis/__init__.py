"""Arithmetic over recorded times and numbers: pure functions, no OpenTelemetry, no torch, no I/O."""
