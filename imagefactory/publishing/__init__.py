"""Publishing: only what was verified moves."""
