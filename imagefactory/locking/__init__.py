"""The lock station: ``wheels.lock`` decides which wheels an image gets; builds resolve nothing."""
