"""The one gateway to other programs.

It shows what it runs and turns a missing program into a clear error.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.system import ui


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A finished program: its command line, exit code and what it wrote."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """Whether it exited 0."""
        return self.code == 0


def show(argv: Sequence[str]) -> str:
    """``argv`` as a line that can be pasted into a shell."""
    return shlex.join(argv)


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    quiet: bool = False,
    join: bool = False,
) -> Completed:
    """Run ``argv`` to its end and return what it wrote; the exit code is the caller's to judge.

    ``env`` is added to this process's environment. ``quiet`` leaves the command out of the progress
    lines (for look-ups that happen often); ``join`` puts standard error into ``out``, in order.
    Raises SetupError if the program does not exist or does not end within ``timeout`` seconds.
    """
    if not quiet:
        ui.command(show(argv))
    try:
        done = subprocess.run(
            list(argv),
            env={**os.environ, **(env or {})},
            cwd=cwd,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if join else subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise _missing(argv[0]) from None
    except subprocess.TimeoutExpired:
        raise fail(
            SetupError,
            "command-timeout",
            f"no end after {timeout:.0f} s: {show(argv)}",
            fix="run it by hand to see why",
        ) from None
    return Completed(argv=tuple(argv), code=done.returncode, out=done.stdout, err=done.stderr or "")


@contextmanager
def stream(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run ``argv`` with its output as text lines on ``process.stdout`` (standard error joined in).

    On any way out the program is gone: it is asked to stop (SIGINT, which BuildKit's clients answer
    by cancelling the build), then, ten seconds later, killed.
    """
    ui.command(show(argv))
    try:
        process = subprocess.Popen(
            list(argv),
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        raise _missing(argv[0]) from None
    try:
        yield process
    finally:
        stop(process)


@contextmanager
def pipe(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[IO[bytes]]:
    """Run ``argv`` with its output as a stream of bytes; ``env`` is as for ``run``.

    Raises SetupError if it fails while it is read to the end.
    """
    ui.command(show(argv))
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                list(argv),
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
            )
        except FileNotFoundError:
            raise _missing(argv[0]) from None
        with process:
            try:
                yield _readable(process.stdout)
                while _readable(process.stdout).read(
                    1 << 20
                ):  # what comes after the part that the reader wanted
                    pass
            except BaseException:
                process.kill()
                raise
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

    The process is the caller's to end; ``env`` is as for ``run``.
    """
    try:
        return subprocess.Popen(
            list(argv),
            env={**os.environ, **(env or {})},
            stdin=connection,
            stdout=connection,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise _missing(argv[0]) from None


def _readable(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("the process was started without a pipe")
    return stream


def stop(process: subprocess.Popen[str], grace: float = 10.0) -> None:
    """End ``process`` and close its pipe; nothing happens to one that has ended."""
    if process.poll() is None:
        process.send_signal(2)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    pipe: IO[str] | None = process.stdout
    if pipe is not None:
        pipe.close()


def _missing(program: str) -> FactoryError:
    return fail(
        SetupError,
        "program-missing",
        f"{program} is not on this machine",
        fix="imagefactory doctor",
    )
