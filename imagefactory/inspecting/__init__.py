"""Inspecting: what an image is made of, and what differs between two."""
