"""vLLM: the requests of its engines."""
