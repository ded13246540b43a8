"""The one gateway to other programs.

It shows what it runs in short, logs it in full, and turns a missing program into a clear error.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.system import processes, ui
from imagefactory.system.commandline import CommandLog, short, show

__all__ = ["LOG", "Completed", "pipe", "run", "show", "stop", "stream"]

#: The log of commands; ``cli.main`` opens it, for where it is depends on the environment.
LOG = CommandLog()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A finished program: its command line, exit code and what it wrote.

    The code is negative if a signal ended it. ``cut`` is whether it wrote more than was allowed,
    and was ended for it.
    """

    argv: tuple[str, ...]
    code: int
    out: str
    err: str
    cut: bool = False

    @property
    def ok(self) -> bool:
        """Whether it exited 0."""
        return self.code == 0


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    quiet: bool = False,
    join: bool = False,
    most: int | None = None,
) -> Completed:
    """Run ``argv`` to its end and return what it wrote; the caller judges the exit code.

    ``env`` is added to this process's environment. ``quiet`` leaves the command out of the progress
    lines (for look-ups that happen often), not out of the log; ``join`` puts standard error into
    ``out``, in order; a program that writes more than ``most`` bytes is ended. However the call
    ends, the program and what it started in its process group have ended. Raises SetupError if the
    program does not exist or does not end within ``timeout`` seconds.
    """
    if not quiet:
        ui.command(short(argv))
    LOG.write(argv)
    began = time.monotonic()
    process = _start(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stderr=subprocess.STDOUT if join else subprocess.PIPE,
    )
    try:
        said = processes.exchange(process, stdin=(stdin or "").encode(), timeout=timeout, most=most)
    except subprocess.TimeoutExpired:
        raise fail(
            SetupError,
            "command-timeout",
            f"did not end within {timeout:.0f} s: {show(argv)}",
            fix="run it by hand to see why",
        ) from None
    finally:
        processes.end(process)
    _log_end(argv, process.returncode, began)
    return Completed(
        argv=tuple(argv),
        code=process.returncode,
        out=_text(said.out),
        err=_text(said.err),
        cut=said.cut,
    )


@contextmanager
def stream(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    quiet: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Run ``argv`` with its output as text lines on ``process.stdout`` (standard error joined in).

    However the block ends, the program ends too: it gets SIGINT (BuildKit's clients then cancel the
    build) and, ten seconds later, SIGKILL. ``quiet`` is as for ``run``. Raises SetupError if the
    program does not exist.
    """
    if not quiet:
        ui.command(short(argv))
    LOG.write(argv)
    began = time.monotonic()
    process = _start(argv, env=env, cwd=cwd, stderr=subprocess.STDOUT)
    lines = cast("subprocess.Popen[str]", process)
    lines.stdout = io.TextIOWrapper(_readable(process.stdout), "utf-8", "replace")
    try:
        yield lines
    finally:
        stop(process)
        _log_end(argv, process.returncode, began)


@contextmanager
def pipe(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[IO[bytes]]:
    """Run ``argv`` with its output as a stream of bytes; ``env`` is as for ``run``.

    Raises SetupError if it does not exist, or fails while it is read to the end.
    """
    ui.command(short(argv))
    LOG.write(argv)
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = _start(argv, env=env, stderr=said)
        try:
            yield _readable(process.stdout)
            while _readable(process.stdout).read(1 << 20):
                pass  # what comes after the part that the reader wanted
            process.wait()
        finally:
            processes.end(process)
        _log_end(argv, process.returncode, began)
        if process.returncode:
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
            raise fail(
                SetupError,
                "command-failed",
                f"{show(argv)}: {text}",
                fix="run it by hand to see why",
            )


def attach(
    argv: Sequence[str], connection: int, *, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Run ``argv`` in the background with a file descriptor as its standard input and output.

    The process is the caller's to end, from the same thread; ``env`` is as for ``run``.
    """
    return _start(argv, env=env, stdin=connection, stdout=connection, stderr=subprocess.DEVNULL)


def _start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int | IO[bytes],
) -> subprocess.Popen[bytes]:
    try:
        return processes.start(
            argv,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    except FileNotFoundError:
        raise _missing(argv[0]) from None


def _text(data: bytes) -> str:
    """Text with the line ends that Python's text streams give."""
    return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _readable(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("the process was started without a pipe")
    return stream


def stop(process: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """End ``process``, if it has not ended, and close its pipe."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    processes.end(process)


def _log_end(argv: Sequence[str], code: int | None, began: float) -> None:
    LOG.write(argv, f"exit {code} after {time.monotonic() - began:.1f} s")


def _missing(program: str) -> FactoryError:
    return fail(
        SetupError,
        "program-missing",
        f"{program} is not on this machine",
        fix="imagefactory doctor",
    )
