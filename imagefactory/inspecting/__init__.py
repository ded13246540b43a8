"""Inspecting: what an image contains, and how two images differ."""
