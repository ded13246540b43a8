"""What an image contains, and how two images differ, from labels, manifest and layers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from imagefactory.planning.layers import MADE_BY

#: The purpose of a layer, by a word in the step that made it.
STEPS = {"apt-get": "distribution packages", "venv": "Python environment"}
#: The purposes of layers of wheels by their names; that of a large wheel has the wheel's name.
GROUPS = {
    "cuda-torch": "small wheels of CUDA and torch",
    "dependencies": "other dependencies",
    "vllm": "vLLM and FlashInfer",
}
#: The purposes of layers copied from other stages, whose steps look alike.
LAST = ("patches", "manifest and entrypoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of an image: digest of its unpacked content, purpose, unpacked size in bytes.

    The size is None if it is unknown: the engine has not unpacked the image.
    """

    digest: str
    purpose: str
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The number and bytes of the files that a rule removed from an install layer."""

    layer: str
    rule: str
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """What an image contains.

    Attributes:
        ref: the reference by which it was looked up.
        digest: of the image.
        platform: OCI platform.
        labels: all labels.
        env: the environment variables.
        layers: from the bottom up.
        packages: name -> version of every wheel in it; empty if imagefactory did not build it.
        unknown: why packages, patches and what was left out are not known; empty if they are.
        patches: name -> state of every patch of its series.
        hashes: name -> SHA-256 of every wheel in it.
        dropped: unused files of the wheels that were left out of the image.
    """

    ref: str
    digest: str
    platform: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    layers: tuple[Layer, ...]
    packages: Mapping[str, str]
    patches: Mapping[str, str]
    hashes: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[Dropped, ...] = ()
    unknown: str = ""

    @property
    def size(self) -> int | None:
        """Unpacked bytes of all layers; None if they are unknown."""
        return total(self.layers)

    def as_dict(self) -> dict[str, Any]:
        """The image as plain JSON values; what is unknown is null."""
        found = {**asdict(self), "size": self.size}
        if self.unknown:
            found |= dict.fromkeys(("packages", "patches", "hashes", "dropped"))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference: its kind (``pin``, ``package``, ``patch``, ``setting``), name and values."""

    kind: str
    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference between two images.

    Attributes:
        changes: pins, packages, patches and settings that were added, removed or changed.
        shared: layers of the second image that the first has too.
        moved: layers of the second image that the first does not have.
    """

    changes: tuple[Change, ...]
    shared: tuple[Layer, ...]
    moved: tuple[Layer, ...]

    @property
    def bytes_moved(self) -> int | None:
        """Unpacked bytes of the layers that would have to be transferred; None if unknown."""
        return total(self.moved)

    def as_dict(self) -> dict[str, Any]:
        """The difference as plain JSON values."""
        return {**asdict(self), "bytes_moved": self.bytes_moved}


def total(layers: Sequence[Layer]) -> int | None:
    """Unpacked bytes of ``layers``; None if those of one are unknown."""
    known = [layer.size for layer in layers if layer.size is not None]
    return sum(known) if len(known) == len(layers) else None


def copies(manifest: Mapping[str, Any]) -> list[str]:
    """The purposes of the copied layers of an image that imagefactory built, in order."""
    return list(LAST) if manifest.get("layers") else []


def biggest(image: Anatomy, sizes: Mapping[str, int], most: int) -> list[tuple[str, str, int]]:
    """The ``most`` largest wheels of an image: name, version, compressed bytes.

    ``sizes`` maps the SHA-256 of a wheel to its bytes.
    """
    known = [
        (name, image.packages[name], sizes[sha])
        for name, sha in image.hashes.items()
        if sha in sizes
    ]
    return sorted(known, key=lambda row: (-row[2], row[0]))[:most]


def dropped_of(manifest: Mapping[str, Any]) -> tuple[Dropped, ...]:
    """The files that were left out of an image that imagefactory built."""
    return tuple(
        Dropped(
            layer=GROUPS.get(row["layer"], row["layer"]),
            rule=row["rule"],
            files=row["files"],
            size=row["bytes"],
        )
        for row in manifest.get("dropped", ())
    )


def layers_of(
    digests: Sequence[str], history: Sequence[tuple[str, int]], copied: Sequence[str] = ()
) -> tuple[Layer, ...]:
    """Layers with their purposes.

    ``history`` has (step, bytes) for each layer from the bottom up, ``copied`` the purposes of the
    copied layers in order. If the counts do not match, as after a squash, purposes are empty and
    sizes unknown. So are sizes that are all 0: an engine that has not unpacked an image says that.
    """
    if len(digests) != len(history):
        return tuple(Layer(digest=digest, purpose="", size=None) for digest in digests)
    unpacked = any(size for _, size in history)
    from_stages = sum(_from_stage(step) for step, _ in history)
    names = iter(copied if from_stages == len(copied) else [""] * from_stages)
    return tuple(
        Layer(
            digest=digest,
            purpose=next(names) if _from_stage(step) else _purpose(step),
            size=size if unpacked else None,
        )
        for digest, (step, size) in zip(digests, history, strict=True)
    )


def _from_stage(step: str) -> bool:
    """Whether a step copies a layer of the cell; a base copies its Python environment."""
    return step.startswith("COPY") and not any(word in step for word in STEPS)


def _purpose(step: str) -> str:
    if step.startswith(MADE_BY):
        name = step.removeprefix(MADE_BY)
        return GROUPS.get(name, name)
    return next((purpose for word, purpose in STEPS.items() if word in step), "base")


def compare(old: Anatomy, new: Anatomy, *, pin_prefix: str) -> Difference:
    """The changes of an upgrade from ``old`` to ``new``; pins are labels with ``pin_prefix``."""
    pins = [
        {
            key.removeprefix(pin_prefix): value
            for key, value in one.labels.items()
            if key.startswith(pin_prefix)
        }
        for one in (old, new)
    ]
    changes = [
        *_changes("pin", *pins),
        *_changes("package", old.packages, new.packages),
        *_changes("patch", old.patches, new.patches),
        *_changes("setting", old.env, new.env),
    ]
    existing = {layer.digest for layer in old.layers}
    return Difference(
        changes=tuple(changes),
        shared=tuple(layer for layer in new.layers if layer.digest in existing),
        moved=tuple(layer for layer in new.layers if layer.digest not in existing),
    )


def _changes(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    names = sorted({*old, *new})
    return [
        Change(kind=kind, name=name, old=old.get(name, ""), new=new.get(name, ""))
        for name in names
        if old.get(name) != new.get(name)
    ]
