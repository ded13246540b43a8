"""Looks at the install layers as one: which torch they make, and what they have in common. Standard
library only: it runs in the builder.

    python -m factory.belt TORCH_VERSION [CUDA]

/in holds the layers, numbered from the bottom up, each as layer.py left it. torch is installed once
more from its locked hash (/list.txt) and compared with theirs: what differs goes to /out/root,
which is laid over them. A layer with another version of torch ends the build, and so does a file
inside torch's folder that the locked wheel does not have, because a layer on top cannot remove it.

/out/report.json records the torch after each layer, and what the layers left out. With CUDA (such
as nvidia/cu13), the folder of site-packages with CUDA's libraries, /out/cuda gets empty files by
the names of its headers and libraries: all that toolchain.py asks about them.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import identity
from .layer import OUT, Target, set_dates, target_of, unpack, write_report

IN = Path("/in")


@dataclass(frozen=True)
class Layer:
    """An install layer: its name, its files, and what was left out of it (trim.py's record)."""

    name: str
    root: Path
    dropped: list[dict[str, Any]]


def layers_in(folder: Path) -> list[Layer]:
    """The layers that are mounted in ``folder``, from the bottom up."""
    found = []
    for entry in sorted(folder.iterdir(), key=lambda path: int(path.name)):
        report = json.loads((entry / "report.json").read_text(encoding="utf-8"))
        found.append(Layer(report["layer"], entry / "root", report["dropped"]))
    return found


def files(root: Path) -> Iterator[Path]:
    """Relative paths of all files and links below ``root``, sorted."""
    return (p.relative_to(root) for p in sorted(root.rglob("*")) if p.is_symlink() or p.is_file())


def swapped(fresh: Path, layers: Sequence[Path], dropped: Collection[str] = ()) -> list[Path]:
    """What must be put back so that the stack of ``layers`` has exactly the torch of ``fresh``.

    ``dropped``, relative to site-packages, was left out on purpose. RECORD is the installer's;
    torch's own files are compared in full.
    """
    back = []
    for name in files(fresh):
        if name.as_posix().partition("/site-packages/")[2] in dropped or name.name == "RECORD":
            continue
        top = next((layer / name for layer in reversed(layers) if (layer / name).is_file()), None)
        if top is None or not filecmp.cmp(fresh / name, top, shallow=False):
            back.append(name)
    return back


def strangers(fresh: Path, layers: Sequence[Path]) -> list[Path]:
    """Files of ``layers`` inside torch's folder that the locked wheel does not have."""
    found = []
    for torch in fresh.glob("**/site-packages/torch"):
        inside = torch.relative_to(fresh)
        known = set(files(torch))
        for layer in layers:
            found += [
                inside / name
                for name in files(layer / inside)
                if name not in known and "__pycache__" not in name.parts
            ]
    return found


def put_back(fresh: Path, layers: Sequence[Layer], out: Path) -> None:
    """Copy what was swapped to ``out``. Raises SystemExit if there are strangers."""
    roots = [layer.root for layer in layers]
    extra = strangers(fresh, roots)
    if extra:
        names = ", ".join(map(str, extra[:5]))
        sys.exit(f"torch/ holds {len(extra)} files that the locked wheel does not have: {names}")
    dropped = {name for layer in layers for row in layer.dropped for name, _ in row["files"]}
    out.mkdir(parents=True)
    back = swapped(fresh, roots, dropped)
    for name in back:
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(fresh / name, target, follow_symlinks=False)
    print(f"belt: {len(back)} files of torch had been swapped{': ' + str(back[0]) if back else ''}")


def name_cuda(layers: Sequence[Layer], cuda: Path, out: Path) -> None:
    """Make ``out`` a tree of empty files by the names of the headers and libraries in ``cuda``."""
    for part in ("include", "lib"):
        (out / part).mkdir(parents=True)
        for layer in layers:
            for path in (layer.root / cuda / part).glob("*"):
                (out / part / path.name).touch()


def main(torch: str, cuda: str, target: Target, *, folder: Path = IN, out: Path = OUT) -> None:
    """Judge, put back and report."""
    layers = layers_in(folder)
    rows = identity.after_each([(one.name, one.root / target.site) for one in layers], torch)
    with tempfile.TemporaryDirectory() as fresh:
        unpack(Path(fresh), target)
        put_back(Path(fresh), layers, out / "root")
    set_dates(out / "root")
    if cuda:
        name_cuda(layers, Path(target.site, cuda), out / "cuda")
    dropped = [
        {"layer": one.name, **row}
        for one in sorted(layers, key=lambda layer: layer.name)
        for row in one.dropped
    ]
    write_report(out, {"layers": rows, "dropped": dropped})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "", target_of(os.environ))
