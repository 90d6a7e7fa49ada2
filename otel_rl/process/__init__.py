"""Who this process is: run, attempt, rank, role, place in the layout, and its state."""
