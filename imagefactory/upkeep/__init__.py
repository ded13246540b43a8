"""Upkeep of the machine: what takes room, and what is missing."""
