"""Writes ``manifest.json`` of an image and puts the proofs beside it. Standard library only: it runs in the builder.

    python manifest.py PLANNED LAYERS PATCHED SERIES OUT

PLANNED is what the plan knew; LAYERS and PATCHED are what the build saw (identity.py, overlay.py).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path


def main(planned: Path, layers: Path, patched: Path, series: Path, out: Path) -> None:
    """Join the three records, and copy every proof to ``OUT/proofs/<project>/<name>/proof.py``."""
    manifest = json.loads(planned.read_text(encoding="utf-8"))
    manifest["layers"] = json.loads(layers.read_text(encoding="utf-8"))
    manifest["patches"] = json.loads(patched.read_text(encoding="utf-8"))
    out.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    rows = json.loads((series / "series.json").read_text(encoding="utf-8"))
    for row in (row for row in rows if not row.get("exempt")):
        proof = out / "proofs" / row["name"] / "proof.py"
        proof.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(series / row["proof"], proof)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:6]))
