"""Tunes vLLM's fused-MoE kernel for this machine's GPU, and checks the files that come of it."""
