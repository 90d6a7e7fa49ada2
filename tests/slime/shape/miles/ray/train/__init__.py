"""Of the shape of miles."""
