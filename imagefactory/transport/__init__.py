"""Moves verified images to other machines: in files, or to their engines over ssh."""
