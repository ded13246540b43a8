"""What is read of a stream is hashed, all of it and no more than was asked for."""

from __future__ import annotations

import hashlib
import io

import pytest

from imagefactory.verifying.outside import streams
from imagefactory.verifying.outside.streams import Hashed

DATA = b"0123456789"


@pytest.mark.parametrize(
    ("sizes", "read"),
    [
        ([3, 4], [b"012", b"3456"]),
        ([0, 3, 0], [b"", b"012", b""]),
        ([3, -1, -1], [b"012", b"3456", b"789"]),
        ([], []),
    ],
)
def test_a_stream_gives_what_is_asked_for_and_hashes_it(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], read: list[bytes]
) -> None:
    monkeypatch.setattr(streams, "CHUNK", 4)
    hashed = Hashed(io.BytesIO(DATA))
    assert [hashed.read(size) for size in sizes] == read
    seen = b"".join(read)
    assert hashed.digest == f"sha256:{hashlib.sha256(seen).hexdigest()}"
    assert hashed.rest() == DATA[len(seen) :]
    assert hashed.digest == f"sha256:{hashlib.sha256(DATA).hexdigest()}"
