"""In verl a driver holds the steps, ranks train, agent loops and servers generate, and workers give rewards."""
