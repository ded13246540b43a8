"""Does the image's Python run?"""
