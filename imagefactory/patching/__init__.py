"""The patch station: changes to upstream sources, kept as data under ``patches/``, each proven."""
