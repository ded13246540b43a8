"""The audit station: judges whether the locked wheels of a cell can work together.

Nothing is built or run, and a wheel for arm64 is judged on any machine. What cannot be read is not
judged, and never counts as good.
"""

from __future__ import annotations

import re
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum

from imagefactory.auditing import judging, platform_libraries
from imagefactory.auditing.elf import Library
from imagefactory.auditing.judging import Extension
from imagefactory.auditing.reading import Member, Reader
from imagefactory.auditing.subject import TORCH, Content, Subject, fits
from imagefactory.auditing.verdicts import Verdict, Verdicts
from imagefactory.errors import CheckFailedError, FactoryError, InputError, Problem, SetupError
from imagefactory.locking.lock import Resolution, Wheel
from imagefactory.matrix.cell import Cell, request_of
from imagefactory.planning import planning
from imagefactory.planning.planning import Inputs
from imagefactory.system import ui

#: The GPU of the machines that images with CUDA are for (GB10), unless the flavor names others.
GB10 = 121
#: Libraries that are not read although an extension names them: hundreds of megabytes each.
LARGEST = 128 << 20
_CAPABILITY = re.compile(r"(\d+)\.(\d)")
_OF_CUDA = re.compile(r"nvidia-.*")


class State(StrEnum):
    """What is known of a cell."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "not audited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result for one cell.

    Attributes:
        cell: its name.
        problems: what is wrong with its wheels.
        notes: what else a person should know of them.
        unknown: why it could not be judged, or None.
        extensions: the extensions of vLLM and FlashInfer, with their GPU code.
        capability: of the GPU that they were judged for; None for a CPU image.
        seconds: how long it took.
    """

    cell: str
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: Problem | None = None
    extensions: tuple[Extension, ...] = ()
    capability: int | None = None
    seconds: float = 0.0

    @property
    def state(self) -> State:
        """Good only if everything was read and nothing is wrong."""
        if self.problems:
            return State.BAD
        return State.UNKNOWN if self.unknown else State.GOOD

    def as_dict(self) -> dict[str, object]:
        """The result as plain JSON values."""
        return {
            "cell": self.cell,
            "state": self.state,
            "problems": [problem.as_dict() for problem in self.problems],
            "notes": list(self.notes),
            "unknown": self.unknown.as_dict() if self.unknown else None,
            "gpu": f"sm_{self.capability}" if self.capability else None,
            "extensions": [judging.as_dict(one) for one in self.extensions],
            "seconds": round(self.seconds, 2),
        }


def error(audits: Iterable[Audit]) -> FactoryError | None:
    """The problems of all cells; SetupError if all that is wrong is what could not be read."""
    rows = list(audits)
    wrong = dict.fromkeys(problem for one in rows for problem in one.problems)
    unknown = dict.fromkeys(one.unknown for one in rows if one.unknown)
    if wrong:
        return CheckFailedError([*wrong, *unknown])
    return SetupError(unknown) if unknown else None


def audit_cells(
    cells: Iterable[Cell],
    inputs: Inputs,
    *,
    unless_long: Container[str] = (),
    before_build: bool = False,
) -> tuple[Audit, ...]:
    """Judge the wheels of ``cells``, all of which are locked.

    The cells that ``unless_long`` names are only judged if that was done before. ``before_build``
    downloads the wheels that are read, which the build needs, and shows no steps beside its own.
    """
    reader, verdicts = Reader(inputs.settings, whole=before_build), Verdicts(inputs.settings)
    found = (_audit_cell(one, inputs, reader, verdicts, one.name in unless_long) for one in cells)
    return tuple(one for one in found if one)


def recall(cells: Iterable[Cell], inputs: Inputs) -> dict[str, Audit]:
    """What was found out before about ``cells``, all of which are locked, by their names.

    Nothing is read but what is kept in the cache folder. A cell that was not judged is left out.
    """
    wanted = list(cells)
    found = audit_cells(wanted, inputs, unless_long={cell.name for cell in wanted})
    return {one.cell: one for one in found}


def _audit_cell(
    cell: Cell, inputs: Inputs, reader: Reader, verdicts: Verdicts, unless_long: bool
) -> Audit | None:
    """Judge one cell; of a wheel that is still to be compiled nothing is known."""
    start = time.monotonic()
    try:
        subject = _subject(cell, inputs)
    except FactoryError as error:
        return _unknown(cell.name, str(cell.locations["vllm"]), error)
    kept = verdicts.find(subject)
    if kept is None and unless_long:
        return None
    if kept is None:
        reading = f"reading the libraries of {cell.name}"
        with nullcontext() if reader.whole else ui.step(reading):
            made = audit(subject, reader)
        if made.unknown is None:
            verdicts.keep(subject, Verdict(made.problems, made.notes, made.extensions))
        return made
    return replace(_judged(subject, kept), seconds=time.monotonic() - start)


