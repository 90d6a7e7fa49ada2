"""Collectives and process groups: who communicates, how long, and who waits for whom."""
