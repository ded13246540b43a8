"""Verify: run an image, look at what it really is, and judge that check by check."""
