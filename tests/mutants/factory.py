"""the factory's own code, changed in rooms that decide something, against the unit tests.

COUNT mutants of each room are drawn with SEED, both from the environment; ROOMS names rooms. Each
is tried in a process of its own: a fork of one that has the libraries loaded already runs just the
tests that call the changed function, until one fails. The first run finds out which tests call
what, and notes it. With QUICK=1 nothing is traced: the test files that name the function are run,
each mutant for a few seconds, so that a mutant may survive only for lack of time.

With TESTS, only tests below those folders and files are run: what they miss, others may notice.

What kills a mutant must pass without it: all such tests are run again at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from support import ROOT, forked
from support.code_changes import Change, changed, changes
from support.forked import Ran

from mutants import Mutant

#: The share of mutants of each room that tests must kill; in a few seconds they kill fewer.
GOAL = 0.7 if os.environ.get("QUICK") else 0.85
ROOMS = {
    "matrix": ("matrix",),
    "locking": ("locking",),
    "planning": ("planning",),
    "patching": ("patching",),
    "verifying": ("verifying",),
    "publishing": ("publishing",),
    "building": (
        *("building/bakefile.py", "upkeep/prune.py"),
        *("inbuild/manifest.py", "building/stack/belt.py"),
    ),
}
_GIVEN = [name for name in os.environ.get("TESTS", "").split(",") if name]
TESTS = tuple(_GIVEN) or ("tests/unit", "imagefactory/verifying/checks")
#: Tests of these tests, of the code's form and of the program as a whole say nothing of a decision.
NOT_RUN = (
    *("test_mutation.py", "test_mutation_score.py"),
    *("test_shape.py", "test_engine_is_the_only_one.py", "test_makefile.py", "test_cli.py"),
)
#: Notes of which tests call which functions.
NOTES = ROOT / ".pytest_cache" / "mutants"
#: Of the quick form: test files for each mutant, and seconds that they work.
FILES, SECONDS = 5, 6.0
#: Seconds that all tests of a mutant work; the likeliest to go red come first.
LONG = 20.0
#: Changes without a consequence, and why.
HARMLESS: Mapping[str, str] = {
    "imagefactory/patching/fetched.py: 'commit/{commit}.patch' -> 'commit/{commit}.patch_'": (
        "the file of a page is found again"
    ),
    "imagefactory/locking/indexes.py: 'hashes' -> 'hashes_'": "a slower reader then says the same",
    "imagefactory/locking/indexes.py: 'url' -> 'url_'": "as above",
    "imagefactory/verifying/server.py: 'capitals' -> 'capitals_'": "a name that both sides use",
    "imagefactory/publishing/publishing.py: 200 -> 201": "a bound of what is read, not a result",
    "imagefactory/verifying/outside/inventory.py: 16 -> 17": "how many are kept in memory",
    "imagefactory/verifying/models/dense.py: 4 -> 5": "the factor need only be large enough",
    "imagefactory/patching/cuda_home.py: without '--require-hashes'": "all have one, which uv checks",
    "imagefactory/patching/measure.py: without step.variant": "what was applied has a variant",
    "imagefactory/patching/status.py: without 1": "for a machine that does not know its processors",
    "imagefactory/verifying/check_registry.py: without 'manifest'": "a type, for mypy",
    "imagefactory/verifying/checks/extensions/probe.py: 2000 -> 2001": "how much is shown",
    "imagefactory/verifying/outside/streams.py: 1 -> 2": "any negative size means all",
    "imagefactory/patching/sources.py: without '0'": "files without a version are left out before",
    "imagefactory/publishing/publishing.py: without isinstance(one, Refused)": (
        "without one that is found, all are refused"
    ),
    "imagefactory/publishing/ledger.py: 1 -> 2": "no byte follows the last one; size - 2 is killed",
    "imagefactory/publishing/ledger.py: without path.parent.mkdir(parents=True, exist_ok=True)": (
        "FileLock makes the folder, too"
    ),
    "imagefactory/publishing/moving.py: without self.ledger.parent.mkdir(parents=True, exist_ok=True)": (
        "as above"
    ),
    "imagefactory/publishing/attachments.py: 50 -> 51": "a bound of what is read, not a result",
    "imagefactory/publishing/sbom.py: 1 -> 2": "how it is indented",
    "imagefactory/patching/port.py: 'work.diff' -> 'work.diff_'": "a name that both sides use",
    "imagefactory/locking/refs.py: 20 -> 21": "how many files a lock names",
    "imagefactory/verifying/gpu/probes/triton_kernel.py: without :": (
        "of a vector, [None] is [None, :]; of any other slice it is killed"
    ),
    "imagefactory/patching/reads.py: 'missing' -> 'missing_'": "a word that both sides use",
    "imagefactory/verifying/gpu/probes/gemm.py: 256 -> 257": "products of other sizes do as well",
    "imagefactory/verifying/gpu/probes/triton_kernel.py: 32 -> 33": "100 rows are four tiles, too",
    "imagefactory/matrix/expand.py: 0 -> 1": "an empty group is reported before it is used",
}

Item = TypeVar("Item")
Result = TypeVar("Result")
Calls = dict[str, dict[str, list[int]]]  # test -> file -> first lines of the functions it calls


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A mutant to be tried: a change of the file ``path`` below the repository."""

    room: str
    path: Path
    change: Change

    @property
    def text(self) -> str:
        """The change, for a person."""
        return f"{self.path}:{self.change.line}: {self.change.text}"


