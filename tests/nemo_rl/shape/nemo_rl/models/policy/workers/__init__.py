"""Of the shape of NeMo-RL."""
