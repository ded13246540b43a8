"""Recipes: how a model is served, as data that is checked against the vLLM that serves it."""
