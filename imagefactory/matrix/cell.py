"""What flows down the pipeline before anything is built: cells, and what a cell is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from packaging.requirements import Requirement

from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location

#: The axes of the matrix, in the order in which tables and names show them.
AXES = ("flavor", "platform", "python", "cuda", "channel", "torch", "vllm", "flashinfer")
#: The axes whose values are pins, that is, versions of something that ends up in the image.
PINS = ("vllm", "torch", "flashinfer", "cuda", "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A distribution that images stand on.

    Attributes:
        name: key in ``matrix.yaml``, such as ``trixie``.
        image: reference in a registry, with its digest (``debian:trixie-slim@sha256:...``).
        bootstrap: Debian suite from which the same base can be made where no registry answers; None
            if it cannot be.
        python: the distribution's own Python, as ``X.Y``; a cell on this base has this Python.
        glibc: the distribution's glibc, as ``X.Y``: it bounds the manylinux tags a resolution may
            use.
        packages: Debian packages that the shared base layer adds for the flavors on it, sorted.
    """

    name: str
    image: str
    bootstrap: str | None
    python: str
    glibc: str
    packages: tuple[str, ...]


@lru_cache(maxsize=1024)
def _name_in(requirement: str) -> str:
    return Requirement(requirement).name


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A decision against upstream's metadata, with its reason.

    Attributes:
        requirement: PEP 508 requirement that replaces what upstream asks for.
        drop: the package is left out altogether (``requirement`` is then the bare name).
        reason: why, in the words of the person who decided it.
        source: where it stands.
    """

    requirement: str
    drop: bool
    reason: str
    location: Location

    @property
    def package(self) -> str:
        """The package's name as written in the requirement."""
        return _name_in(self.requirement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A compiler set that lives in a prefix of its own: what proofs compile with, and what images
    may carry for JIT.

    Attributes:
        name: key in ``matrix.yaml``, such as ``cuda13.0``.
        requirements: PEP 508 requirements of one consistent set, sorted.
        platforms: OCI platforms that it is locked for.
        source: where it stands.
    """

    name: str
    requirements: tuple[str, ...]
    platforms: tuple[Platform, ...]
    location: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBuild:
    """That a flavor's vLLM is a wheel made from its sources, with the flavor's patches in it.

    Attributes:
        binaries: where its compiled parts come from: ``official``, the wheel of the same release;
            or ``compiled``: those of ``extensions`` are compiled, the others are official.
        tools: name of the toolchain that holds setuptools and what else its build asks for.
        source: where it stands.
        ref: where vLLM's sources are in a git repository (``git+URL@ref``); None for the release's
            sdist.
        extensions: CMake targets of vLLM to compile.
        sources: what vLLM's CMake needs beside them: name of its variable (``..._SRC_DIR``) ->
            origin.
    """

    binaries: str
    tools: str
    location: Location
    ref: str | None = None
    extensions: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def compiles(self) -> bool:
        """Whether a compiler runs: on the platform of the cell, for nothing is cross-compiled."""
        return self.binaries == "compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A named choice of base, wheels, patches and runtime settings.

    Attributes:
        name: the value of the ``flavor`` axis.
        summary: one line for tables and labels.
        base: the base that its images stand on.
        requirements: PEP 508 requirements with ``{axis}`` placeholders.
        patches: patches of the series as ``project/name``, in order of application.
        env: environment of the image.
        serve_args: arguments that ``serve`` passes to vLLM unless the user's own arguments name the
            same option.
        driver: NVIDIA driver version that the machines of this flavor have; None for CPU flavors.
        toolchain: name of the toolchain that its images carry for what is compiled at run time, or
            None.
        build: how its vLLM is built from its sources; None if it is taken from the index.
        source: where it stands.
        places: where each variable of ``env`` and each argument of ``serve_args`` stands.
    """

    name: str
    summary: str
    base: Base
    requirements: tuple[str, ...]
    patches: tuple[str, ...]
    env: Mapping[str, str]
    serve_args: tuple[str, ...]
    driver: str | None
    toolchain: str | None
    location: Location
    setting_locations: Mapping[str, Location] = field(default_factory=dict)
    build: SourceBuild | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the matrix: one image to make.

    Attributes:
        name: unique, from the axes; also the bake target's name, so ``[a-z0-9_-]`` only.
        axes: axis -> value; an axis that means nothing for the flavor (``cuda`` for ``cpu``) is
            absent.
        sources: axis -> where its value was written.
        flavor: the resolved flavor.
        requirements: the flavor's requirements with this cell's values filled in.
        overrides: the overrides that apply to this cell.
        tags: full image references, the first one is the cell's own.
    """

    name: str
    axes: Mapping[str, str]
    locations: Mapping[str, Location]
    flavor: Flavor
    requirements: tuple[str, ...]
    overrides: tuple[Override, ...]
    tags: tuple[str, ...]

    @property
    def platform(self) -> Platform:
        """The platform that the image is for."""
        return Platform(self.axes["platform"])

    @property
    def python(self) -> str:
        """Python of the image, as ``X.Y``."""
        return self.axes["python"]

    @property
    def channel(self) -> str:
        """The PyTorch wheel channel, such as ``cu130`` or ``cpu``."""
        return self.axes["channel"]

    @property
    def vllm(self) -> str:
        """The release of vLLM."""
        return self.axes["vllm"]

    @property
    def torch(self) -> str:
        """The release of torch."""
        return self.axes["torch"]

    @property
    def tag(self) -> str:
        """The cell's own image reference; ``tags`` has the others too."""
        return self.tags[0]

    @property
    def pins(self) -> dict[str, str]:
        """The axes that are versions of something inside the image."""
        return {axis: self.axes[axis] for axis in PINS if axis in self.axes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a resolution is asked for; cells with equal requests share one resolution.

    Attributes:
        platform: OCI platform of the target.
        python: ``X.Y`` of the target.
        glibc: ``X.Y`` of the target's base.
        channel: the torch channel that the resolved torch must be a build of.
        requirements: PEP 508 requirements, sorted.
        overrides: replaced or dropped requirements, sorted by package.
    """

    platform: Platform
    python: str
    glibc: str
    channel: str
    requirements: tuple[str, ...]
    overrides: tuple[Override, ...]


def request_of(cell: Cell) -> Request:
    """The resolution request of ``cell``."""
    return Request(
        platform=cell.platform,
        python=cell.python,
        glibc=cell.flavor.base.glibc,
        channel=cell.channel,
        requirements=tuple(sorted(cell.requirements)),
        overrides=tuple(sorted(cell.overrides, key=lambda o: (o.package, o.requirement))),
    )
