"""Runs in which a driver holds the steps: what its ranks and the others did, by its steps."""
