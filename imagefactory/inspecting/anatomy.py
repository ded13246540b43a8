"""What an image is made of, and what differs between two: told from labels, manifest and layers.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: What a layer is for, by a word of the step that made it.
STEPS = {"apt-get": "distribution packages", "venv": "Python environment", "WORKDIR": "folder"}
#: The same for the layers that are copied from other stages, whose steps all look alike; by the
#: manifest's names. A large wheel's layer has the wheel's own.
GROUPS = {
    "cuda-torch": "small wheels of CUDA and torch",
    "dependencies": "other dependencies",
    "vllm": "vLLM and FlashInfer",
}
LAST = ("forced torch, where it differed", "patches", "manifest and entrypoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of an image.

    Digest of its unpacked content, what it is for, unpacked size in bytes.
    """

    digest: str
    purpose: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What one rule left out of one install layer: number of files and their bytes."""

    layer: str
    rule: str
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """What is known of one image.

    Attributes:
        ref: the reference that was asked for.
        digest: of the image.
        platform: OCI platform.
        labels: all labels.
        env: the environment.
        layers: from the bottom up.
        packages: name -> version of every wheel in it; empty for an image that imagefactory did not
            make.
        hashes: name -> SHA-256 of every wheel in it.
        patches: name -> state of every patch of its series.
        dropped: what the wheels have and the image has not, for nobody uses it.
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

    @property
    def size(self) -> int:
        """Unpacked bytes of all layers."""
        return sum(layer.size for layer in self.layers)

    def as_dict(self) -> dict[str, Any]:
        """The image as plain JSON values."""
        return {**asdict(self), "size": self.size}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is different.

    Its kind (``pin``, ``package``, ``patch``, ``setting``), its name, both sides.
    """

    kind: str
    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What is different between two images.

    Attributes:
        changes: pins, packages, patches and settings that came, went or changed.
        shared: layers of the second that the first has, bit for bit.
        moved: layers of the second that somebody with the first does not have.
    """

    changes: tuple[Change, ...]
    shared: tuple[Layer, ...]
    moved: tuple[Layer, ...]

    @property
    def bytes_moved(self) -> int:
        """Unpacked bytes of the layers that have to move."""
        return sum(layer.size for layer in self.moved)

    def as_dict(self) -> dict[str, Any]:
        """The difference as plain JSON values."""
        return {**asdict(self), "bytes_moved": self.bytes_moved}


def copies(manifest: Mapping[str, Any]) -> list[str]:
    """What is copied into an image of imagefactory's, in order."""
    groups = [GROUPS.get(layer["group"], layer["group"]) for layer in manifest.get("layers", ())]
    return [*(["compilers"] if manifest.get("toolchain") else []), *groups, *LAST] if groups else []


def biggest(image: Anatomy, sizes: Mapping[str, int], most: int) -> list[tuple[str, str, int]]:
    """The ``most`` biggest of an image's wheels: name, version, compressed bytes.

    ``sizes`` goes by SHA-256.
    """
    known = [
        (name, image.packages[name], sizes[sha])
        for name, sha in image.hashes.items()
        if sha in sizes
    ]
    return sorted(known, key=lambda row: (-row[2], row[0]))[:most]


def dropped_of(manifest: Mapping[str, Any]) -> tuple[Dropped, ...]:
    """What was left out of an image of imagefactory's."""
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
    """Layers with what they are for; ``history`` is (what made it, bytes) from the bottom up,
    layers only.

    ``copied`` names the copied layers in order. Where the counts do not match, as after a squash,
    nothing is claimed.
    """
    if len(digests) != len(history):
        return tuple(Layer(digest=digest, purpose="", size=0) for digest in digests)
    from_stages = sum(made.startswith("COPY") for made, _ in history)
    names = iter(copied if from_stages == len(copied) else [""] * from_stages)
    return tuple(
        Layer(
            digest=digest,
            purpose=next(names) if made.startswith("COPY") else _purpose(made),
            size=size,
        )
        for digest, (made, size) in zip(digests, history, strict=True)
    )


def _purpose(made: str) -> str:
    return next((purpose for word, purpose in STEPS.items() if word in made), "base")


def compare(old: Anatomy, new: Anatomy, *, pin_prefix: str) -> Difference:
    """What somebody who has ``old`` gets with ``new``.

    ``pin_prefix`` begins the labels that are pins.
    """
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
    had = {layer.digest for layer in old.layers}
    return Difference(
        changes=tuple(changes),
        shared=tuple(layer for layer in new.layers if layer.digest in had),
        moved=tuple(layer for layer in new.layers if layer.digest not in had),
    )


def _changes(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    names = sorted({*old, *new})
    return [
        Change(kind=kind, name=name, old=old.get(name, ""), new=new.get(name, ""))
        for name in names
        if old.get(name) != new.get(name)
    ]
