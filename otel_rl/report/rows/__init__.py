"""From a run that was folded to the rows of its report: one file for each part of it."""
