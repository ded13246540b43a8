"""The plan of one image: everything that decides its content, hashed into its build key. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from imagefactory.inbuild.manifest import PROGRAMS
from imagefactory.locking.lock import LockedBase, LockedToolchain, Resolution
from imagefactory.matrix.cell import Base, Cell
from imagefactory.patching.patch import Step, unproven
from imagefactory.planning import context, image_config, render
from imagefactory.planning.image_config import LABEL
from imagefactory.planning.templates import read
from imagefactory.system.platforms import Platform

__all__ = ["LABEL", "ROOT", "BaseImage", "CellPlan", "base_image", "compose"]
NO_KEY = "0" * 64
#: The build context with the system that is assembled from the packages of a base.
ROOT = "root"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """A base as it is locked for one platform.

    Attributes:
        base: what the matrix declares.
        locked: what the lock has for it.
        reference: what FROM names: a reference by digest, or the build context ``ROOT``.
        digest: of the image in the registry, or of the packages and what assembles them.
    """

    base: Base
    locked: LockedBase
    reference: str
    digest: str

    @property
    def platform(self) -> Platform:
        """Its OCI platform."""
        return self.locked.platform

    @property
    def origin(self) -> str:
        """``debian`` for a base of packages, ``registry`` for an image."""
        return "debian" if self.locked.suite else "registry"


def base_image(base: Base, locked: LockedBase) -> BaseImage:
    """The base of images, from what is locked for it."""
    if locked.digest:
        reference = f"{locked.image.partition('@')[0]}@{locked.digest}"
        return BaseImage(base=base, locked=locked, reference=reference, digest=locked.digest)
    packages = [f"{deb.name} {deb.version} {deb.sha256}" for deb in locked.debs]
    key = context.key_of([locked.suite, locked.platform, packages, context.assembler()])
    return BaseImage(base=base, locked=locked, reference=ROOT, digest=f"sha256:{key}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """A cell with all that its image is made of.

    Attributes:
        cell: the cell.
        resolution: its wheels.
        series: its patches, in order, with the variants for its versions.
        base: the base of the image.
        build_key: hash of everything that decides the content.
        labels: the image's labels, the build key among them.
        files: build context: relative path -> bytes.
        toolchain: the compilers that the image carries, or None.
    """

    cell: Cell
    resolution: Resolution
    series: tuple[Step, ...]
    base: BaseImage
    build_key: str
    labels: Mapping[str, str]
    files: Mapping[str, bytes]
    toolchain: LockedToolchain | None = None

    @property
    def epoch(self) -> int:
        """SOURCE_DATE_EPOCH of the image, seconds: the day on which its wheels were resolved."""
        return int(datetime.fromisoformat(f"{self.resolution.created}T00:00:00+00:00").timestamp())

    @property
    def unproven(self) -> tuple[str, ...]:
        """The names of its unproven patches."""
        return unproven(self.series)

    @property
    def dockerfile(self) -> str:
        """The text of the cell's Dockerfile."""
        return self.files["Dockerfile"].decode()


def compose(
    cell: Cell,
    resolution: Resolution,
    series: Sequence[Step],
    base: BaseImage,
    *,
    templates: tuple[Path, ...],
    toolchain: LockedToolchain | None = None,
) -> CellPlan:
    """Plan one cell. Raises InputError for a value that cannot be written into a Dockerfile."""
    files = {
        **context.wheel_lists(resolution, toolchain),
        **context.patch_files(series, cell.build),
        **context.program_files("image"),
        **{f"image/{name}": read(render.find(templates, name)).encode() for name in PROGRAMS},
    }
    labels = image_config.labels(cell, resolution, series, base.locked, base_digest=base.digest)
    # rendered once: the key is computed from the text with zeros where the key goes
    text = _dockerfile(
        cell,
        resolution,
        toolchain,
        base.locked,
        templates=templates,
        labels={**labels, f"{LABEL}.build-key": NO_KEY},
    )
    base_text = render.base_dockerfile(templates, base.locked, base.reference)
    key = context.key_of(
        [
            context.sha(text.encode()),
            context.sha(base_text.encode()),
            base.digest,
            *_added(base.locked),
            cell.platform,
            context.stacker(),
            {name: context.sha(content) for name, content in files.items()},
        ]
    )
    home = image_config.cuda_home(cell, toolchain, base.locked)
    files["image/manifest.json"] = context.manifest(
        cell, resolution, toolchain, key=key, cuda_home=home
    )
    files["Dockerfile"] = text.replace(NO_KEY, key).encode()
    return CellPlan(
        cell=cell,
        resolution=resolution,
        series=tuple(series),
        base=base,
        build_key=key,
        labels={**labels, f"{LABEL}.build-key": key},
        files=files,
        toolchain=toolchain,
    )


def _added(locked: LockedBase) -> list[object]:
    """What decides the packages that are added to an image of a registry, if there are any."""
    if locked.suite or not locked.debs:
        return []
    return [[deb.sha256 for deb in locked.debs], context.assembler()]


def _dockerfile(
    cell: Cell,
    resolution: Resolution,
    toolchain: LockedToolchain | None,
    locked: LockedBase,
    *,
    templates: tuple[Path, ...],
    labels: Mapping[str, str],
) -> str:
    values = {
        "cell": {"name": cell.name},
        "python": cell.python,
        "layers": [{"name": layer.name} for layer in context.layers_of(resolution)],
        "toolchain": bool(toolchain),
        "env": sorted(image_config.environment(cell, toolchain, locked).items()),
        "labels": sorted(labels.items()),
    }
    return render.render(templates, "Dockerfile.j2", values)
