"""The dashboard: the records of all nights as a static site."""
