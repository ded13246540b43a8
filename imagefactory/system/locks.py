"""Locks between processes of imagefactory: whoever waits for another one says for what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from imagefactory.errors import SetupError, fail

#: Seconds that are waited in silence.
PATIENCE = 1.0
#: Threads of this process wait for each other, in silence, before they ask for the file.
_threads: dict[Path, threading.Lock] = {}


@contextmanager
def held(path: Path, what: str, *, mode: int = 0o644) -> Iterator[None]:
    """Hold the lock file ``path``, made with ``mode``; ``what`` is what it protects.

    A process that ends lets its locks go, however it ends.
    """
    with _threads.setdefault(path, threading.Lock()):
        lock = FileLock(path, mode=mode)
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            from imagefactory.system import ui  # noqa: PLC0415 - rarely used, and not pure

            ui.say(f"waiting for {what}, which another process has locked ({path})")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def claimed(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path`` as ``held``, but never wait.

    Raises SetupError if another process holds it; ``what`` is what that one does.
    """
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        fix = "wait until it has ended"
        raise fail(SetupError, "already-running", f"{what} ({path})", fix=fix) from None
    try:
        yield
    finally:
        lock.release()
