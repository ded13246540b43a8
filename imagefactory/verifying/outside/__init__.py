"""Judges the content of an image from outside: nothing of the image is run."""
