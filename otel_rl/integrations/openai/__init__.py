"""The client of OpenAI-compatible servers."""
