"""The provenance of an image, as SLSA 1.0 has it: who built it, how, and from what. Pure."""

from __future__ import annotations

from typing import Any

from imagefactory import __version__
from imagefactory.planning import context
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.publishing import materials

PREDICATE = "https://slsa.dev/provenance/v1"
BUILD, BUILDER = "https://imagefactory.io/build/v1", "https://imagefactory.io/builder/v1"


def make(plan: CellPlan, *, sbom: str, sbom_type: str) -> dict[str, Any]:
    """The predicate for the image of ``plan``; ``sbom`` is the digest of its SBOM.

    It has no times: equal inputs give equal images, whenever they are built.
    """
    return {
        "buildDefinition": {
            "buildType": BUILD,
            "externalParameters": {
                "command": ["imagefactory", "build", "--matrix", "--select", plan.cell.name],
                "cell": plan.cell.name,
                "platform": str(plan.cell.platform),
                "axes": dict(plan.cell.axes),
            },
            "internalParameters": {
                "buildKey": plan.build_key,
                "lockDigest": plan.labels[f"{LABEL}.lock-digest"],
                "base": plan.base.digest,
            },
            "resolvedDependencies": [
                {"name": one.name, "uri": one.purl, "digest": {"sha256": one.sha256}}
                for one in materials.of(plan)
            ]
            + [
                {"name": step.patch.name, "uri": f"patches/{path}", "digest": _digest(plan, path)}
                for step in plan.series
                if step.variant
                for path in [f"{step.patch.name}/{step.variant.diff.name}"]
                if f"patches/{path}" in plan.files
            ],
        },
        "runDetails": {
            "builder": {"id": BUILDER, "version": {"imagefactory": __version__}},
            "metadata": {"invocationId": plan.build_key},
            "byproducts": [
                {
                    "name": "sbom",
                    "mediaType": sbom_type,
                    "digest": {"sha256": sbom.partition(":")[2]},
                }
            ],
        },
    }


def _digest(plan: CellPlan, path: str) -> dict[str, str]:
    return {"sha256": context.sha(plan.files[f"patches/{path}"])}
