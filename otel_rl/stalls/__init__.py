"""Stalls: stages that hold a run up, found while it happens from the status pages of its processes."""
