"""Runs pytest in forks of this process, which has the libraries that tests load already."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT

#: Seconds in which nothing ends and nothing wants a processor: the tests wait for what never comes.
STALLED = 120.0
#: Seconds of work, beside those that tests are given, after which one that does not end has failed.
ENDLESS = 60
#: What the fork writes: a test has ended, one has failed (with its id), and all have passed.
_ENDED, _FAILED, _PASSED = ".", "F", "P"
_OURS = ("imagefactory", "support", "mutants")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How tests ended: ``failed`` is the first that did, or where it stalled, if one did.

    A process that ends before pytest does, as through ``os._exit``, has not ``passed`` either, nor
    one that was ended because it stalled. Then no test ``failed``.
    """

    passed: bool
    failed: str = ""


def run(
    copy: Path,
    arguments: Sequence[str],
    env: Mapping[str, str] = {},
    *,
    seconds: float | None = None,
) -> Ran:
    """Run pytest on the tests in ``copy``, importing the factory from there.

    After ``seconds`` of work no further test is begun; those that ran have passed then.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        _child(copy, arguments, env, writing, seconds)
    os.close(writing)
    try:
        said = _said(reading, process)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):  # what tests leave behind, too
            os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
    lines = said.splitlines()
    failed = [line.removeprefix(_FAILED) for line in lines if line.startswith(_FAILED)]
    return Ran(passed=not failed and _PASSED in lines, failed=failed[0] if failed else "")


def _said(reading: int, process: int) -> str:
    """All that the fork says until it ends or stalls.

    How long that takes says nothing: on a busy machine, a test of a second takes minutes.
    """
    text, before = b"", _wanted(process)
    while True:
        if not select.select([reading], [], [], STALLED)[0]:
            now = _wanted(process)
            if abs(now - before) < STALLED / 100:
                break
            before = now
            continue
        part = os.read(reading, 65536)
        text += part
        if not part or text.endswith((f"{_PASSED}\n".encode(), b"end\n")):
            break
    return text.decode(errors="replace")


def _wanted(session: int) -> float:
    """Seconds that the processes of a session have worked, or waited for a processor."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it has ended
            # the name before the last bracket may contain anything
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                worked, waited, _ = (process / "schedstat").read_text().split()
                found += int(worked) + int(waited)
    return found / 1e9


class _Reporter:
    """A plugin of pytest that writes into a pipe how tests end."""

    def __init__(self, pipe: int, seconds: float | None) -> None:
        self._pipe, self._seconds = pipe, seconds

    def say(self, line: str) -> None:
        os.write(self._pipe, f"{line}\n".encode(errors="replace"))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.say(f"{_FAILED}{report.nodeid}" if report.failed else _ENDED)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.say(f"{_FAILED}{report.nodeid}")

    def pytest_runtest_teardown(self, item: Any) -> None:
        used = os.times()
        if self._seconds and used.user + used.children_user > self._seconds:
            item.session.shouldstop = "enough"


def _child(
    copy: Path, arguments: Sequence[str], env: Mapping[str, str], pipe: int, seconds: float | None
) -> None:
    reporter = _Reporter(pipe, seconds)
    try:
        os.setsid()
        if seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + ENDLESS,) * 2)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        os.chdir(copy)
        os.environ.update({**env, "PYTHONPATH": f"{copy}:{copy}/tests"})
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
            del sys.modules[name]
        sys.path[:] = [str(copy), str(copy / "tests"), *(p for p in sys.path if not _is_ours(p))]
        import pytest  # noqa: PLC0415 - see preload

        loaded = "ignore::pytest.PytestAssertRewriteWarning"  # libraries are, by preload
        options = ["-q", "-W", loaded, "-p", "no:cacheprovider", "-p", "no:xdist"]
        code = int(pytest.main([*options, *arguments], plugins=[reporter]))
        if code in (0, int(pytest.ExitCode.INTERRUPTED)):  # stopped after enough seconds
            reporter.say(_PASSED)
    finally:
        with contextlib.suppress(OSError):  # who reads it may have been killed
            reporter.say("end")
        os._exit(0)


def _is_ours(path: str) -> bool:
    return Path(path or ".").resolve().is_relative_to(ROOT) and "site-packages" not in path


def preload() -> None:
    """Load the libraries that tests load, once for all forks."""
    import hypothesis.strategies  # noqa: F401, PLC0415
    import jinja2  # noqa: F401, PLC0415
    import numpy  # noqa: F401, PLC0415, ICN001
    import pydantic  # noqa: F401, PLC0415
    import pytest  # noqa: F401, PLC0415
    import requests  # noqa: F401, PLC0415
    import rich.console  # noqa: F401, PLC0415
    import stamina  # noqa: F401, PLC0415
    import typer  # noqa: F401, PLC0415
    import unidiff  # noqa: F401, PLC0415
    import uv  # noqa: F401, PLC0415
