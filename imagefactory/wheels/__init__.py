"""Wheels of vLLM that are made from its sources."""
