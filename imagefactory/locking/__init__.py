"""The lock station: ``wheels.lock`` decides which wheels an image gets; no resolver runs in a build."""
