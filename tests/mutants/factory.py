"""the factory's own code, changed in rooms that decide something, against the unit tests.

COUNT mutants of each room are drawn with SEED, both from the environment. Each is tried in a
process of its own: a fork of one that has the libraries loaded already runs just the tests that
call the changed function. The first run finds out which tests call what, and notes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from support import ROOT
from support.code_changes import Change, changed, changes

from mutants import Mutant

#: The share of mutants that tests must kill.
GOAL = 0.85
ROOMS = {
    "matrix": ("matrix",),
    "locking": ("locking",),
    "planning": ("planning",),
    "patching": ("patching",),
    "verifying": ("verifying",),
    "publishing": ("publishing",),
    "building, upkeep, inbuild": (
        *("building/bakefile.py", "upkeep/prune.py"),
        *("inbuild/manifest.py", "inbuild/belt.py"),
    ),
}
TESTS = ("tests/unit", "imagefactory/verifying/checks")
#: Tests of the code's form and of the program as a whole say nothing of a decision.
NOT_RUN = ("test_shape.py", "test_engine_is_the_only_one.py", "test_makefile.py", "test_cli.py")
#: Notes of which tests call which functions.
NOTES = ROOT / ".pytest_cache" / "mutants"
#: Seconds after which a mutant counts as killed: it never ends.
LONGEST = 120
#: Changes without a consequence, and why.
HARMLESS: Mapping[str, str] = {}

Calls = dict[str, dict[str, list[int]]]  # test -> file -> first lines of the functions it calls


def campaign(folder: Path) -> Iterator[Mutant]:
    """Draw mutants of every room, and run the tests of each."""
    count, seed = int(os.environ.get("COUNT", "40")), int(os.environ.get("SEED", "0"))
    free: SimpleQueue[Path] = SimpleQueue()
    copies = [_copy(folder / str(number)) for number in range(os.cpu_count() or 1)]
    with ThreadPoolExecutor(len(copies)) as pool:
        for one in copies:
            free.put(one)
        files = [name for tests in TESTS for name in _test_files(ROOT / tests)]

        calls: Calls = {}

        def look_at(name: str) -> Calls:
            with _taken(free) as copy:
                return _calls(copy, name)

        def judge(one: tuple[str, Path, Change]) -> bool:
            with _taken(free) as copy:
                return _is_killed(copy, one[1], one[2], calls)

        for found in pool.map(look_at, files):
            calls |= found
        drawn = list(_drawn(count, seed))
        killed = pool.map(judge, drawn)
        for (room, path, change), dead in zip(drawn, killed, strict=True):
            text = f"{path.relative_to(ROOT)}:{change.line}: {change.text}"
            yield Mutant(
                subject=room, change=text, killed=dead, harmless=HARMLESS.get(change.text, "")
            )


@contextmanager
def _taken(free: SimpleQueue[Path]) -> Iterator[Path]:
    copy = free.get()
    try:
        yield copy
    finally:
        free.put(copy)


def _drawn(count: int, seed: int) -> Iterator[tuple[str, Path, Change]]:
    for room, parts in ROOMS.items():
        chosen = random.Random(f"{seed} {room}")  # noqa: S311 - the same draw for the same seed
        paths = [path for part in parts for path in _modules(ROOT / "imagefactory" / part)]
        every = [(room, path, change) for path in paths for change in changes(path)]
        yield from chosen.sample(every, min(count, len(every)))


def _modules(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [one for one in sorted(path.rglob("*.py")) if not one.name.startswith(("test_", "__"))]


def _test_files(folder: Path) -> list[str]:
    found = sorted(folder.rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in found if path.name not in NOT_RUN]


def _copy(folder: Path) -> Path:
    """A copy of what git knows or does not ignore, which a mutant may change."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    folder.mkdir()
    subprocess.run(
        ["cp", "--parents", "-a", *filter(None, names.decode().split("\0")), str(folder)],
        cwd=ROOT,
        check=False,  # a file that was deleted is still known to git
        stderr=subprocess.DEVNULL,
    )
    return folder


def _calls(copy: Path, name: str) -> Calls:
    """What the passing tests of one file call, from a note if nothing has changed since."""
    content = hashlib.sha256((ROOT / name).read_bytes() + _sources())
    note = NOTES / f"{content.hexdigest()}.json"
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_suffix(f".{os.getpid()}-{copy.name}")
        ended = _run(copy, [name, "-p", "support.called"], {"CALLED": str(partial)})
        if not partial.exists():
            raise RuntimeError(f"{name} cannot be run: exit {ended}")
        partial.replace(note)
    found: Calls = json.loads(note.read_text())
    return found


@cache
def _sources() -> bytes:
    paths = sorted((ROOT / "imagefactory").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).digest()


def _is_killed(copy: Path, path: Path, change: Change, calls: Calls) -> bool:
    """Whether a test goes red of those that call the function, or any of the module's."""
    name = str(path.relative_to(ROOT))
    calling = [test for test, files in calls.items() if change.function in files.get(name, ())]
    if not calling:  # what is outside of functions is run by whatever imports the module
        calling = [test for test, files in calls.items() if name in files]
    if path.parent.name == "inbuild":  # runs as a program, where no call is seen
        calling += [test for test in calls if f"inbuild/test_{path.stem}" in test]
    # the module's own tests are the likeliest to go red
    calling.sort(key=lambda test: (path.stem not in test, path.parent.name not in test))
    target = copy / name
    target.write_text(changed(path, change.number), encoding="utf-8")
    later = time.time() + random.random() * 1e6  # noqa: S311 - no two changes have the same date
    os.utime(target, (later, later))  # Python compares dates and sizes with what it has compiled
    try:
        return bool(calling) and _run(copy, ["-x", *dict.fromkeys(calling)]) != 0
    finally:
        target.write_bytes(path.read_bytes())
        os.utime(target, (later + 1, later + 1))


def _run(copy: Path, arguments: list[str], env: Mapping[str, str] = {}) -> int:
    """Run pytest in a fork that imports the factory from ``copy``; its exit code."""
    process = os.fork()
    if process == 0:
        _child(copy, arguments, env)
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return -1


def _child(copy: Path, arguments: list[str], env: Mapping[str, str]) -> None:
    code = 70
    try:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        os.chdir(copy)
        os.environ.update({**env, "PYTHONPATH": f"{copy}:{copy}/tests"})
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        ours = ("imagefactory", "support", "mutants")
        for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
            del sys.modules[name]
        sys.path[:] = [str(copy), str(copy / "tests"), *(p for p in sys.path if not _is_ours(p))]
        loaded = "ignore::pytest.PytestAssertRewriteWarning"  # libraries are, by _preload
        code = _pytest(["-q", "-W", loaded, "-p", "no:cacheprovider", "-p", "no:xdist", *arguments])
    finally:
        os._exit(code)


def _is_ours(path: str) -> bool:
    return Path(path or ".").resolve().is_relative_to(ROOT) and "site-packages" not in path


def _pytest(arguments: list[str]) -> int:
    import pytest  # noqa: PLC0415 - see _preload

    return int(pytest.main(arguments))


def _preload() -> None:
    """Load the libraries that tests load, once for all mutants."""
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


_preload()
