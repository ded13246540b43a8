"""The patch station: changes to upstream sources as data under ``patches/``.

Each with its proof.
"""