def campaign(folder: Path) -> Iterator[Mutant]:
    """Draw mutants of every room, and run the tests of each."""
    count, seed = int(os.environ.get("COUNT", "40")), int(os.environ.get("SEED", "0"))
    rooms = [name for name in os.environ.get("ROOMS", "").split(",") if name] or list(ROOMS)
    forked.preload()
    pristine = _copy(folder / "pristine")  # what is edited meanwhile changes no mutant
    drawn = [one for room in rooms for one in draw(pristine, room, count, seed)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        copies = _Copies(pool, pristine)
        if os.environ.get("QUICK"):
            tests, seconds = _likely(pristine, drawn), SECONDS
        else:
            tests, seconds = _calling(_calls(copies), pristine, drawn), LONG
        work = [(one, names, seconds) for one, names in zip(drawn, tests, strict=True)]
        killers = set[str]()
        for one, ran in zip(drawn, copies.each(_try, work), strict=True):
            killers |= {ran.failed} - {""}
            yield Mutant(
                subject=one.room,
                change=one.text,
                killed=not ran.passed,
                ended=not (ran.passed or ran.failed),
                harmless=HARMLESS.get(f"{one.path}: {one.change.text}", ""),
            )
        _confirm(pristine, killers)


def draw(root: Path, room: str, count: int, seed: int) -> list[Drawn]:
    """The same mutants of a room for the same seed, whatever is drawn of other rooms."""
    chance = random.Random(f"{seed} {room}")  # noqa: S311 - chosen, not secret
    paths = [path for part in ROOMS[room] for path in _modules(root / "imagefactory" / part)]
    every = [
        Drawn(room=room, path=path.relative_to(root), change=change)
        for path in paths
        for change in changes(path)
    ]
    return chance.sample(every, min(count, len(every)))


def _modules(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [one for one in sorted(path.rglob("*.py")) if not one.name.startswith(("test_", "__"))]


def _confirm(copy: Path, tests: Iterable[str]) -> None:
    """Run what killed mutants without any. Raises RuntimeError if one fails: it cannot judge."""
    files = sorted({test for test in tests if "::" not in test})  # could not even be imported
    for arguments in (["--collect-only", *files] if files else [], sorted({*tests} - {*files})):
        ran = forked.run(copy, arguments) if arguments else Ran(passed=True)
        if not ran.passed:
            raise RuntimeError(f"{ran.failed or arguments} fails without a mutant, too")


class _Copies:
    """Copies of the repository that mutants may change: one for each thread of a pool."""

    def __init__(self, pool: ThreadPoolExecutor, pristine: Path) -> None:
        self._pool, self._pristine = pool, pristine
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(pool._max_workers):
            copy = pristine.with_name(str(number))
            subprocess.run(["cp", "-a", str(pristine), str(copy)], check=True)
            self._free.put(copy)

    def each(
        self, function: Callable[[Path, Path, Item], Result], items: Sequence[Item]
    ) -> Iterator[Result]:
        """Call ``function`` with a copy, the original and each item; results in their order."""

        def one(item: Item) -> Result:
            copy = self._free.get()
            try:
                return function(copy, self._pristine, item)
            finally:
                self._free.put(copy)

        return self._pool.map(one, items)


def _copy(folder: Path) -> Path:
    """A copy of what git knows or does not ignore."""
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


def _try(copy: Path, pristine: Path, work: tuple[Drawn, Sequence[str], float | None]) -> Ran:
    """Run tests with one mutant."""
    one, tests, seconds = work
    if not tests:
        return Ran(passed=True)
    target, original = copy / one.path, pristine / one.path
    target.write_text(changed(original, one.change.number), encoding="utf-8")
    later = time.time() + random.random() * 1e6  # noqa: S311 - no two changes have the same date
    os.utime(target, (later, later))  # Python compares dates and sizes with what it has compiled
    try:
        return forked.run(copy, ["-x", *tests], seconds=seconds)
    finally:
        target.write_bytes(original.read_bytes())
        os.utime(target, (later + 1, later + 1))


def _likely(root: Path, drawn: Iterable[Drawn]) -> list[list[str]]:
    """For each mutant, the test files that name its function and module most."""
    texts = {name: (root / name).read_text(encoding="utf-8") for name in _test_files(root)}
    words = {name: set(re.findall(r"\w+", text)) for name, text in texts.items()}
    return [_most_likely(root, one, words) for one in drawn]


def _most_likely(root: Path, one: Drawn, words: Mapping[str, set[str]]) -> list[str]:
    lines = (root / one.path).read_text(encoding="utf-8").splitlines()
    function = re.search(r"def (\w+)", "\n".join(lines[max(0, one.change.function - 1) :]))
    name, stem, folder = function[1] if function else "", one.path.stem, one.path.parent.name

    def likeness(test: str) -> int:
        return (
            4 * (name in words[test] or name.lstrip("_") in words[test])
            + 3 * (stem in words[test])
            + 2 * (folder in Path(test).parts)
            + 3 * (stem in Path(test).stem or Path(test).parent == one.path.parent)
        )

    found = sorted(words, key=likeness, reverse=True)[:FILES]
    return [test for test in found if likeness(test) > 2]


def _test_files(root: Path) -> list[str]:
    found = [path for tests in TESTS for path in _tests_below(root / tests)]
    return [str(path.relative_to(root)) for path in found if path.name not in NOT_RUN]


def _tests_below(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def _calling(calls: Calls, root: Path, drawn: Iterable[Drawn]) -> list[list[str]]:
    """For each mutant, the tests that call its function, or any of its module's."""
    return [_tests_of(one, root, calls) for one in drawn]


def _tests_of(one: Drawn, root: Path, calls: Calls) -> list[str]:
    name, stem = str(one.path), one.path.stem
    found = [test for test, files in calls.items() if one.change.function in files.get(name, ())]
    if not found:  # what is outside of functions is run by whatever imports the module
        found = [test for test, files in calls.items() if name in files]
    files = {test.partition("::")[0] for test in found}  # a fixture may call it for all tests
    found += [test for test in calls if test.partition("::")[0] in files]
    if not one.change.function:  # nor is a constant's use seen as a call
        users = _users(root, stem)
        found += [test for test in calls if test.partition("::")[0] in users]
    # a probe runs as a program, where no call is seen
    found += [test for test in calls if Path(test.partition("::")[0]).parent == one.path.parent]
    if one.path.parent.name == "inbuild":  # as above
        found += [test for test in calls if f"inbuild/test_{stem}" in test]
    if not found:  # as above: what starts it names it
        users = _users(root, stem)
        found = [test for test, files in calls.items() if users & {test.partition("::")[0], *files}]

    def likeness(test: str) -> tuple[bool, bool, int]:
        # the module's own tests are the likeliest to go red, and what calls little is fast
        called = sum(map(len, calls[test].values()))
        return stem not in test, one.path.parent.name not in test, called

    return sorted(dict.fromkeys(found), key=likeness)


@cache
def _users(root: Path, stem: str) -> frozenset[str]:
    """The modules and the files of tests that import the module ``stem``."""
    names = re.compile(
        rf"^from imagefactory(\S*\.{stem} import |\S* import .*\b{stem}\b)", re.MULTILINE
    )
    paths = [*(root / "imagefactory").rglob("*.py"), *(root / "tests").rglob("test_*.py")]
    users = [path for path in paths if names.search(path.read_text(encoding="utf-8"))]
    return frozenset(str(path.relative_to(root)) for path in users)


def _calls(copies: _Copies) -> Calls:
    """What each passing test calls."""
    files = _test_files(ROOT)
    found: Calls = {}
    for calls in copies.each(_calls_of, files):
        found |= calls
    return found


def _calls_of(copy: Path, pristine: Path, name: str) -> Calls:
    """What the passing tests of one file call, from a note if nothing has changed since."""
    content = hashlib.sha256((pristine / name).read_bytes() + _sources(pristine))
    note = NOTES / f"{content.hexdigest()}.json"
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_suffix(f".{os.getpid()}-{copy.name}")
        forked.run(copy, [name, "-p", "support.called"], {"CALLED": str(partial)})
        if not partial.exists():
            raise RuntimeError(f"{name} cannot be run")
        partial.replace(note)
    found: Calls = json.loads(note.read_text())
    return found


@cache
def _sources(root: Path) -> bytes:
    paths = sorted((root / "imagefactory").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).digest()
