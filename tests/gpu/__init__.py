"""What runs on the GPU of this machine, without containers, and records what it saw."""
