"""Locks between processes: who waits for another says so."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from imagefactory.system import locks, ui


def test_a_lock_that_is_free_is_taken_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locks.held(tmp_path / "x.lock", "torch.whl"):
        pass
    with locks.held(tmp_path / "x.lock", "torch.whl"):
        pass
    assert capsys.readouterr().err == ""


def test_who_waits_for_another_process_says_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.01)
    said = queue.Queue[str]()
    monkeypatch.setattr(ui, "say", said.put)
    path, order = tmp_path / "x.lock", list[str]()

    def second() -> None:
        with locks.held(path, "torch.whl"):
            order.append("second")

    waiting = threading.Thread(target=second)
    with FileLock(path):
        waiting.start()
        assert said.get(timeout=30).startswith("waiting for torch.whl")
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


def test_threads_of_one_process_wait_for_each_other_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.0)
    said = list[str]()
    monkeypatch.setattr(ui, "say", said.append)
    path, order = tmp_path / "x.lock", list[str]()

    def second() -> None:
        with locks.held(path, "torch.whl"):
            order.append("second")

    waiting = threading.Thread(target=second)
    with locks.held(path, "torch.whl"):
        waiting.start()
        waiting.join(0.05)
        order.append("first")
    waiting.join(30)
    assert (order, said) == (["first", "second"], [])
