"""Encoding records as OTLP requests."""
