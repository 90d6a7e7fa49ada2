"""Of the shape of slime."""
