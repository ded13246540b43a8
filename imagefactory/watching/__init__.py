"""What is newer upstream than the matrix and the lock, and what the policy takes over."""
