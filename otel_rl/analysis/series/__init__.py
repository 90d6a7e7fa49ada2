"""Arithmetic of numbers over the steps of a run."""
