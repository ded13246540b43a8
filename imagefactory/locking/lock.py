"""The contents of ``wheels.lock``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from imagefactory.locking.fields import (
    STRICT,
    Address,
    Day,
    Digest,
    Project,
    Prose,
    Sha256,
    Size,
    Text,
    Version,
    WheelFile,
    Word,
)
from imagefactory.locking.locked_sources import LockedRef, LockedSource
from imagefactory.matrix.cell import (
    Base,
    Cell,
    NamedIndex,
    Request,
    Toolchain,
    VllmRef,
    request_of,
)
from imagefactory.system.platforms import Platform

FIND_LINKS = "find-links"
#: The ``index`` of a wheel that imagefactory built.
WHEELHOUSE = "wheelhouse"
#: What is wrong with a lock that was written before unpackers were locked.
NO_UNPACKER = "wheels.lock does not pin the uv that unpacks wheels"


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel, identified by its hash; ``index`` only records where it was found.

    Attributes:
        name: normalized project name (PEP 503).
        version: as in the wheel's file name.
        filename: the wheel's file name, which includes its tags.
        sha256: hex digest.
        size: bytes.
        index: the simple index it was found on; ``find-links`` for a local folder (whose path
            differs between machines), ``wheelhouse`` for a wheel that imagefactory built, or the
            URL of a wheel that the matrix gives by URL.
        requires: what it requires of other wheels on the target, without markers; None if that is
            not recorded, as in locks of older versions.
    """

    name: Project
    version: Version
    filename: WheelFile
    sha256: Sha256
    size: Size
    index: Address
    requires: tuple[Text, ...] | None = None

    @property
    def tags(self) -> str:
        """Its compatibility tags (PEP 425), as in the file name."""
        return "-".join(self.filename.removesuffix(".whl").split("-")[-3:])

    @property
    def is_local(self) -> bool:
        """Whether it was found in a local folder when it was locked."""
        return self.index == FIND_LINKS

    @property
    def is_built(self) -> bool:
        """Whether imagefactory built it."""
        return self.index == WHEELHOUSE

    @property
    def has_address(self) -> bool:
        """Whether the matrix gives it by URL rather than from an index."""
        return self.index.endswith(".whl")


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The build of the locked torch, read from ``torch/version.py`` in the wheel.

    The wheel's METADATA does not identify the build.

    Attributes:
        version: ``__version__``, such as ``2.11.0+cu130``.
        cuda: CUDA version of the build, such as ``13.0``; None for a CPU build.
    """

    version: Version
    cuda: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")] | None


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class LockedOverride:
    """An override as recorded in the lock: what is replaced or dropped, and why."""

    requirement: Text
    drop: bool
    reason: Prose


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The full set of wheels for one request; ``name`` is only a label.

    ``created`` is the day (UTC, ``YYYY-MM-DD``) on which these wheels were first resolved; images
    take their date from it.
    """

    name: Word
    created: Day
    platform: Platform
    python: Annotated[str, Field(pattern=r"^3\.[0-9]{1,2}$")]
    glibc: Annotated[str, Field(pattern=r"^2\.[0-9]{1,2}$")]
    channel: Annotated[str, Field(pattern=r"^(cpu|cu[0-9]{3})$")]
    requirements: tuple[Text, ...]
    overrides: tuple[LockedOverride, ...]
    torch: TorchBuild
    wheels: tuple[Wheel, ...]
    indexes: tuple[NamedIndex, ...] = ()

    def __hash__(self) -> int:
        # results derived from a resolution are cached by it; hashing all 200 wheels each time
        # took longer than deriving them again
        return hash((self.name, self.created, len(self.wheels)))

    def answers(self, request: Request) -> bool:
        """Whether this resolution is for exactly ``request``; the overrides' reasons may differ."""
        return (
            self.platform == request.platform
            and self.python == request.python
            and self.glibc == request.glibc
            and self.channel == request.channel
            and self.requirements == request.requirements
            and self.indexes == request.indexes
            and tuple((o.requirement, o.drop) for o in self.overrides)
            == tuple((o.requirement, o.drop) for o in request.overrides)
        )

    def with_built(self, built: BuiltWheel) -> Resolution:
        """This resolution with ``built``, in place of the wheel that it replaces, if any."""
        wheels = tuple(
            built.wheel if wheel.sha256 == built.replaces else wheel for wheel in self.wheels
        )
        if built.beside:
            wheels = (*wheels, built.wheel)
        return replace(self, name=f"{self.name}-{built.key[:12]}", wheels=wheels)

    def wheel(self, name: str) -> Wheel | None:
        """The wheel of the project ``name`` (normalized), or None."""
        return next((wheel for wheel in self.wheels if wheel.name == name), None)


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class LockedToolchain:
    """The wheels of one toolchain for one platform."""

    name: Word
    platform: Platform
    requirements: tuple[Text, ...]
    wheels: tuple[Wheel, ...]

    def answers(self, toolchain: Toolchain, platform: Platform) -> bool:
        """Whether these wheels were locked for exactly this toolchain and platform."""
        return (self.name, self.platform, self.requirements) == (
            toolchain.name,
            platform,
            toolchain.requirements,
        )


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWheel:
    """A wheel that imagefactory built.

    Attributes:
        key: hash of everything that determines its content.
        platform: OCI platform that it is for.
        replaces: SHA-256 of the resolution's wheel that it replaces; None for an extra.
        beside: of an extra: SHA-256 of the torch that it was built against; else None.
        wheel: the wheel; building the same key again gives the same bytes.
    """

    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9]+$")]
    platform: Platform
    wheel: Wheel
    replaces: Sha256 | None = None
    beside: Sha256 | None = None

    def belongs_to(self, wheels: Iterable[Wheel]) -> bool:
        """Whether an image with ``wheels`` may have it."""
        return any(wheel.sha256 in (self.replaces, self.beside) for wheel in wheels)


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacker:
    """The wheel of uv, which unpacks all other wheels in builds that run on ``platform``."""

    platform: Platform
    wheel: Wheel


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDriver:
    """A driver that a CUDA toolkit is accepted on, against NVIDIA's documentation, and why."""

    cuda: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]
    driver: Version
    reason: Prose


