"""Judges what locked wheels can do together before anything is built: symbols, libraries, GPUs."""
