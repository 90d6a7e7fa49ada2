"""Of the shape of prime-rl."""
