"""Debian packages: their archives, which of them a base consists of, and their files."""
