"""Shipping journals to an OTLP endpoint."""
