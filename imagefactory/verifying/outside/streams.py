"""Streams that blobs are read through: hashed, unpacked, and forward only."""

from __future__ import annotations

import hashlib
import zlib
from typing import Protocol

CHUNK = 1 << 20
_ZSTD, _GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"


class Reader(Protocol):
    """Something that bytes are read from."""

    def read(self, size: int = ..., /) -> bytes:
        """Up to ``size`` bytes; none at the end."""


class Hashed:
    """A stream that hashes what is read from it."""

    def __init__(self, stream: Reader) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(CHUNK if size < 0 else size)
        self._sha256.update(data)
        return data

    def rest(self) -> bytes:
        """All that is left."""
        return b"".join(iter(self.read, b""))

    @property
    def digest(self) -> str:
        return f"sha256:{self._sha256.hexdigest()}"


class _Joined:
    """Bytes that were read already, and the stream that they came from."""

    def __init__(self, start: bytes, stream: Reader) -> None:
        self._start, self._stream = start, stream

    def read(self, size: int = -1, /) -> bytes:
        if self._start:
            data, self._start = self._start, b""
            return data
        return self._stream.read(size)


class _Gunzipped:
    """The content of a gzip stream, which may consist of several."""

    def __init__(self, stream: Reader) -> None:
        self._stream, self._packed = stream, b""
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def read(self, size: int = -1, /) -> bytes:
        while True:
            self._packed = self._packed or self._stream.read(CHUNK)
            if not self._packed:
                return b""
            if self._unpacker.eof:
                self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
            data = self._unpacker.decompress(self._packed, CHUNK if size < 0 else size)
            self._packed = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            if data:
                return data


class _Unzstd:
    """The content of a zstd stream, which may consist of several frames."""

    def __init__(self, stream: Reader) -> None:
        import zstandard  # noqa: PLC0415 - only when a layer is read

        self._error = zstandard.ZstdError
        made = zstandard.ZstdDecompressor()
        self._reader = made.stream_reader(stream, read_across_frames=True)  # type: ignore[arg-type]

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._reader.read(CHUNK if size < 0 else size)
        except self._error as error:
            raise ValueError(str(error)) from None


def unpacked(start: bytes, stream: Reader) -> Reader:
    """The content of a blob that begins with ``start`` and goes on with ``stream``."""
    joined = _Joined(start, stream)
    if start == _ZSTD:
        return _Unzstd(joined)
    return _Gunzipped(joined) if start[:2] == _GZIP else joined


class Forward:
    """A stream that knows its position, and only moves forward."""

    def __init__(self, stream: Reader) -> None:
        self._stream, self._ahead, self._start, self._position = stream, b"", 0, 0

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        left = position - self._position
        if left < 0:
            raise OSError("a layer is read from its beginning to its end")
        while left and (data := self.read(min(left, CHUNK))):
            left -= len(data)
        return self._position

    def read(self, size: int) -> bytes:
        if size <= len(self._ahead) - self._start:
            data = self._ahead[self._start : self._start + size]
            self._start += size
        else:
            parts = [self._ahead[self._start :]]
            length = len(parts[0])
            while length < size and (more := self._stream.read(CHUNK)):
                parts.append(more)
                length += len(more)
            whole = b"".join(parts)
            data, self._ahead, self._start = whole[:size], whole[size:], 0
        self._position += len(data)
        return data