def _subject(cell: Cell, inputs: Inputs) -> Subject:
    """A cell as the audit sees it. Raises InputError if its wheels are not all there."""
    try:
        resolution = planning.installed(cell, inputs)
    except InputError:
        locked = inputs.lock.find(request_of(cell))
        if locked is None or cell.compiles:
            raise
        resolution = locked  # its compiled parts are those of the wheel that is built
    return Subject(
        name=cell.name,
        where=str(cell.locations["vllm"]),
        resolution=resolution,
        base=inputs.lock.base(cell.flavor.base, cell.platform),
        capability=_capability(cell),
    )


def _capability(cell: Cell) -> int | None:
    if cell.channel == "cpu":
        return None
    found = _CAPABILITY.match(cell.flavor.env.get("TORCH_CUDA_ARCH_LIST", ""))
    return int(found[1] + found[2]) if found else GB10


def audit(subject: Subject, reader: Reader) -> Audit:
    """Judge one subject."""
    start = time.monotonic()
    try:
        content = read(subject, reader)
    except FactoryError as error:
        return _unknown(subject.name, subject.where, error)
    found = Verdict(
        problems=tuple(dict.fromkeys(judging.problems(subject, content))),
        notes=tuple(judging.notes(subject, content)),
        extensions=tuple(judging.extensions(subject, content)),
    )
    return replace(_judged(subject, found), seconds=time.monotonic() - start)


def _judged(subject: Subject, found: Verdict) -> Audit:
    return Audit(
        cell=subject.name,
        problems=tuple(replace(problem, where=subject.where) for problem in found.problems),
        notes=found.notes,
        extensions=found.extensions,
        capability=subject.capability,
    )


def _unknown(name: str, where: str, error: FactoryError) -> Audit:
    first = error.problems[0]
    of = f"{first.where}: " if first.where else ""
    what = f"{name} is not audited: {of}{first.what}"
    return Audit(
        cell=name, unknown=Problem(code="not-audited", where=where, what=what, fix=first.fix)
    )


def read(subject: Subject, reader: Reader) -> Content:
    """Read what a subject is judged by. Raises SetupError if something cannot be read.

    That is the extensions of the judged wheels, the libraries of torch that they need, directly or
    not, and those of other wheels that they need directly or whose functions they call.
    """
    resolution = subject.resolution
    torch = resolution.wheel(TORCH)
    near = [one for one in resolution.wheels if one is torch or _OF_CUDA.fullmatch(one.name)]
    members = reader.members([*subject.judged, *near])
    judged = [m for wheel in subject.judged for m in members[wheel.sha256]]
    judged = [one for one in judged if fits(one, resolution.python)]
    libraries: dict[Member, Library] = dict(reader.libraries(judged))
    content = Content(members=members, libraries=libraries)
    if _lacks(content, subject):
        members = {**members, **reader.members(_others(resolution, members))}
        content = Content(members=members, libraries=libraries)
    waiting = [m for user in judged for m in _needs(user, content)]
    while left := [one for one in waiting if one not in libraries and _is_read(one)]:
        libraries |= reader.libraries(left)
        waiting = [m for user in left for m in _needs(user, content) if m.wheel is torch]
    called = [m for user in judged for m in _called(user, content)]
    libraries |= reader.libraries(one for one in called if _is_read(one))
    unread = {one for one in called if not _is_read(one)}
    return Content(members=members, libraries=libraries, unread=frozenset(unread))


def _is_read(member: Member) -> bool:
    return member.wheel.name == TORCH or member.size <= LARGEST


def _needs(user: Member, content: Content) -> Iterator[Member]:
    """The libraries in wheels that one names."""
    library = content.libraries[user]
    found = (content.find(name, user, library) for name in library.needed)
    yield from (member for member in found if member)


def _called(user: Member, content: Content) -> Iterator[Member]:
    """CUDA libraries that an extension calls without naming them: torch has loaded them."""
    left = judging.undefined(user, content.libraries[user], content)
    stems = {platform_libraries.cuda_library(symbol) for symbol in left}
    yield from (member for member in content.closure(user) if member.stem in stems)


def _lacks(content: Content, subject: Subject) -> bool:
    """Whether an extension needs a library that is in none of the wheels that were listed."""
    return any(
        not platform_libraries.is_of_driver(name)
        and not content.find(name, member, library)
        and not platform_libraries.is_of_base(name, subject.base)
        for member, library in content.libraries.items()
        for name in library.needed
    )


def _others(resolution: Resolution, members: dict[str, tuple[Member, ...]]) -> list[Wheel]:
    """The wheels with compiled parts that were not listed."""
    compiled = (one for one in resolution.wheels if not one.tags.endswith("-any"))
    return [one for one in compiled if one.sha256 not in members]
