"""Checks the install layers together, and restores torch if one of them changed it. Standard
library only: it runs in the builder.

    python -m factory.belt TORCH_VERSION [CUDA]

/in contains the layers, numbered from the bottom up, each as layer.py wrote it. torch is installed
once more, by its locked hash (/list.txt), and compared with the layers: files that differ go to
/out/root, the layer above them. The build fails if a layer has another version of torch, or a file
in torch's folder that the locked wheel does not have, because a layer above cannot remove it.

/out/report.json records the torch after each layer, and what was removed from the layers. With CUDA
(such as nvidia/cu13), the folder in site-packages that has CUDA's libraries, /out/cuda gets an
empty file for each of its headers and libraries: toolchain.py needs only their names.
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
    """An install layer: its name, its files, and what was removed from it (trim.py's record)."""

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
    """The files to restore so that the stack of ``layers`` has exactly the torch of ``fresh``.

    ``dropped``, relative to site-packages, was removed on purpose. RECORD is written by the
    installer; torch's own files are all compared.
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
    """Files of ``layers`` in torch's folder that the locked wheel does not have."""
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


def restore(fresh: Path, layers: Sequence[Layer], out: Path) -> None:
    """Copy swapped files to ``out``. Raises SystemExit if there are strangers."""
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
    """Create an empty file in ``out`` for each header and library of the folder ``cuda``."""
    for part in ("include", "lib"):
        (out / part).mkdir(parents=True)
        for layer in layers:
            for path in (layer.root / cuda / part).glob("*"):
                (out / part / path.name).touch()


def main(torch: str, cuda: str, target: Target, *, folder: Path = IN, out: Path = OUT) -> None:
    """Check the layers, restore torch and write the report."""
    layers = layers_in(folder)
    rows = identity.after_each([(one.name, one.root / target.site) for one in layers], torch)
    with tempfile.TemporaryDirectory() as fresh:
        unpack(Path(fresh), target)
        restore(Path(fresh), layers, out / "root")
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
