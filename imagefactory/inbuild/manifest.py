"""Writes ``manifest.json`` of an image and puts the proofs beside it. Standard library only: it
runs in the builder.

    python manifest.py PLANNED LAYERS PATCHED DROPPED SERIES OUT

PLANNED is what the plan knew; LAYERS, PATCHED and the files in DROPPED, one a layer, are what the
build saw (identity.py, overlay.py, trim.py).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path


def main(
    planned: Path, layers: Path, patched: Path, dropped: Path, series: Path, out: Path
) -> None:
    """Join the records; copy every proof to ``OUT/proofs/<project>/<name>/proof.py``.

    What they import lies beside them, in ``OUT/proofs/proofkit.py``. The manifest says how much
    each rule dropped; ``OUT/dropped.json`` names every file.
    """
    manifest = json.loads(planned.read_text(encoding="utf-8"))
    manifest["layers"] = json.loads(layers.read_text(encoding="utf-8"))
    manifest["patches"] = json.loads(patched.read_text(encoding="utf-8"))
    rows = [
        {"layer": file.stem, **row}
        for file in sorted(dropped.glob("*.json"))
        for row in json.loads(file.read_text(encoding="utf-8"))
    ]
    manifest["dropped"] = [
        {**row, "files": len(row["files"]), "bytes": sum(size for _, size in row["files"])}
        for row in rows
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "dropped.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    steps = json.loads((series / "series.json").read_text(encoding="utf-8"))
    for row in (row for row in steps if row.get("proof")):
        proof = out / "proofs" / row["name"] / "proof.py"
        proof.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(series / row["proof"], proof)
        shutil.copyfile(Path(__file__).with_name("proofkit.py"), out / "proofs/proofkit.py")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:7]))
