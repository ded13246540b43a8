"""Zstandard, which the standard library has only from Python 3.14 on."""

from __future__ import annotations

from pathlib import Path
from typing import IO, cast


def decompress(data: bytes) -> bytes:
    """The uncompressed ``data``. Raises ValueError if it is damaged."""
    import zstandard  # noqa: PLC0415 - only needed for what is compressed so

    try:
        return zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def errors() -> tuple[type[Exception], ...]:
    """What reading a damaged file raises."""
    import zstandard  # noqa: PLC0415 - as above

    return EOFError, zstandard.ZstdError


def reader(path: Path) -> IO[bytes]:
    """The uncompressed content of a file; reading a damaged one raises one of ``errors``."""
    import zstandard  # noqa: PLC0415 - as above

    made = zstandard.ZstdDecompressor()
    stream = made.stream_reader(path.open("rb"), read_across_frames=True, closefd=True)
    return cast("IO[bytes]", stream)
