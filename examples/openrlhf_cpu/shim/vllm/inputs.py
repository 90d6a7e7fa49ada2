"""Prompts of vLLM are dictionaries."""

TokensPrompt = dict
