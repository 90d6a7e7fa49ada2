"""Open spans: stages, steps, and where each belongs."""
