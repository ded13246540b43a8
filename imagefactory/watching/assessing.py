"""Whether a cell could have a release, and what keeps it back if not. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagefactory.locking import closure
from imagefactory.locking.tags import target_tags
from imagefactory.matrix.axes import PLACEHOLDER
from imagefactory.matrix.cell import AXES, Cell, Request, request_of
from imagefactory.matrix.policies import Hold, Policies, canonical
from imagefactory.system.platforms import Platform
from imagefactory.watching.releases import Listing, Release, Upstream, WheelFile, requirement

#: The axes that follow a release of the first one; a cell's own ones stand alone.
LEAD = "vllm"
_PINNED = re.compile(f"=={PLACEHOLDER.pattern}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A project whose version is the value of an axis.

    Attributes:
        axis: the axis.
        project: normalized name.
        template: the requirement, with ``{axis}`` placeholders.
        index: URL of the index that it is taken from; None for the machine's own.
    """

    axis: str
    project: str
    template: str
    index: str | None

    @property
    def names(self) -> tuple[str, str]:
        """What policies may call it, the more specific name first."""
        return self.project, canonical(self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a cell could have a release.

    Attributes:
        version: the release, as a value of its axis.
        reason: what keeps it back; empty if nothing does.
        values: for a release that the cell could have: its axis, and those that it needs changed.
    """

    version: str
    reason: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing keeps it back."""
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What everything is judged by: the upstream, the policies and the day."""

    upstream: Upstream
    policies: Policies
    today: date


def pins(cell: Cell) -> dict[str, Pin]:
    """The cell's axes that are the version of a project, by axis."""
    indexes = {one.package: one.url for one in cell.indexes}
    found: dict[str, Pin] = {}
    for template, text in zip(cell.flavor.requirements, cell.requirements, strict=True):
        axis = _PINNED.search(template)
        project = _project(text) if axis else None
        if axis and project:
            pin = Pin(axis=axis[1], project=project, template=template, index=indexes.get(project))
            found.setdefault(axis[1], pin)
    return found


@cache  # pins are asked for once per release and row, and the parser is slow
def _project(text: str) -> str | None:
    """The project that a requirement takes from an index; None for one with a URL."""
    parsed = Requirement(text)
    return None if parsed.url else canonicalize_name(parsed.name)


def leads(cell: Cell, policies: Policies) -> list[Pin]:
    """The axes that move by themselves: vLLM, and a user's own ones that policies name.

    A git ref moves with the lock, and what it is based on is its author's decision.
    """
    found = pins(cell)
    return [
        pin
        for axis, pin in found.items()
        if (axis == LEAD and cell.ref is None)
        or (axis not in AXES and policies.explicit(pin.names))
    ]


@cache
def _tags(platform: str, python: str, glibc: str) -> frozenset[Tag]:
    request = Request(
        platform=Platform(platform),
        python=python,
        glibc=glibc,
        channel="",
        requirements=(),
        overrides=(),
    )
    return frozenset(target_tags(request))


def wheel_for(release: Release, request: Request) -> WheelFile | str:
    """The wheel of ``release`` that the target takes, or why it has none."""
    tags = _tags(request.platform, request.python, request.glibc)
    fitting = [w for w in release.wheels if not w.tags.isdisjoint(tags)]
    usable = [w for w in fitting if w.runs_on(request.python)]
    good = [w for w in usable if w.yanked is None]
    if good:
        return good[0]
    if release.yanked is not None or usable:
        why = release.yanked or usable[0].yanked or "yanked"
        return "yanked" if why == "yanked" else f"yanked: {_sentence(why)}"
    if not release.wheels:
        return "only sources, no wheel"
    if fitting:
        return f"requires Python {fitting[0].python}"
    return _lack(release, request)


def _lack(release: Release, request: Request) -> str:
    """Which part of the target no wheel has: platform, Python or glibc."""
    machine = request.platform.machine
    names = {tag.platform for wheel in release.wheels for tag in wheel.tags}
    if not any(name == "any" or name.endswith(machine) for name in names):
        return f"no wheel for {request.platform}"
    own = _tags(request.platform, request.python, request.glibc)
    needed = [
        int(found[1])
        for wheel in release.wheels
        for tag in wheel.tags
        if (found := re.fullmatch(rf"manylinux_2_(\d+)_{machine}", tag.platform))
        and Tag(tag.interpreter, tag.abi, f"linux_{machine}") in own
    ]
    if needed:
        return f"needs glibc 2.{min(needed)}, the base has {request.glibc}"
    return f"no wheel for Python {request.python}"


def _sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def first_block(release: Release, current: Version, names: Sequence[str], view: View) -> str:
    """What policies have against a move to ``release``; empty if nothing."""
    hold = view.policies.held(names, view.today)
    if hold and not hold.accepts(release.version):
        return held_by(hold)
    follow = view.policies.followed(names)
    return "" if follow.allows(current, release.version) else f"policy: follow {follow}"


def held_by(hold: Hold) -> str:
    """A hold as a reason."""
    return f"hold {hold.to} until {hold.until}: {_sentence(hold.reason)}"


def assess(cell: Cell, pin: Pin, release: Release, view: View, *, replaces: bool) -> Verdict:
    """Whether ``cell`` could have ``release`` instead of the current value of the axis.

    Policies are not asked for the release itself. With ``replaces`` the overrides of the cell stay
    in force. Raises SetupError if its requirements cannot be read.
    """
    value, request = _value(release.version, pin), request_of(cell)
    found = wheel_for(release, request)
    if isinstance(found, str):
        return Verdict(version=value, reason=found)
    values = {pin.axis: value}
    others = {one.project: one for axis, one in pins(cell).items() if axis != pin.axis}
    for wanted in active(view.upstream.requires(pin.project, found), request):
        other = others.get(canonicalize_name(wanted.name))
        if other is None:
            continue
        kept = replaces and any(
            canonicalize_name(o.package) == other.project for o in cell.overrides
        )
        verdict = _companion(cell, other, wanted, view, kept=kept)
        if not verdict.ok:
            owner = f"{pin.project} {release.version} requires {shown(wanted)}"
            return Verdict(version=value, reason=f"{owner}, {verdict.reason}")
        values[other.axis] = verdict.version
    return Verdict(version=value, values=values)


def _companion(cell: Cell, pin: Pin, wanted: Requirement, view: View, *, kept: bool) -> Verdict:
    """The value of an axis that ``wanted`` allows: the current one if it can stay."""
    current = cell.axes[pin.axis]
    versions = view.upstream.listing(pin.project, pin.index)
    if versions.problem:
        return Verdict(version=current, reason=f"unknown: {versions.problem.what}")
    fits = [one for one in versions.newest_first if is_in(one.version, wanted.specifier)]
    staying = Version(current)
    if kept and all(one.version <= staying for one in fits):
        return Verdict(version=current)
    reason = "which no index has"
    pinned = any(one.operator == "==" for one in wanted.specifier)
    ordered = fits if pinned else sorted(fits, key=lambda one: one.version.public != current)
    for release in ordered:
        value = _value(release.version, pin)
        own = Requirement(_filled(pin.template, {**cell.axes, pin.axis: value})).specifier
        if not is_in(release.version, own):
            continue
        found = wheel_for(release, request_of(cell))
        if isinstance(found, str):
            reason = f"which has {found}" if found.startswith("no ") else f"which is held: {found}"
            continue
        blocked = _blocked(cell, pin, release, found, view)
        if not blocked:
            return Verdict(version=value)
        reason = blocked
    return Verdict(version=current, reason=reason)


def _blocked(cell: Cell, pin: Pin, release: Release, wheel: WheelFile, view: View) -> str:
    hold = view.policies.held(pin.names, view.today)
    if hold and not hold.accepts(release.version):
        return held_by(hold)
    follow = view.policies.explicit(pin.names)
    if follow and not follow.allows(Version(cell.axes[pin.axis]), release.version):
        return f"but policy: {pin.axis} follows {follow}"
    if pin.project == "torch":
        built = channel_of(release, wheel, request_of(cell), view.upstream)
        if built != cell.channel:
            return f"whose wheel is built for {built}, not {cell.channel}"
    return ""


def channel_of(release: Release, wheel: WheelFile, request: Request, upstream: Upstream) -> str:
    """The channel that a torch wheel is built for, from its version or what it requires.

    Raises SetupError if its requirements cannot be read.
    """
    if release.version.local:
        return release.version.local
    for wanted in active(upstream.requires("torch", wheel), request):
        exact = next((s.version for s in wanted.specifier if s.operator == "=="), "")
        if canonicalize_name(wanted.name) == "cuda-toolkit" and exact:
            return "cu{}{}".format(*exact.split(".")[:2])
        older = re.fullmatch(r"nvidia-cuda-runtime-cu(\d+)", canonicalize_name(wanted.name))
        if older and exact:
            return "cu{}{}".format(*exact.split(".")[:2])
    return "cpu"


def active(lines: Iterable[str], request: Request) -> Iterator[Requirement]:
    """The requirements that count on the target, without extras."""
    target = {**closure.environment(request.platform, request.python), "extra": ""}
    for line in lines:
        found = requirement(line)
        if found and (found.marker is None or found.marker.evaluate(target)):
            yield found


def is_in(version: Version, specifier: SpecifierSet) -> bool:
    return specifier.contains(version, prereleases=True)


def shown(wanted: Requirement) -> str:
    return f"{canonicalize_name(wanted.name)}{wanted.specifier}"


def _value(version: Version, pin: Pin) -> str:
    """A version as the value of an axis; a template may add the local part itself."""
    adds_local = "+" in pin.template or pin.project == "torch"
    return version.public if adds_local else str(version)


def _filled(template: str, axes: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: axes.get(found[1], "0"), template)


def unknown(listing: Listing, project: str) -> str:
    """Why nothing is known of a project; empty if something is."""
    if listing.problem:
        return listing.problem.what
    return "" if listing.releases else f"no index has {project}"
