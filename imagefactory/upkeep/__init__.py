"""Upkeep of the machine: what uses disk space, and what is missing."""
