"""Cells, and the declarations that they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from packaging.requirements import Requirement

from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location

#: The axes that every matrix may have, in the order in which tables and names show them. Further
#: ones are the user's own.
AXES = ("flavor", "platform", "python", "cuda", "channel", "torch", "vllm", "flashinfer")
#: The axes whose values are pins: versions of something inside the image.
PINS = ("vllm", "torch", "flashinfer", "cuda", "python")


def pins_of(axes: Iterable[str]) -> tuple[str, ...]:
    """Every axis that is recorded as a pin of an image with ``axes``."""
    return (*PINS, *(axis for axis in axes if axis not in AXES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A distribution that images are based on.

    Attributes:
        name: key in ``matrix.yaml``, such as ``trixie``.
        image: image reference, with a digest if it is pinned (``debian:trixie-slim@sha256:...``);
            of a base that is made from packages, only a name for people.
        suite: Debian suite that the base is made from; None for an image of a registry.
        python: the distribution's own Python, as ``X.Y``; every cell on this base uses it.
        glibc: the distribution's glibc, as ``X.Y``: it limits which manylinux wheels fit.
        packages: Debian packages installed in the shared base layer, sorted.
        cuda_home: where the image has a CUDA toolkit; None if it has none.
        path: the folders of the image's own PATH; empty for those of Debian.
        locations: where each value is set, by key and item: ``("packages", "g++")``.
    """

    name: str
    image: str
    suite: str | None
    python: str
    glibc: str
    packages: tuple[str, ...]
    cuda_home: str | None = None
    path: tuple[str, ...] = ()
    locations: Mapping[tuple[str, str], Location] = field(default_factory=dict, compare=False)

    def where(self, key: str, item: str = "") -> Location | None:
        """Where ``item`` of ``key`` is set."""
        return self.locations.get((key, item))


