"""Files that several programs write at once, or that do not fit the disk."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes import dead_owner

from imagefactory.system import files, owner, temporary


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


@pytest.mark.parametrize(
    "write",
    [files.write_text, lambda path, text: files.write_durably(path, text.encode())],
    ids=["text", "durably"],
)
def test_a_file_that_several_write_at_once_is_what_one_of_them_wrote(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    path, start = tmp_path / "report.md", threading.Barrier(8)
    texts = [str(number) * 100_000 for number in range(8)]

    def write_often(text: str) -> None:
        start.wait()
        for _ in range(10):
            write(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write_often, texts))
    assert [one.name for one in tmp_path.iterdir()] == ["report.md"]


def test_the_next_to_write_into_a_folder_removes_what_a_killed_one_left_there(
    tmp_path: Path,
) -> None:
    left = temporary.part_of(tmp_path / ("x" * 250))
    left.touch()
    orphan = left.with_name(left.name.replace(owner.mine(), dead_owner()))
    foreign = [tmp_path / ".imagefactory-notes", tmp_path / f"other-{dead_owner()}-x"]
    for path in (orphan, *foreign):
        path.touch()
    temporary._sweep_parts.cache_clear()
    files.write_text(tmp_path / "b", "new")
    assert {path.name for path in tmp_path.iterdir()} == {
        "b",
        left.name,
        *(path.name for path in foreign),
    }


def test_ctrl_c_while_a_file_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_durably(tmp_path / "a", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_said_by_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        files.write_text(tmp_path / "none/a", "new")
    assert caught.value.filename == str(tmp_path / "none/a")


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files.keep(tmp_path / "file/a.json", "x")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_text(path, "new"),
        lambda path: files.write_durably(path, b"new"),
    ],
    ids=["text", "durably"],
)
def test_a_full_disk_leaves_the_file_alone_and_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    path = tmp_path / "trusted-keys"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write(path)
    assert (caught.value.filename, path.read_text()) == (str(path), "old")
    assert [one.name for one in tmp_path.iterdir()] == ["trusted-keys"]


@pytest.mark.parametrize("name", [".", "/", "", ".."])
def test_a_folder_where_a_file_is_to_be_is_an_error_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="directory"):
        files.write_text(Path(name), "new")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing_is_named_with_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        files.write_text(tmp_path / "gone" / "x.yaml", "")
    assert caught.value.filename == str(tmp_path / "gone" / "x.yaml")


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "stdout"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write_text(link, "new")
        assert os.read(reader, 9) == b"new"
    finally:
        os.close(reader)
    assert (pipe.is_fifo(), link.is_symlink(), len(list(tmp_path.iterdir()))) == (True, True, 2)


def test_a_device_that_takes_nothing_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "full"
    os.mkfifo(pipe)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_text(pipe, "new")
    assert pipe.is_fifo()
