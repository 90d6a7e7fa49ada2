"""One pass over the journals of a run."""
