"""Files that several programs write at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagefactory.system import files


def test_a_file_of_a_cache_that_several_write_at_once_is_whole(tmp_path: Path) -> None:
    path, start = tmp_path / "cache/a.json", threading.Barrier(8)
    texts = [str(number) * 100_000 for number in range(8)]

    def write(text: str) -> None:
        start.wait()
        for _ in range(10):
            files.keep(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, texts))
    assert [one.name for one in path.parent.iterdir()] == ["a.json"]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files.keep(tmp_path / "file/a.json", "x")
