"""Bad inputs: files, arguments and variables that must be refused, in one line with a fix."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from support import bad_inputs, projects
from support.bad_inputs import Bad

from faults import Outcome
from imagefactory import cli
from imagefactory.system import shell, ui
from imagefactory.system.commandline import CommandLog

#: Seconds of work, and of waiting, that an answer may take; other programs use the machine, too.
LIMIT, WAIT = 5.0, 10.0
_WHERE = re.compile(r"[^:]+:\d+: |environment: |wheels\.lock: ")


def attack(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Give ``count`` bad inputs to the command line; each must be refused."""
    chance = random.Random(seed)  # noqa: S311 - a seeded choice
    good = folder / "good"
    good.mkdir()
    projects.write(good)
    project, home = folder / "project", folder / "home"
    for argv in (bad_inputs.CHECK, bad_inputs.RENDER):
        yield _judged(Bad(what=f"the good project: {argv}", argv=argv), good, home, codes=(0,))
    for number in range(count):
        shutil.rmtree(project, ignore_errors=True)
        shutil.copytree(good, project)
        bad = bad_inputs.one(chance, number, project)
        yield _judged(bad, project, home)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended in this process: its code, or the exception that nothing caught."""

    code: object
    out: str
    err: str
    seconds: float


class TooLongError(BaseException):
    """The watchdog's; nothing catches it."""


def _judged(bad: Bad, project: Path, home: Path, codes: tuple[int, ...] = (1, 2, 3)) -> Outcome:
    ended = called(bad, project, home)
    detail = ""
    if isinstance(ended.code, BaseException):
        detail = f"{type(ended.code).__name__}: {ended.code}"
    elif ended.code not in codes:
        detail = f"accepted: exit {ended.code}" if not ended.code else f"exit {ended.code}"
        detail += f" {ended.err[-300:]}"
    elif ended.seconds > LIMIT:
        detail = f"took {ended.seconds:.1f} s"
    elif ended.code != 0:
        detail = _unclear(ended.err, bad)
    return Outcome(fault=bad.what, held=not detail, detail=detail)


def _unclear(text: str, bad: Bad) -> str:
    """What an error message lacks; empty for a clear one."""
    lines = text.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    if "Traceback" in text or not errors:
        return f"no clear error: {text[-300:]}"
    if not any(line.startswith("  fix: ") for line in lines):
        return f"no fix: {errors[0]}"
    if bad.placed and not any(_WHERE.match(line.removeprefix("error: ")) for line in errors):
        return f"no file and line: {errors[0]}"
    unsafe = next((char for char in text if not char.isprintable() and char not in "\n\t"), "")
    return f"prints U+{ord(unsafe):04X}" if unsafe else ""


def called(bad: Bad, project: Path, home: Path) -> Ended:
    """Run the command of ``bad`` in this process, with a watchdog."""
    if bad.program is not None:
        return _ran(bad.program)
    out, err = io.StringIO(), io.StringIO()
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_", "XDG_"))},
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "DOCKER_HOST": "unix:///nonexistent/docker.sock",
        "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
        "UV_HTTP_RETRIES": "0",
        **bad.environ,
    }
    before = Path.cwd(), dict(os.environ), sys.argv, shell.LOG
    signal.signal(signal.SIGALRM, _give_up)
    began = time.process_time()
    try:
        os.chdir(project)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = ["imagefactory", *bad.argv]
        shell.LOG = CommandLog()
        ui._results.clear()
        signal.setitimer(signal.ITIMER_REAL, WAIT)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _code(cli.main)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(before[0])
        os.environ.clear()
        os.environ.update(before[1])
        sys.argv = before[2]
        shell.LOG = before[3]  # ours would be written again, after its folder was removed
    return Ended(
        code=code, out=out.getvalue(), err=err.getvalue(), seconds=time.process_time() - began
    )


def _ran(program: Callable[[], tuple[int, str]]) -> Ended:
    began = os.times()
    code, text = program()
    ended = os.times()
    seconds = ended.children_user + ended.children_system
    seconds -= began.children_user + began.children_system
    return Ended(code=code, out="", err=text, seconds=seconds)


def _code(main: Callable[[], None]) -> object:
    try:
        main()
    except SystemExit as end:
        return end.code
    except (Exception, TooLongError) as error:  # noqa: BLE001 - this is what is looked for
        return error
    return 0


def _give_up(*_: object) -> None:
    raise TooLongError(f"still running after {WAIT:g} s")