def drivers_of(cells: Iterable[Cell]) -> tuple[LockedDriver, ...]:
    """The overrides of the driver that ``cells`` have, sorted."""
    found = {
        LockedDriver(cuda=cell.axes["cuda"], driver=one.driver, reason=one.reason)
        for cell in cells
        for one in cell.driver_overrides
        if "cuda" in cell.axes
    }
    return tuple(sorted(found, key=lambda one: (one.cuda, one.driver, one.reason)))


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class Deb:
    """A Debian package, identified by its hash.

    Attributes:
        name: of the binary package.
        version: Debian version, with its epoch.
        arch: ``all``, or Debian's name of an architecture.
        sha256: hex digest of the file.
        size: bytes of the file.
        archive: ``debian`` or ``debian-security``.
        path: of the file below the archive, such as ``pool/main/b/bash/bash_5.2_amd64.deb``.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.+:~-]*$")]
    arch: Annotated[str, Field(pattern=r"^[a-z0-9]+$")]
    sha256: Sha256
    size: Size
    archive: Annotated[str, Field(pattern=r"^debian(-security)?$")]
    path: Annotated[
        str, Field(pattern=r"^([A-Za-z0-9+~_-][A-Za-z0-9.+~_-]*/)+[A-Za-z0-9][^/\s]*\.deb$")
    ]

    @property
    def filename(self) -> str:
        """The name of the file in the archive."""
        return self.path.rpartition("/")[2]


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """A base image for one platform: a digest in a registry, or Debian packages.

    Attributes:
        name: key of the base in ``matrix.yaml``.
        platform: OCI platform.
        created: the day (UTC, ``YYYY-MM-DD``) on which it was locked.
        image: its image, as in ``matrix.yaml``; for a base of packages, only a name.
        digest: of the image in its registry; None for a base of packages.
        suite: Debian suite of the packages; None for an image of a registry.
        packages: the packages that ``matrix.yaml`` names, sorted.
        debs: all packages of the base, sorted by name; those that are added to an image of a
            registry.
        builder: further packages of the stage that assembles images, sorted by name.
        compiler: further packages of the stage that compiles wheels, sorted by name; None if no
            cell on the base compiles any.
        env: the environment that an image of a registry sets, as sorted pairs; None for a base of
            packages, and in locks that were written before it was read.
    """

    name: Word
    platform: Platform
    created: Day
    image: Word
    digest: Digest | None
    suite: Annotated[str, Field(pattern=r"^[a-z]+$")] | None
    packages: tuple[Word, ...]
    debs: tuple[Deb, ...]
    builder: tuple[Deb, ...]
    compiler: tuple[Deb, ...] | None = None
    env: tuple[tuple[str, str], ...] | None = None

    @property
    def all_debs(self) -> tuple[Deb, ...]:
        """The packages of all stages."""
        return (*self.debs, *self.builder, *(self.compiler or ()))

    def answers(self, base: Base) -> bool:
        """Whether this was locked for exactly what ``base`` declares."""
        return (self.name, self.image, self.suite, self.packages) == (
            base.name,
            base.image,
            base.suite,
            base.packages,
        )


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A whole ``wheels.lock``; resolutions, toolchains and bases are sorted by name."""

    created: Day
    tools: tuple[tuple[str, Text], ...]
    resolutions: tuple[Resolution, ...]
    toolchains: tuple[LockedToolchain, ...] = ()
    sources: tuple[LockedSource, ...] = ()
    built: tuple[BuiltWheel, ...] = ()
    unpackers: tuple[Unpacker, ...] = ()
    drivers: tuple[LockedDriver, ...] = ()
    bases: tuple[LockedBase, ...] = ()
    refs: tuple[LockedRef, ...] = ()

    @property
    def unpacker_version(self) -> str | None:
        """The version of uv that unpacks wheels, or None; one for all build platforms."""
        versions = {one.wheel.version for one in self.unpackers}
        complete = {one.platform for one in self.unpackers} == set(Platform)
        return versions.pop() if complete and len(versions) == 1 else None

    def base(self, base: Base, platform: Platform) -> LockedBase | None:
        """What is locked for ``base`` as it is declared, on ``platform``; None if nothing is."""
        return next((b for b in self.bases if b.platform == platform and b.answers(base)), None)

    def source(self, name: str, version: str) -> LockedSource | None:
        """The sdist of a release, or None."""
        return next((s for s in self.sources if (s.name, s.version) == (name, version)), None)

    def commit(self, text: str) -> LockedSource | None:
        """The sources of a build that the matrix writes as ``text`` (git), or None."""
        return next((s for s in self.sources if s.name == text), None)

    def ref(self, wanted: VllmRef) -> LockedRef | None:
        """What is locked for a git ref, or None."""
        return next((one for one in self.refs if one.answers(wanted)), None)

    def built_for(self, key: str) -> BuiltWheel | None:
        """The wheel built for ``key``, or None."""
        return next((built for built in self.built if built.key == key), None)

    def installable(self) -> Iterator[Resolution]:
        """Every resolution, and every variant of one with built wheels in it."""
        for resolution in self.resolutions:
            choices: dict[str, list[BuiltWheel | None]] = {}
            for built in self.built:
                if built.belongs_to(resolution.wheels):
                    choices.setdefault(built.wheel.name, [None]).append(built)
            for chosen in itertools.product(*choices.values()):
                found = resolution
                for one in chosen:
                    found = found.with_built(one) if one else found
                yield found

    def toolchain(self, name: str, platform: Platform) -> LockedToolchain | None:
        """The wheels of the toolchain ``name`` for ``platform``, or None."""
        return next((t for t in self.toolchains if (t.name, t.platform) == (name, platform)), None)

    def all_wheels(self) -> Iterator[Wheel]:
        """Every wheel of resolutions, toolchains and unpackers; some appear more than once."""
        yield from (wheel for resolution in self.resolutions for wheel in resolution.wheels)
        yield from (wheel for toolchain in self.toolchains for wheel in toolchain.wheels)
        yield from (unpacker.wheel for unpacker in self.unpackers)

    def find(self, request: Request) -> Resolution | None:
        """The resolution that answers ``request``, or None."""
        return next((one for one in self.resolutions if one.answers(request)), None)

    def uncovered(self, cells: Iterable[Cell]) -> tuple[Cell, ...]:
        """The cells that have no resolution in this lock."""
        return tuple(cell for cell in cells if self.find(request_of(cell)) is None)
