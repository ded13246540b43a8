"""One model on several machines: what runs on each, whether they fit together, and running it."""
