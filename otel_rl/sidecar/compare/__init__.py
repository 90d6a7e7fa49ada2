"""Comparing the ranks of a run while it runs."""
