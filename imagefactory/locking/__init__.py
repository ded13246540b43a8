"""The lock station: ``wheels.lock`` decides which wheels an image gets.

No resolver runs in a build.
"""
