"""torch: collectives, optimizers, checkpoints, process groups."""