@lru_cache(maxsize=1024)
def _name_in(requirement: str) -> str:
    return Requirement(requirement).name


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A decision that overrides upstream's metadata, with its reason.

    Attributes:
        requirement: PEP 508 requirement that replaces upstream's.
        drop: whether the package is left out (``requirement`` is then the bare name).
        reason: why, as written in ``matrix.yaml``.
        location: where it is declared.
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
class NamedIndex:
    """The index of the matrix that one package is taken from.

    Attributes:
        package: normalized project name (PEP 503).
        name: key of the index in ``matrix.yaml``.
        url: its simple API, without credentials.
    """

    package: str
    name: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOverride:
    """A driver that a CUDA toolkit is accepted on, although NVIDIA documents a newer one for it.

    Attributes:
        driver: the oldest driver that is accepted.
        reason: why, as written in ``matrix.yaml``.
        location: where it is declared.
    """

    driver: str
    reason: str
    location: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Compilers or build tools, installed into a prefix of their own.

    Proofs compile with them, wheels are built with them, and images may include them for JIT.

    Attributes:
        name: key in ``matrix.yaml``, such as ``cuda13.0``.
        requirements: PEP 508 requirements of one consistent set, sorted.
        platforms: OCI platforms that it is locked for.
        location: where it is declared.
    """

    name: str
    requirements: tuple[str, ...]
    platforms: tuple[Platform, ...]
    location: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBuild:
    """How a flavor's vLLM wheel is built from source, with the flavor's patches applied.

    Attributes:
        binaries: ``official`` takes all compiled parts from the release's own wheel; ``compiled``
            compiles those of ``extensions`` and takes the others from that wheel.
        tools: name of the toolchain with setuptools and the other build requirements.
        location: where it is declared.
        extensions: CMake targets of vLLM to compile.
        sources: further sources for vLLM's CMake build: variable (``..._SRC_DIR``) -> origin.
    """

    binaries: str
    tools: str
    location: Location
    extensions: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def compiles(self) -> bool:
        """Whether a compiler runs; it runs on the cell's platform, without cross-compiling."""
        return self.binaries == "compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A wheel beside vLLM that is built from source against a cell's torch.

    Attributes:
        name: of its project, normalized (PEP 503).
        source: where it is from: git, an archive, or a folder.
        tools: name of the toolchain with setuptools and the other build requirements.
        location: where it is declared.
        folder: the folder of the source that is built; empty for all of it.
        setup: the user's file that takes the place of the source's ``setup.py``; None for none.
        env: environment variables of the build.
        sources: further sources: variable with the folder -> origin.
    """

    name: str
    source: str
    tools: str
    location: Location
    folder: str = ""
    setup: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def origins(self) -> tuple[str, ...]:
        """All sources that it is made from, as the matrix writes them, its own first."""
        return (self.source, *self.sources.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRef:
    """A git ref as the value of the axis ``vllm``: its Python on the binaries of a wheel.

    Attributes:
        repository: URL of the git repository.
        ref: branch, tag or commit.
        prs: pull requests that are merged into it, in order.
        base: the version whose wheel has the binaries.
        tools: name of the toolchain that builds the wheel; None for that of the flavor's build.
        words: what names, tags and conditions call it.
        location: where it is written.
        commit: the commit that is locked for it; empty as long as the lock was not asked.
    """

    repository: str
    ref: str
    prs: tuple[int, ...]
    base: str
    tools: str | None
    words: str
    location: Location = field(compare=False)
    commit: str = field(default="", compare=False)

    def __str__(self) -> str:
        return " + ".join([f"{self.repository} {self.ref}", *(f"PR {n}" for n in self.prs)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A named choice of base, wheels, patches and runtime settings.

    Attributes:
        name: the value of the ``flavor`` axis.
        summary: one line for tables and labels.
        base: the base of its images.
        requirements: PEP 508 requirements with ``{axis}`` placeholders.
        patches: patches of the series as ``project/name``, in order of application.
        env: environment variables of the image.
        serve_args: default arguments of ``serve``; the user's own value for an option wins.
        driver: NVIDIA driver version of this flavor's machines; None for CPU flavors.
        toolchain: name of the toolchain that its images include for run-time compilation, or None.
        location: where it is declared.
        build: how its vLLM wheel is built from source; None if it comes from an index.
        indexes: package -> name of the index that it is taken from, with ``{axis}`` placeholders.
        extras: further wheels that are built from source, sorted by name.
        locations: where each value is set, by key and item: ``("env", "NAME")``.
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
    build: SourceBuild | None = None
    indexes: Mapping[str, str] = field(default_factory=dict)
    extras: tuple[Extra, ...] = ()
    locations: Mapping[tuple[str, str], Location] = field(default_factory=dict)

    def where(self, key: str, item: str = "") -> Location:
        """Where ``item`` of ``key`` is set."""
        return self.locations.get((key, item), self.location)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the matrix: one image to build.

    Attributes:
        name: unique, derived from the axes; also the bake target, so ``[a-z0-9_-]`` only.
        axes: axis -> value, the user's own axes last; axes that do not apply (``cuda`` for
            ``cpu``) are absent. For a git ref, ``vllm`` is the version that is locked for it; as
            long as the lock was not asked, it is that of its base.
        locations: axis -> where its value is written.
        flavor: the resolved flavor.
        requirements: the flavor's requirements with this cell's values filled in.
        overrides: the overrides that apply to this cell.
        tags: full image references; the first is the main one.
        driver_overrides: drivers that its toolkit is accepted on; at most one in a valid matrix.
        indexes: packages that come from an index of the matrix, sorted.
        ref: the git ref that is the value of ``vllm``; None for a release or nightly.
    """

    name: str
    axes: Mapping[str, str]
    locations: Mapping[str, Location]
    flavor: Flavor
    requirements: tuple[str, ...]
    overrides: tuple[Override, ...]
    tags: tuple[str, ...]
    driver_overrides: tuple[DriverOverride, ...] = ()
    indexes: tuple[NamedIndex, ...] = ()
    ref: VllmRef | None = None

    @property
    def build(self) -> SourceBuild | None:
        """How its vLLM wheel is built from source; None if it comes from an index."""
        own, ref = self.flavor.build, self.ref
        if ref is None or ref.tools is None:
            return own
        if own is None:
            return SourceBuild(binaries="official", tools=ref.tools, location=ref.location)
        return replace(own, tools=ref.tools)

    @property
    def compiles(self) -> bool:
        """Whether a wheel is compiled for it, on its own platform."""
        return bool(self.flavor.extras) or (self.build is not None and self.build.compiles)

    @property
    def origins(self) -> dict[str, Location]:
        """What its wheels are built from, as the matrix writes it, with where that is declared."""
        build = self.build
        found = dict.fromkeys(build.sources.values(), build.location) if build else {}
        for extra in self.flavor.extras:
            found |= dict.fromkeys(extra.origins, extra.location)
        return found

    @property
    def named(self) -> Mapping[str, str]:
        """The axes as conditions and tags have them: with the words of a git ref."""
        return {**self.axes, "vllm": self.ref.words} if self.ref else self.axes

    @property
    def platform(self) -> Platform:
        """The platform that the image is for."""
        return Platform(self.axes["platform"])

    @property
    def python(self) -> str:
        """The image's Python version, as ``X.Y``."""
        return self.axes["python"]

    @property
    def channel(self) -> str:
        """The PyTorch wheel channel, such as ``cu130`` or ``cpu``."""
        return self.axes["channel"]

    @property
    def vllm(self) -> str:
        """The version of vLLM."""
        return self.axes["vllm"]

    @property
    def torch(self) -> str:
        """The torch release."""
        return self.axes["torch"]

    @property
    def tag(self) -> str:
        """The main image reference; ``tags`` has all of them."""
        return self.tags[0]

    @property
    def pins(self) -> dict[str, str]:
        """The axes that are versions of something inside the image, and the user's own."""
        return {axis: self.axes[axis] for axis in pins_of(self.axes) if axis in self.axes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The input of a resolution; cells with equal requests share one resolution.

    Attributes:
        platform: OCI platform of the target.
        python: the target's Python, ``X.Y``.
        glibc: the glibc of the target's base, ``X.Y``.
        channel: the PyTorch wheel channel that the resolved torch must belong to.
        requirements: PEP 508 requirements, sorted.
        overrides: replaced or dropped requirements, sorted by package.
        indexes: packages that come from an index of the matrix, sorted.
    """

    platform: Platform
    python: str
    glibc: str
    channel: str
    requirements: tuple[str, ...]
    overrides: tuple[Override, ...]
    indexes: tuple[NamedIndex, ...] = ()


def request_of(cell: Cell) -> Request:
    """The resolution request of ``cell``."""
    return Request(
        platform=cell.platform,
        python=cell.python,
        glibc=cell.flavor.base.glibc,
        channel=cell.channel,
        requirements=tuple(sorted(cell.requirements)),
        overrides=tuple(sorted(cell.overrides, key=lambda o: (o.package, o.requirement))),
        indexes=cell.indexes,
    )
