"""Hooks on transformers: the Trainer's loop, `generate`, and continuous batching."""
