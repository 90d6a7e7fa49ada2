"""Says which version this is the shape of."""
