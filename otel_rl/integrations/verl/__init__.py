"""Record verl: its trainers, workers and rollouts, in every process of a training."""
