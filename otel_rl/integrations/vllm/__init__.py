"""The requests of vLLM's engines."""
