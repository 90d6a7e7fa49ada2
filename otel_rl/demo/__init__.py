"""A real GRPO run that anyone can start: ``otel-rl demo`` trains a tiny language model on two CPU ranks."""
