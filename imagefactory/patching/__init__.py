"""The patch station: changes to upstream sources as data under ``patches/``, each with its proof."""
