"""Whether locked wheels have all that they require of each other. Pure.

The lock records what each wheel requires of others on the target, with the extras that are asked
for there, so that a wheel that is missing is noticed without an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from imagefactory.errors import Problem
from imagefactory.locking.lock import Lock, LockedOverride, LockedToolchain, Resolution, Wheel
from imagefactory.locking.tags import COMPILER_PYTHON
from imagefactory.matrix.cell import Override
from imagefactory.system.platforms import Platform

#: The code of a lock that lacks a wheel which another one requires.
INCOMPLETE = "lock-incomplete"
Overrides = Iterable[Override | LockedOverride]


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    specifier: SpecifierSet
    extras: frozenset[str]
    requirement: Requirement


@lru_cache(maxsize=8192)
def _parsed(text: str) -> _Wanted:
    found = Requirement(text)
    extras = frozenset(canonicalize_name(extra) for extra in found.extras)
    return _Wanted(canonicalize_name(found.name), found.specifier, extras, found)


@lru_cache(maxsize=8192)
def _accepts(text: str, version: str) -> bool:
    wanted = _parsed(text)
    if wanted.requirement.url:
        return True
    try:
        return wanted.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def environment(platform: Platform, python: str) -> dict[str, str]:
    """The values of environment markers (PEP 508) on the target, as the resolver sees them."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": platform.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def active(
    lines: Mapping[str, Sequence[str]],
    roots: Iterable[str],
    overrides: Overrides,
    target: Mapping[str, str],
) -> dict[str, tuple[str, ...]]:
    """What each wheel requires on the target, without markers.

    ``lines`` has the Requires-Dist lines of each wheel by name, ``roots`` the requirements that
    they were resolved from. Extras count if a root, or a wheel that counts, asks for them.
    """
    replaced = _replaced(overrides)
    extras: dict[str, set[str]] = {name: {""} for name in lines}
    waiting = [text for root in roots for text in _effective(root, replaced)]
    known = {name: [line for line in rows if _is_valid(line)] for name, rows in lines.items()}
    applied: dict[str, dict[str, None]] = {name: {} for name in lines}

    def apply(name: str, extra: str) -> None:
        for line in known[name]:
            marker = _parsed(line).requirement.marker
            if marker is None or marker.evaluate({**target, "extra": extra}):
                applied[name][_without_marker(line)] = None
                waiting.extend(_effective(line, replaced))

    for name in lines:
        apply(name, "")
    while waiting:
        wanted = _parsed(waiting.pop())
        for extra in wanted.extras - extras.get(wanted.name, wanted.extras):
            extras[wanted.name].add(extra)
            apply(wanted.name, extra)
    return {name: tuple(sorted(rows)) for name, rows in applied.items()}


def _is_valid(line: str) -> bool:
    """Whether a line is PEP 508; the resolver repairs some that are not."""
    try:
        _parsed(line)
    except InvalidRequirement:
        return False
    return True


def _without_marker(line: str) -> str:
    wanted = _parsed(line)
    extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
    return f"{wanted.name}{extras}{wanted.specifier}"


def _replaced(overrides: Overrides) -> dict[str, str | None]:
    """For each package with an override, the requirement instead, or None if it is left out."""
    valid = (one for one in overrides if _is_valid(one.requirement))
    return {_parsed(one.requirement).name: None if one.drop else one.requirement for one in valid}


def _effective(text: str, replaced: Mapping[str, str | None]) -> Iterator[str]:
    found = replaced.get(_parsed(text).name, text) if _is_valid(text) else text
    if found is not None:
        yield found


def is_recorded(part: Resolution | LockedToolchain) -> bool:
    """Whether the lock has what each wheel requires; older locks do not."""
    return all(wheel.requires is not None for wheel in part.wheels)


@lru_cache(maxsize=4096)
def lacking(part: Resolution | LockedToolchain) -> tuple[str, ...]:
    """What the wheels of ``part`` lack, a sentence each: of its own requirements and of theirs."""
    rows = [("the matrix", text) for text in part.requirements]
    rows += [
        (f"{wheel.name} {wheel.version}", text)
        for wheel in part.wheels
        for text in wheel.requires or ()
    ]
    return _lacks(rows, part)


def unmet(owner: str, lines: Iterable[str], part: Resolution) -> tuple[str, ...]:
    """What ``part`` lacks of the requirements ``lines`` of ``owner``, a sentence each."""
    return _lacks([(owner, line) for line in lines], part)


def _lacks(rows: Iterable[tuple[str, str]], part: Resolution | LockedToolchain) -> tuple[str, ...]:
    """What ``part`` lacks of requirements, each with its owner."""
    replaced = _replaced(part.overrides if isinstance(part, Resolution) else ())
    python = part.python if isinstance(part, Resolution) else COMPILER_PYTHON
    target = environment(part.platform, python)
    wheels = {wheel.name: wheel for wheel in part.wheels}
    pairs = ((owner, text) for owner, line in rows for text in _effective(line, replaced))
    found = (_lack(owner, text, wheels, target) for owner, text in pairs)
    return tuple(dict.fromkeys(text for text in found if text))


def _lack(owner: str, text: str, wheels: Mapping[str, Wheel], target: Mapping[str, str]) -> str:
    if not _is_valid(text):
        return f"{owner} requires {text!r}, which is not a valid requirement"
    wanted = _parsed(text)
    marker = wanted.requirement.marker
    if marker is not None and not marker.evaluate(dict(target)):
        return ""
    wheel = wheels.get(wanted.name)
    if wheel is None:
        return f"{owner} requires {_without_marker(text)}, which has no wheel in it"
    if not _accepts(text, wheel.version):
        return f"{owner} requires {_without_marker(text)}, but it has {wheel.name} {wheel.version}"
    return ""


def problems(part: Resolution | LockedToolchain) -> tuple[Problem, ...]:
    """A problem for each wheel that ``part`` lacks."""
    return tuple(
        Problem(
            code=INCOMPLETE,
            where=f"wheels.lock: {part.name}",
            what=what,
            fix="imagefactory lock",
        )
        for what in lacking(part)
    )


def of_lock(lock: Lock) -> Iterator[Problem]:
    """The problems of all parts of ``lock``, and those parts that were locked without a record."""
    parts: list[Resolution | LockedToolchain] = [*lock.resolutions, *lock.toolchains]
    for part in parts:
        yield from problems(part)
        if not is_recorded(part):
            what = "it does not record what its wheels require"
            where = f"wheels.lock: {part.name}"
            yield Problem(code=INCOMPLETE, where=where, what=what, fix="imagefactory lock")
