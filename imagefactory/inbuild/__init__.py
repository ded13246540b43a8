"""Programs that run inside the builder stage, where only Python's standard library and git are."""
