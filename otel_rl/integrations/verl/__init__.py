"""Verl: a driver holds the steps, ranks train, agent loops and servers generate, workers give rewards."""
