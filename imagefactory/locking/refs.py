"""Locks git refs of vLLM, whose Python is put on the binaries of a wheel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from imagefactory.errors import CheckFailedError, InputError, Problem, fail
from imagefactory.locking import clone, closure, gitref, tree_archives
from imagefactory.locking.clone import Clone
from imagefactory.locking.failures import Failures
from imagefactory.locking.lock import Lock, Resolution
from imagefactory.locking.locked_sources import LockedPull, LockedRef, LockedSource
from imagefactory.locking.tags import BUILT
from imagefactory.matrix.cell import Cell, VllmRef, request_of
from imagefactory.settings import Settings
from imagefactory.system import ui

#: What vLLM's compiled parts are made from.
COMPILED = ("CMakeLists.txt", "cmake", "csrc", "rust", "rust-toolchain.toml")
#: What vLLM's setup reads the requirements of its wheel for CUDA from.
REQUIREMENTS = "requirements/cuda.txt"
#: The code of a ref that cannot have the binaries of its base.
REFUSED = "ref-refused"
#: Files that are recorded, and those that a message names.
RECORDED, NAMED = 20, 3
_COMMIT = re.compile(r"(?:^|\.)g([0-9a-f]{7,40})(?:\.|$)")


def lock_ref(wanted: VllmRef, settings: Settings) -> LockedRef:
    """What ``wanted`` is now, and how it compares with its base.

    Raises SetupError if the repository does not have it, CheckFailedError for a pull request that
    conflicts, and InputError for a ref that is its base.
    """
    repository, numbers = wanted.repository, wanted.prs
    with ui.step(f"fetching {wanted}"), clone.opened(repository, settings) as own:
        commit = gitref.commit_of(repository, wanted.ref)
        main = gitref.default_of(repository) if numbers else commit
        tips = {number: gitref.head_of(repository, number) for number in numbers}
        own.fetch(list(dict.fromkeys([commit, main, *tips.values()])))
        pulls = [_pull(own, n, tip, (commit, main), wanted) for n, tip in tips.items()]
        base = _base(own, wanted)
        if commit == base and not pulls:
            what, fix = f"{wanted} is {wanted.base} itself", f'write vllm: "{wanted.base}"'
            raise fail(InputError, "ref-is-base", what, where=str(wanted.location), fix=fix)
        version = _version(own, wanted, commit)
        ranges = [pull.range for pull in pulls]
        merged = own.merged(commit, [(f"pull request {p.number}", p.range) for p in pulls])
        if pulls and not own.differing(commit, merged):
            ui.warn(f"{wanted.location}: the pull requests change nothing in {wanted.ref}")
        new = _requirements(own, merged, wanted)
        return LockedRef(
            repository=repository,
            ref=wanted.ref,
            base=wanted.base,
            commit=commit,
            pulls=tuple(pulls),
            version=version,
            base_commit=base,
            differs=tuple(own.differing(base, merged, COMPILED)[:RECORDED]),
            requires=tuple(sorted(new - _requirements(own, base, wanted))),
            source=_source(own, wanted, version, merged, [commit, *ranges], settings),
        )


def _pull(own: Clone, number: int, tip: str, others: Iterable[str], wanted: VllmRef) -> LockedPull:
    base = own.fork(tip, others)
    if base is None:
        what = f"pull request {number} has no commits that {wanted.ref} or the main branch lacks"
        fix = f"remove it from `prs`, or name a ref that has it: {tip}"
        raise fail(CheckFailedError, "pr-merged", what, where=str(wanted.location), fix=fix)
    return LockedPull(number=number, base=base, commit=tip)


def _source(
    own: Clone,
    wanted: VllmRef,
    version: str,
    merged: str,
    commits: Sequence[str],
    settings: Settings,
) -> LockedSource:
    def pack(archive: Path) -> None:
        if len(commits) > 1:
            own.pack(merged, archive)
        else:
            gitref.pack(wanted.repository, merged, archive)

    return tree_archives.lock(
        BUILT,
        version,
        filename=f"{BUILT}-{merged[:12]}.tar",
        address=f"{wanted.repository}@{'+'.join(commits)}",
        pack=pack,
        settings=settings,
    )


def _base(own: Clone, wanted: VllmRef) -> str:
    """The commit that the base was built from: that of its tag, or the one that it names."""
    named = _COMMIT.search(Version(wanted.base).local or "")
    found = own.commit(named[1] if named else f"refs/tags/v{Version(wanted.base).public}")
    if found is None:
        sought = f"commit {named[1]}" if named else f"tag v{Version(wanted.base).public}"
        what = f"{wanted.repository} has no {sought}, which {wanted.base} would be built from"
        fix = "write a `base` that is built from this repository"
        raise fail(InputError, "ref-base", what, where=str(wanted.location), fix=fix)
    return found


def _version(own: Clone, wanted: VllmRef, commit: str) -> str:
    """The version of ``commit``, as setuptools-scm would count it, with the pull requests."""
    found = own.described(commit)
    local = ".".join([f"g{commit[:9]}", *(f"pr{number}" for number in wanted.prs)])
    try:
        tag, count = found or ("", 0)
        last = Version(tag)
        if not count:
            return str(Version(f"{last.public}+{local}"))
        bumped = re.sub(r"\d+$", lambda number: str(int(number[0]) + 1), last.public)
        return str(Version(f"{bumped}.dev{count}+{local}"))
    except InvalidVersion:
        what = f"{wanted} has no tag of a release (v1.2.3) in its history, so it has no version"
        fix = "push upstream's tags to the repository, or name another one"
        raise fail(InputError, "ref-no-tag", what, where=str(wanted.location), fix=fix) from None


def _requirements(
    own: Clone, commit: str, wanted: VllmRef, path: str = REQUIREMENTS
) -> frozenset[str]:
    """What the wheel for CUDA requires according to ``commit``, in a normal form."""
    text = own.text(commit, path)
    if text is None:
        what = f"{wanted}: commit {commit[:12]} has no {path}, which says what vLLM requires"
        fix = "write a ref and a `base` of vLLM 0.7 or newer"
        raise fail(InputError, "ref-requirements", what, where=str(wanted.location), fix=fix)
    found = set[str]()
    for line in (line.partition(" #")[0].strip() for line in text.splitlines()):
        other = re.fullmatch(r"-r\s*(\S+)", line)
        if other:
            beside = str(PurePosixPath(path).parent / other[1])
            found |= _requirements(own, commit, wanted, beside)
        elif line and not line.startswith(("#", "-")):
            found.add(normal(line))
    return frozenset(found)


def normal(line: str) -> str:
    """A requirement as two files can be compared by it."""
    try:
        return str(Requirement(line))
    except InvalidRequirement:
        return line


def renewed(
    lock: Lock | None,
    cells: Sequence[Cell],
    resolutions: Sequence[Resolution],
    settings: Settings,
    failures: Failures,
    *,
    upgrade: bool,
) -> tuple[LockedRef, ...]:
    """What is locked for the refs of ``cells``; with ``upgrade``, where they are now.

    A ref that one of its cells cannot have stays where it was.
    """
    users: dict[VllmRef, list[Cell]] = {}
    for cell in cells:
        if cell.ref:
            users.setdefault(replace(cell.ref, commit=""), []).append(cell)
    found: dict[LockedRef, None] = {}
    for wanted, own in users.items():
        old = lock.ref(wanted) if lock else None
        locked = old
        if old is None or upgrade:
            with failures.of(wanted.words, own, kept=old is not None):
                new = lock_ref(wanted, settings)
                _accept(new, own, resolutions)
                locked = new
        if locked:
            found[locked] = None
    return tuple(sorted(found, key=lambda one: (one.name, one.base)))


def _accept(new: LockedRef, users: Sequence[Cell], resolutions: Sequence[Resolution]) -> None:
    """Raise CheckFailedError if one of ``users`` cannot have ``new``."""
    found = dict[Problem, None]()
    for cell in users:
        request = request_of(cell)
        resolution = next((one for one in resolutions if one.answers(request)), None)
        if resolution:
            found |= dict.fromkeys(problems(cell, new, resolution))
    if found:
        raise CheckFailedError(found)
    if new.differs:
        ui.warn(
            f"{new.name} has other compiled sources than {new.base} ({_named(new.differs)}): what "
            "is not in `extensions` is from the wheel of that version"
        )


def problems(cell: Cell, locked: LockedRef, resolution: Resolution) -> Iterator[Problem]:
    """Why ``cell`` cannot have the Python of ``locked`` on the binaries of its resolution."""
    build, where = cell.build, str(cell.locations["vllm"])
    official = resolution.wheel(BUILT)
    if official is None or Version(official.version) != Version(locked.base):
        what = f"the base of {locked.name} is {locked.base}, but the cell's wheel of vllm is " + (
            official.version if official else "missing"
        )
        fix = "let `base` be the version that the flavor's requirement for vllm gives"
        yield Problem(code=REFUSED, where=where, what=what, fix=fix)
    if locked.differs and not (build and build.compiles):
        what = (
            f"{locked.name} is not only Python since {locked.base}: it changes "
            f"{_named(locked.differs)}, and the binaries of {locked.base} lack that"
        )
        fix = "name a newer `base`, such as a nightly wheel, or an older ref"
        yield Problem(code=REFUSED, where=where, what=what, fix=fix)
    for lack in closure.unmet(locked.name, locked.requires, resolution):
        what = f"{lack} (requirements of {resolution.name})"
        words = cell.named["vllm"]
        fix = f"name a newer `base`, or require it with an override for `when: {{vllm: {words}}}`"
        yield Problem(code=REFUSED, where=where, what=what, fix=fix)


def _named(files: Sequence[str]) -> str:
    more = "" if len(files) <= NAMED else ", …"
    return ", ".join(files[:NAMED]) + more


def bound(cell: Cell, lock: Lock | None) -> Cell:
    """``cell`` with the version and commit that are locked for its ref; as it is without a ref."""
    locked = lock.ref(cell.ref) if lock and cell.ref else None
    if locked is None or cell.ref is None:
        return cell
    ref = replace(cell.ref, commit=locked.commit)
    return replace(cell, axes={**cell.axes, "vllm": locked.version}, ref=ref)


def uncovered(lock: Lock, cells: Sequence[Cell]) -> Iterator[Problem]:
    """A problem for each ref that is not locked, or refused, or locked but not in the matrix."""
    wanted = [cell.ref for cell in cells if cell.ref]
    for ref in dict.fromkeys(wanted):
        if lock.ref(ref) is None:
            yield not_locked(ref)
    for cell in cells:
        found, resolution = cell.ref and lock.ref(cell.ref), lock.find(request_of(cell))
        if found and resolution:
            yield from problems(cell, found, resolution)
    for locked in lock.refs:
        if not any(locked.answers(ref) for ref in wanted):
            what = f"the ref {locked.name} is no longer used by any cell"
            fix = "imagefactory lock"
            yield Problem(code="lock-dead", where="wheels.lock", what=what, fix=fix)


def not_locked(ref: VllmRef) -> Problem:
    """That the lock has no commit for ``ref``."""
    return Problem(
        code="lock-uncovered",
        where=str(ref.location),
        what=f"wheels.lock has no commit for {ref} on {ref.base}",
        fix="imagefactory lock",
    )
