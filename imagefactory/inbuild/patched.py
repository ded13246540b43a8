"""Makes the layer of patches: the changed files and no others. Standard library and git only: it
runs in the builder.

    python -m factory.patched PYTHON

/wheels contains the files that the wheels to patch install for PYTHON (such as 3.13), /patches the
series (see overlay.py). Changed files go to /out/root, the record of what happened to each patch to
/out/report.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import overlay
from .layer import OUT, SITE, set_dates

WHEELS, PATCHES = Path("/wheels"), Path("/patches")


def main(python: str, *, wheels: Path = WHEELS, patches: Path = PATCHES, out: Path = OUT) -> int:
    """Apply the series; 1 if a patch conflicts or is broken."""
    site = SITE.format(python=python)
    changed = out / "root" / site
    changed.mkdir(parents=True)
    code = overlay.main(wheels / site, patches, changed)
    if code == 0:
        changed.with_name(f"{changed.name}.json").rename(out / "report.json")
        set_dates(out / "root")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
