"""Child processes that do not outlive this one, and whose output is bounded."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

#: Bytes that are read or written at once; a pipe takes so many without blocking.
_CHUNK = 65536
_WRITE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a program wrote; ``cut`` if it wrote too much, and was ended for it."""

    out: bytes
    err: bytes
    cut: bool


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start ``argv``; from the main thread in a process group of its own.

    A Ctrl-C at the terminal does not reach that group: it raises KeyboardInterrupt in the main
    thread, which ends the program in its own way. It does reach what other threads started, since
    they are not interrupted and would wait for the program.

    Linux sends the program SIGTERM when the thread that started it ends, so it does not outlive a
    factory that was killed; that thread has to wait for it. Raises FileNotFoundError if the program
    does not exist.
    """
    if shutil.which(argv[0], path=env.get("PATH")) is None:
        raise FileNotFoundError(argv[0])
    return subprocess.Popen(
        [*_leash(), *argv],
        env=dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=threading.current_thread() is threading.main_thread(),
    )


@cache
def _leash() -> tuple[str, ...]:
    """The words before a command line that bind its life to ours; none where that is impossible.

    A program and no ``preexec_fn``, which may deadlock in a process with threads. Alpine's setpriv
    lacks the option, so it is tried.
    """
    program = shutil.which("setpriv")
    if program is None:
        return ()
    words = (program, "--pdeathsig", "TERM", "--")
    tried = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if tried.returncode == 0 else ()


def exchange(
    process: subprocess.Popen[bytes],
    *,
    stdin: bytes = b"",
    timeout: float | None = None,
    most: int | None = None,
) -> Output:
    """Feed ``stdin`` to ``process``, read its pipes to their end and wait for it.

    A program that writes more than ``most`` bytes into one pipe is ended. Raises
    subprocess.TimeoutExpired after ``timeout`` seconds; the process is the caller's to end then.
    """
    until = None if timeout is None else time.monotonic() + timeout
    wrote = {pipe: bytearray() for pipe in (process.stdout, process.stderr) if pipe}
    left = memoryview(stdin)
    with selectors.DefaultSelector() as waiting:
        for pipe in wrote:
            waiting.register(pipe, selectors.EVENT_READ)
        if process.stdin:
            waiting.register(process.stdin, selectors.EVENT_WRITE)
        while waiting.get_map():
            for key, _ in waiting.select(_seconds_until(until, process)):
                if key.fileobj is process.stdin:
                    left = _write(process.stdin, left)
                    done = not left
                else:
                    data = os.read(key.fd, _CHUNK)
                    done = not data
                    buffer = wrote[key.fileobj]  # type: ignore[index]
                    buffer += data
                    if most is not None and len(buffer) > most:
                        end(process)
                        return _output(process, wrote, most, cut=True)
                if done:
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    process.wait(_seconds_until(until, process))
    return _output(process, wrote, most, cut=False)


def _seconds_until(until: float | None, process: subprocess.Popen[bytes]) -> float | None:
    if until is None:
        return None
    left = until - time.monotonic()
    if left <= 0:
        raise subprocess.TimeoutExpired(process.args, 0)
    return left


def _write(pipe: IO[bytes], data: memoryview) -> memoryview:
    """Write a part of ``data``; returns the rest, which is empty if nobody reads."""
    try:
        return data[os.write(pipe.fileno(), data[:_WRITE]) :] if data else data
    except BrokenPipeError:
        return data[:0]


def _output(
    process: subprocess.Popen[bytes],
    wrote: Mapping[IO[bytes], bytearray],
    most: int | None,
    *,
    cut: bool,
) -> Output:
    out, err = (
        bytes(wrote[pipe][:most]) if pipe else b"" for pipe in (process.stdout, process.stderr)
    )
    return Output(out=out, err=err, cut=cut)


def end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill ``process``, with its group if it has its own, unless it has ended; close its pipes."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with suppress(OSError):
                pipe.close()


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for a number without a name."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
