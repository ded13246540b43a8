"""Makes the top layer of an image: its entrypoint, its manifest and its patches' proofs. Standard
library only: it runs in the builder.

    python -m factory.manifest

/in contains the planned manifest, the report on the layers of wheels and the PROGRAMS (image/),
the series (patches/), and the report of patched.py (patched.json).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from .layer import OUT, set_dates

IN = Path("/in")
FOLDER = "opt/imagefactory"
#: What runs in containers, of the templates, with its mode.
PROGRAMS = {"entrypoint": 0o755, "nodes.py": 0o644}


def complete(planned: dict[str, Any], layers: dict[str, Any], patched: list[Any]) -> dict[str, Any]:
    """The manifest: what was planned, and what the build recorded.

    It says how much each rule removed; dropped.json lists every file.
    """
    dropped = [
        {**row, "files": len(row["files"]), "bytes": sum(size for _, size in row["files"])}
        for row in layers["dropped"]
    ]
    return {**planned, "layers": layers["layers"], "patches": patched, "dropped": dropped}


def copy_proofs(patches: Path, out: Path) -> None:
    """Copy every proof of the series in ``patches`` to ``<project>/<name>/proof.py`` in ``out``.

    The package that they import goes next to them, to ``proofkit``.
    """
    steps = json.loads((patches / "series.json").read_text(encoding="utf-8"))
    for row in (row for row in steps if row.get("proof")):
        proof = out / row["name"] / "proof.py"
        proof.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(patches / row["proof"], proof)
        kit = Path(__file__).with_name("proofkit")
        (out / kit.name).mkdir(exist_ok=True)
        for module in kit.glob("*.py"):
            shutil.copyfile(module, out / kit.name / module.name)


def main(folder: Path = IN, root: Path = OUT / "root") -> None:
    """Write the layer to ``root``."""
    names = ("image/manifest", "image/layers", "patched")
    planned, layers, patched = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names
    )
    out = root / FOLDER
    out.mkdir(parents=True)
    write(out / "manifest.json", complete(planned, layers, patched))
    write(out / "dropped.json", layers["dropped"])
    copy_proofs(folder / "patches", out / "proofs")
    for name, mode in PROGRAMS.items():
        shutil.copyfile(folder / "image" / name, out / name)
        (out / name).chmod(mode)
    set_dates(root)


def write(path: Path, value: object) -> None:
    """Write JSON, indented for people."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
