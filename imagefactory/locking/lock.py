"""What ``wheels.lock`` holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from imagefactory.matrix.cell import Cell, Request, Toolchain, request_of
from imagefactory.system.platforms import Platform

FIND_LINKS = "find-links"
#: The ``index`` of a wheel that imagefactory made.
WHEELHOUSE = "wheelhouse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel is its hash; ``index`` only says where it was found when it was locked.

    Attributes:
        name: normalized project name (PEP 503).
        version: as in the wheel's file name.
        filename: the wheel's file name; its tags are in it.
        sha256: hex digest.
        size: bytes.
        index: the simple index it was found at; ``find-links`` for a local folder (its path is the
            machine's), ``wheelhouse`` for one that imagefactory made, the address for one that the
            matrix names by it.
    """

    name: str
    version: str
    filename: str
    sha256: str
    size: int
    index: str

    @property
    def tags(self) -> str:
        """Its compatibility tags (PEP 425), compressed as in the file name."""
        return "-".join(self.filename.removesuffix(".whl").split("-")[-3:])

    @property
    def is_local(self) -> bool:
        """Whether it was found in a local folder when it was locked."""
        return self.index == FIND_LINKS

    @property
    def is_built(self) -> bool:
        """Whether imagefactory made it."""
        return self.index == WHEELHOUSE

    @property
    def has_address(self) -> bool:
        """Whether the matrix names it by its address, so that no index has it."""
        return self.index.endswith(".whl")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """What the locked torch is, read from ``torch/version.py`` inside the wheel (its METADATA does
    not tell).

    Attributes:
        version: ``__version__``, such as ``2.11.0+cu130``.
        cuda: CUDA version of the build, such as ``13.0``; None for a CPU build.
    """

    version: str
    cuda: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedOverride:
    """An override as recorded in the lock: what was replaced or dropped, and why."""

    requirement: str
    drop: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The full set of wheels for one request; ``name`` is for people, the request decides.

    ``created`` is the day (UTC, ``YYYY-MM-DD``) on which these wheels were first resolved: the date
    of the images.
    """

    name: str
    created: str
    platform: Platform
    python: str
    glibc: str
    channel: str
    requirements: tuple[str, ...]
    overrides: tuple[LockedOverride, ...]
    torch: TorchBuild
    wheels: tuple[Wheel, ...]

    def __hash__(self) -> int:
        # what is derived from a resolution is kept by it; hashing some 200 wheels each time took
        # longer than deriving
        return hash((self.name, self.created, len(self.wheels)))

    def answers(self, request: Request) -> bool:
        """Whether this resolution was made for exactly ``request`` (reasons may be reworded)."""
        return (
            self.platform == request.platform
            and self.python == request.python
            and self.glibc == request.glibc
            and self.channel == request.channel
            and self.requirements == request.requirements
            and tuple((o.requirement, o.drop) for o in self.overrides)
            == tuple((o.requirement, o.drop) for o in request.overrides)
        )

    def with_built(self, built: BuiltWheel) -> Resolution:
        """The same with a wheel that was built in the place of the one that it replaces."""
        wheels = tuple(
            built.wheel if wheel.sha256 == built.replaces else wheel for wheel in self.wheels
        )
        return replace(self, name=f"{self.name}-{built.key[:12]}", wheels=wheels)

    def wheel(self, name: str) -> Wheel | None:
        """The wheel of the project ``name`` (normalized), or None."""
        return next((wheel for wheel in self.wheels if wheel.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedToolchain:
    """The wheels of one toolchain for one platform."""

    name: str
    platform: Platform
    requirements: tuple[str, ...]
    wheels: tuple[Wheel, ...]

    def answers(self, toolchain: Toolchain, platform: Platform) -> bool:
        """Whether these wheels were locked for exactly that."""
        return (self.name, self.platform, self.requirements) == (
            toolchain.name,
            platform,
            toolchain.requirements,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSource:
    """What wheels are made from, as one archive; fields as those of a wheel.

    The sdist of a release has the project's name and version; the tree of a repository has the text
    that the matrix names it by (``git+URL@ref``) for a name, its commit for a version, and
    ``git+URL@COMMIT`` for an address.
    """

    name: str
    version: str
    filename: str
    sha256: str
    size: int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWheel:
    """A wheel that imagefactory made.

    Attributes:
        key: hash of everything that decides its content.
        platform: OCI platform that it is for.
        replaces: SHA-256 of the wheel in the resolution that it is installed instead of.
        wheel: the wheel; whoever builds the same key again gets the same bytes.
    """

    key: str
    platform: Platform
    replaces: str
    wheel: Wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A whole ``wheels.lock``: tool versions, date, resolutions and toolchains sorted by name."""

    created: str
    tools: tuple[tuple[str, str], ...]
    resolutions: tuple[Resolution, ...]
    toolchains: tuple[LockedToolchain, ...] = ()
    sources: tuple[LockedSource, ...] = ()
    built: tuple[BuiltWheel, ...] = ()

    def source(self, name: str, version: str) -> LockedSource | None:
        """The sdist of that release, or None."""
        return next((s for s in self.sources if (s.name, s.version) == (name, version)), None)

    def commit(self, text: str) -> LockedSource | None:
        """The tree of the repository that the matrix names by ``text``, or None."""
        return next((s for s in self.sources if s.name == text), None)

    def built_for(self, key: str) -> BuiltWheel | None:
        """The wheel that was built for ``key``, or None."""
        return next((built for built in self.built if built.key == key), None)

    def installable(self) -> Iterator[Resolution]:
        """Every resolution, and every one with a wheel that was built in the place of its own."""
        for resolution in self.resolutions:
            yield resolution
            for built in self.built:
                if any(wheel.sha256 == built.replaces for wheel in resolution.wheels):
                    yield resolution.with_built(built)

    def toolchain(self, name: str, platform: Platform) -> LockedToolchain | None:
        """The wheels of the toolchain ``name`` for ``platform``, or None."""
        return next((t for t in self.toolchains if (t.name, t.platform) == (name, platform)), None)

    def all_wheels(self) -> Iterator[Wheel]:
        """Every wheel of every resolution and toolchain; shared ones come more than once."""
        yield from (wheel for resolution in self.resolutions for wheel in resolution.wheels)
        yield from (wheel for toolchain in self.toolchains for wheel in toolchain.wheels)

    def find(self, request: Request) -> Resolution | None:
        """The resolution that answers ``request``, or None."""
        return next(
            (resolution for resolution in self.resolutions if resolution.answers(request)), None
        )

    def uncovered(self, cells: Iterable[Cell]) -> tuple[Cell, ...]:
        """The cells that have no resolution here."""
        return tuple(cell for cell in cells if self.find(request_of(cell)) is None)
