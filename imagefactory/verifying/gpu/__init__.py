"""What is run on a GPU: probes that need only torch, and how their reports are judged."""
