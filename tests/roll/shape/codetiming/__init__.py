"""Stands for codetiming, of which ROLL uses the timer as a context manager."""

from codetiming._timer import Timer

__all__ = ["Timer"]
