"""Hooks on torch: collectives, optimizers, checkpoints, process groups."""
