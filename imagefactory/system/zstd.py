"""Zstandard, which is in the standard library from Python 3.14 on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, cast


def decompress(data: bytes) -> bytes:
    """The uncompressed ``data``. Raises ValueError if it is damaged."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 - only needed for what is compressed so
    else:
        from backports import zstd  # noqa: PLC0415 - as above
    try:
        return zstd.decompress(data)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from None


def reader(path: Path) -> IO[bytes]:
    """The uncompressed content of a file; reading a damaged one raises EOFError or ZstdError."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 - as above
    else:
        from backports import zstd  # noqa: PLC0415 - as above
    return cast("IO[bytes]", zstd.open(path, "rb"))
