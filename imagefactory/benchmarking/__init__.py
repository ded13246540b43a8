"""Measures a server over the OpenAI API, keeps the results, and compares them."""
