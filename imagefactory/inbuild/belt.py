"""Compares the layers' torch with one freshly installed from its locked hash. Standard library
only.

    python belt.py FRESH OUT DROPPED LAYER...

Every file below FRESH that the last LAYER holding it has with other bytes, or that no LAYER has,
goes to OUT, but for what was dropped on purpose (DROPPED holds trim.py's reports, one a layer). A
file inside torch's own folder that a LAYER has and FRESH has not cannot be taken away by a layer on
top: exit 1.
"""

from __future__ import annotations

import filecmp
import json
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path


def files(root: Path) -> Iterator[Path]:
    """Relative paths of all files and links below ``root``, sorted."""
    return (p.relative_to(root) for p in sorted(root.rglob("*")) if p.is_symlink() or p.is_file())


def swapped(fresh: Path, layers: Sequence[Path], dropped: Collection[str] = ()) -> list[Path]:
    """What must be put back so that the stack of ``layers`` has exactly the torch of ``fresh``.

    But for ``dropped``.
    """
    back = []
    for name in files(fresh):
        if name.as_posix().partition("/site-packages/")[2] in dropped:
            continue
        if name.name in (
            "RECORD",
            "uv_cache.json",
        ):  # written by the installer; torch's own code is compared in full
            continue
        top = next((layer / name for layer in reversed(layers) if (layer / name).is_file()), None)
        if top is None or not filecmp.cmp(fresh / name, top, shallow=False):
            back.append(name)
    return back


def strangers(fresh: Path, layers: Sequence[Path]) -> list[Path]:
    """Files inside torch's folder that the locked wheel does not have."""
    found = []
    for torch in fresh.glob("**/site-packages/torch"):
        inside = torch.relative_to(fresh)
        known = set(files(torch))
        for layer in layers:
            found += [
                inside / n
                for n in files(layer / inside)
                if n not in known and "__pycache__" not in n.parts
            ]
    return found


def main(fresh: Path, out: Path, dropped: Path, layers: Sequence[Path]) -> int:
    """Write what was swapped to ``out``; exit 1 if there are strangers."""
    extra = strangers(fresh, layers)
    if extra:
        print(
            f"torch/ holds {len(extra)} files that the locked wheel does not have: {extra[:5]}",
            file=sys.stderr,
        )
        return 1
    out.mkdir(parents=True, exist_ok=True)
    reports = [
        row
        for file in sorted(dropped.glob("*.json"))
        for row in json.loads(file.read_text(encoding="utf-8"))
    ]
    back = swapped(fresh, layers, {name for row in reports for name, _ in row["files"]})
    for name in back:
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(fresh / name, target, follow_symlinks=False)
    print(f"belt: {len(back)} files of torch had been swapped{': ' + str(back[0]) if back else ''}")
    return 0


if __name__ == "__main__":
    fresh, out, dropped, *stack = map(Path, sys.argv[1:])
    sys.exit(main(fresh, out, dropped, stack))
