"""What a patch is, and the states it can have on an upstream version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagefactory.inbuild import proofkit
from imagefactory.system.yamlfile import Location

#: The upstream projects that can be patched.
PROJECTS = ("vllm", "flashinfer")
#: The file beside patch.yaml with what an imported patch was made of.
IMPORTED = "imported.diff"


class Stage(StrEnum):
    """Which tree a patch changes: the sdist, or the installed files below ``site-packages``."""

    SOURCE = "source"
    INSTALLED = "installed"


class State(StrEnum):
    """What was measured for one patch on one upstream version."""

    NEEDED = "needed"
    DECLARED = "declared"
    OBSOLETE = "obsolete"
    CONFLICT = "conflict"
    MISSING = "missing"
    BROKEN = "broken"
    UNPROVEN = "unproven"
    NOT_APPLICABLE = "n/a"
    UNKNOWN = "unknown"

    @property
    def stops_build(self) -> bool:
        """Whether a cell with a patch in this state must not be built."""
        return self in (State.CONFLICT, State.MISSING, State.BROKEN)

    @property
    def applied(self) -> bool:
        """Whether the patch is applied; if it has a proof, it works as far as sources show."""
        return self.proven or self is State.UNPROVEN

    @property
    def proven(self) -> bool:
        """Whether the patch is applied, and works as far as its sources show."""
        return self in (State.NEEDED, State.DECLARED)


class Kind(StrEnum):
    """What a patch is for.

    ``fix`` corrects a fault that users meet, ``feature`` adds what upstream never had,
    ``preference`` changes a choice that is not wrong. ``latent`` corrects a fault that nothing is
    known to reach.
    """

    FIX = "fix"
    FEATURE = "feature"
    PREFERENCE = "preference"
    LATENT = "latent"


class Origin(StrEnum):
    """Where a patch comes from: imagefactory's own catalogue, or the folder of a project."""

    STOCK = "stock"
    PROJECT = "project"
    REPLACES_STOCK = "project, replaces stock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The diff of a patch for a range of upstream versions.

    ``moved`` maps paths that the proof knows to those that upstream moved the files to.
    """

    versions: SpecifierSet
    diff: Path
    location: Location
    moved: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """Versions to which the patch does not apply, and why."""

    versions: SpecifierSet
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDiff:
    """Versions that may need a change, and why the patch has no diff for them."""

    versions: SpecifierSet
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOn:
    """Versions on which the patch is of another kind, and why."""

    versions: SpecifierSet
    kind: Kind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The check that fails on the pristine tree and passes on the patched one.

    Attributes:
        script: Python file, run as ``python script TREE``: exit 0 fixed, 1 symptom present, 3
            inconclusive on this machine.
        kind: cheapest sufficient kind: ``static``, ``behaviour``, ``host`` or ``nvcc``; or
            ``installed``, if only an installed tree shows whether the patch is needed.
        needs: what the machine must have beyond Python, such as ``g++``.
    """

    script: Path
    kind: str
    needs: tuple[proofkit.Need, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a patch was imported from: an address, and the SHA-256 of what it gave."""

    address: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A change with a purpose.

    ``name`` is ``project/name``, the folder below ``patches/``; ``shown`` is the path of its
    patch.yaml in messages. A ``draft`` has no proof yet, and no flavor can use it. A patch whose
    ``proof`` is None says in its patch.yaml that it is unproven. ``kind`` holds for all versions
    except those in ``kinds``; ``source`` is what it was imported from, if that is recorded.
    """

    name: str
    origin: Origin
    folder: Path
    shown: str
    draft: bool
    summary: str
    kind: Kind
    kinds: tuple[KindOn, ...]
    stage: Stage
    after: tuple[str, ...]
    variants: tuple[Variant, ...]
    exemptions: tuple[Exemption, ...]
    no_diff: tuple[NoDiff, ...] = ()
    proof: Proof | None
    text: Mapping[str, str]
    source: Source | None = None

    @property
    def unproven(self) -> bool:
        """Whether nothing shows what the patch does; all that is known is that it applies."""
        return self.proof is None

    @property
    def project(self) -> str:
        """The upstream project that is changed, such as ``vllm``."""
        return self.name.partition("/")[0]

    def variant(self, version: str) -> Variant | None:
        """The variant for the upstream ``version``, or None."""
        parsed = Version(version)
        return next(
            (v for v in self.variants if v.versions.contains(parsed, prereleases=True)), None
        )

    def last_before(self, version: str) -> Variant | None:
        """The variant that was made for the newest releases before ``version``, if there is one."""
        parsed = Version(version)
        found = [
            (max(lows), variant)
            for variant in self.variants
            if (lows := [Version(s.version.removesuffix(".*")) for s in variant.versions])
            and min(lows) <= parsed
        ]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def kind_on(self, version: str) -> Kind:
        """What the patch is for on the upstream ``version``."""
        parsed = Version(version)
        found = (k for k in self.kinds if k.versions.contains(parsed, prereleases=True))
        return next((one.kind for one in found), self.kind)

    def exemption(self, version: str) -> Exemption | None:
        """The declared exemption for the upstream ``version``, or None."""
        parsed = Version(version)
        return next(
            (e for e in self.exemptions if e.versions.contains(parsed, prereleases=True)), None
        )

    def why_no_diff(self, version: str) -> str:
        """Why there is no diff for the upstream ``version``; empty if nothing was declared."""
        parsed = Version(version)
        found = (n for n in self.no_diff if n.versions.contains(parsed, prereleases=True))
        return next((one.reason for one in found), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One patch of a cell's series, with the upstream version and its variant for that version.

    ``variant`` is None if there is nothing to apply. ``exempt`` is the declared reason why the
    patch does not apply to this version; empty if it does.
    """

    patch: Patch
    version: str
    variant: Variant | None
    exempt: str = ""


def unproven(series: Sequence[Step]) -> tuple[str, ...]:
    """The names of the unproven patches that a series applies."""
    return tuple(step.patch.name for step in series if step.patch.unproven and not step.exempt)
