"""transformers: the Trainer's loop, `generate`, and continuous batching."""
