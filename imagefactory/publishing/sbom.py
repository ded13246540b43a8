"""The SBOM of an image, as CycloneDX 1.6: the wheels and packages of its lock, and its patches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from imagefactory import __version__
from imagefactory.patching.patch import Step
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.layers import PATCHED
from imagefactory.publishing import materials, tags
from imagefactory.publishing.materials import Material

if TYPE_CHECKING:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, Pedigree


def make(plan: CellPlan, digest: str = "") -> bytes:
    """The SBOM of the image ``digest``, made from ``plan``; equal plans give equal bytes.

    Without a digest it is that of an image that nobody has built yet.
    """
    # half a second, which only a push spends
    from cyclonedx.output import make_outputter  # noqa: PLC0415
    from cyclonedx.schema import OutputFormat, SchemaVersion  # noqa: PLC0415

    written = make_outputter(_bom(plan, digest), OutputFormat.JSON, SchemaVersion.V1_6)
    return written.output_as_string(indent=1).encode()


def _bom(plan: CellPlan, digest: str) -> Bom:
    from cyclonedx.model.bom import Bom, BomMetaData  # noqa: PLC0415 - as above
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from cyclonedx.model.tool import ToolRepository  # noqa: PLC0415

    tool = Component(name="imagefactory", version=__version__, type=ComponentType.APPLICATION)
    image = _image(plan, digest)
    at = datetime.fromtimestamp(plan.epoch, UTC)
    metadata = BomMetaData(tools=ToolRepository(components=[tool]), component=image, timestamp=at)
    made = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"oci:{digest or plan.build_key}"), metadata=metadata
    )
    found = {one.sha256: _component(one, _pedigree(plan, one)) for one in materials.of(plan)}
    for component in found.values():
        made.components.add(component)
    made.register_dependency(image, list(found.values()))
    for owner, wanted in _edges(plan):
        made.register_dependency(found[owner], [found[one] for one in wanted])
    return made


def _image(plan: CellPlan, digest: str) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType, Property  # noqa: PLC0415 - as above
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415

    labels = {name: text for name, text in plan.labels.items() if name.startswith("io.")}
    hexes = digest.partition(":")[2]
    return Component(
        name=plan.cell.name,
        version=tags.of_plan(plan),
        type=ComponentType.CONTAINER,
        bom_ref=digest or plan.build_key,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hexes)] if hexes else [],
        properties=[Property(name=name, value=text) for name, text in labels.items()],
    )


def _component(one: Material, pedigree: Pedigree | None) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType  # noqa: PLC0415 - as above
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    purl = PackageURL.from_string(one.purl)
    return Component(
        name=one.name,
        version=one.version,
        type=ComponentType.CONTAINER if purl.type == "oci" else ComponentType.LIBRARY,
        bom_ref=one.sha256,
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one.sha256)],
        pedigree=pedigree,
    )


def _pedigree(plan: CellPlan, one: Material) -> Pedigree | None:
    """The patches that are applied to a wheel."""
    from cyclonedx.model import AttachedText  # noqa: PLC0415 - as above
    from cyclonedx.model.component import (  # noqa: PLC0415
        Diff,
        Patch,
        PatchClassification,
        Pedigree,
    )

    steps = [step for step in plan.series if step.variant and _changes(step, one)]
    if not steps:
        return None
    made = [
        Patch(
            type=PatchClassification.UNOFFICIAL,
            diff=Diff(text=AttachedText(content=_diff(plan, step), content_type="text/x-diff")),
        )
        for step in steps
    ]
    notes = "\n".join(f"{step.patch.name}: {step.patch.summary}" for step in steps)
    return Pedigree(patches=made, notes=notes)


def _changes(step: Step, one: Material) -> bool:
    return one.name in PATCHED and one.name.partition("-")[0] == step.patch.project


def _diff(plan: CellPlan, step: Step) -> str:
    if step.variant is None:
        return ""
    path = step.variant.diff
    content = plan.files.get(f"patches/{step.patch.name}/{path.name}")
    return (path.read_bytes() if content is None else content).decode(errors="replace")


def _edges(plan: CellPlan) -> Iterator[tuple[str, list[str]]]:
    """For each wheel, the wheels that it requires, by hash."""
    wheels = {one.name: one.sha256 for one in plan.resolution.wheels}
    for one in plan.resolution.wheels:
        names = dict.fromkeys(_name_of(text) for text in one.requires or ())
        yield one.sha256, [wheels[name] for name in names if name in wheels and name != one.name]


def _name_of(text: str) -> str:
    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return ""
