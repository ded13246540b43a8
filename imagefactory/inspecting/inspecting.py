"""The inspecting station: reads what an image in the engine contains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from imagefactory.inspecting import anatomy
from imagefactory.inspecting.anatomy import Anatomy
from imagefactory.planning.cell_plan import LABEL
from imagefactory.system.engine import Engine

MANIFEST = "/opt/imagefactory/manifest.json"


def look(engine: Engine, ref: str) -> Anatomy:
    """The anatomy of an image in the engine.

    Raises CheckFailedError if there is no such image, SetupError if the engine fails.
    """
    image = engine.inspect_image(ref)
    ours = f"{LABEL}.build-key" in image.labels
    manifest = _manifest(engine, ref) if ours else {}
    return Anatomy(
        ref=ref,
        digest=image.digest,
        platform=image.platform,
        labels=image.labels,
        env=image.env,
        layers=anatomy.layers_of(image.layers, engine.history(ref), anatomy.copies(manifest)),
        packages={wheel["name"]: wheel["version"] for wheel in manifest.get("wheels", ())},
        patches={patch["name"]: patch["state"] for patch in manifest.get("patches", ())},
        hashes={wheel["name"]: wheel["sha256"] for wheel in manifest.get("wheels", ())},
        dropped=anatomy.dropped_of(manifest),
        unknown=f"it has no {MANIFEST} that can be read" if ours and not manifest else "",
    )


def _manifest(engine: Engine, ref: str) -> Mapping[str, Any]:
    text = engine.read_file(ref, MANIFEST)
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
