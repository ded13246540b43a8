"""Makes the layer of patches: the changed files and no others. Standard library and git only: it
runs in the builder.

    python -m factory.patched

/out/root is the layer of wheels that layer.py made, /patches the series (see overlay.py). Changed
files go to /patched/root, the record of what happened to each patch to /patched/report.json.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import overlay
from .layer import OUT, Target, set_dates, target_of

PATCHES, PATCHED = Path("/patches"), Path("/patched")


def main(target: Target, *, patches: Path = PATCHES, out: Path = PATCHED, layer: Path = OUT) -> int:
    """Apply the series; 1 if a patch conflicts or is broken."""
    changed = out / "root" / target.site
    changed.mkdir(parents=True)
    code = overlay.main(layer / "root" / target.site, patches, changed)
    if code == 0:
        changed.with_name(f"{changed.name}.json").rename(out / "report.json")
        set_dates(out / "root")
    return code


if __name__ == "__main__":
    sys.exit(main(target_of(os.environ)))
