"""Layers as blobs: the same bytes for the same files, and none from another compressor."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.building import blob
from imagefactory.errors import SetupError


def compressed(*chunks: bytes) -> tuple[bytes, dict[str, object]]:
    out = io.BytesIO()
    return out.getvalue(), blob.write(chunks, out) | {"data": out.getvalue()}


def test_a_blob_says_what_it_is(tmp_path: Path) -> None:
    made = blob.store(tmp_path / "key", [b"some", b" text"], {"rule": 1})
    data = made.path.read_bytes()
    assert (made.digest, made.size) == (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
    assert made.diff_id == f"sha256:{hashlib.sha256(b'some text').hexdigest()}"
    assert zstandard.ZstdDecompressor().decompressobj().decompress(data) == b"some text"
    assert blob.find(tmp_path / "key") == (made, {"rule": 1})


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 64))
def test_the_bytes_do_not_depend_on_the_pieces_in_which_an_archive_comes(
    chunks: list[bytes], size: int
) -> None:
    whole = b"".join(chunks)
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blob, "PIECE", 16)
        assert compressed(*chunks)[1] == compressed(*pieces)[1]


def test_the_bytes_do_not_depend_on_the_number_of_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = b"".join(hashlib.sha512(bytes([n % 256, n // 256])).digest() for n in range(60_000))
    made = []
    for number in (None, 1, 3):
        monkeypatch.setattr("os.cpu_count", lambda number=number: number)
        made.append(compressed(data)[1])
    assert made[0] == made[1] == made[2]


def test_another_release_of_the_compressor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstandard, "ZSTD_VERSION", (1, 5, 6))
    with pytest.raises(SetupError, match=r"zstd 1\.5\.6 is installed"):
        compressed(b"x")


def test_the_compressor_is_pinned_where_the_program_expects_it() -> None:
    pyproject = Path(__file__).parents[3] / "pyproject.toml"
    assert f'"{blob.LIBRARY}",' in pyproject.read_text()


@pytest.mark.parametrize("damage", ["cut", "no record", "nothing"])
def test_half_a_blob_is_none(damage: str, tmp_path: Path) -> None:
    made = blob.store(tmp_path / "key", [b"some text"], None)
    if damage == "cut":
        made.path.write_bytes(made.path.read_bytes()[:-1])
    else:
        (tmp_path / "key" / ("layer.json" if damage == "no record" else "blob")).unlink()
    assert blob.find(tmp_path / "key") is None


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise OSError("the wheel is gone")

    with pytest.raises(OSError, match="gone"):
        blob.store(tmp_path / "key", broken(), None)
    assert list(tmp_path.iterdir()) == []
