"""What the commands that look at images share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from imagefactory.inspecting import anatomy
from imagefactory.inspecting.anatomy import Anatomy, Layer
from imagefactory.inspecting.filetree import FileChange
from imagefactory.planning.cell_plan import LABEL
from imagefactory.system import ui
from imagefactory.system.engine import Engine

MANIFEST = "/opt/imagefactory/manifest.json"
#: As many files as a person reads.
MOST_FILES = 50


def look(engine: Engine, ref: str) -> Anatomy:
    """The anatomy of an image in the engine.

    Raises CheckFailedError if there is none of that name.
    """
    image = engine.inspect_image(ref)
    manifest = _manifest(engine, ref) if f"{LABEL}.build-key" in image.labels else {}
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
    )


def _manifest(engine: Engine, ref: str) -> Mapping[str, Any]:
    text = engine.read_file(ref, MANIFEST)
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def layers(title: str, layers: Sequence[Layer]) -> None:
    """A table of layers."""
    ui.table(
        title,
        ["digest", "holds", "unpacked"],
        [[one.digest[:19], one.purpose, ui.size(one.size)] for one in layers],
    )


def files(changes: Sequence[FileChange]) -> None:
    """A table of files, if there are any."""
    if changes:
        rows = [
            [ui.escape(c.path), c.what, ui.size(c.old_size), ui.size(c.new_size)]
            for c in changes[:MOST_FILES]
        ]
        ui.table(f"{len(changes)} files differ", ["file", "what", "old", "new"], rows)
    if len(changes) > MOST_FILES:
        ui.say(f"the first {MOST_FILES} of {len(changes)} files; --json names all of them")
