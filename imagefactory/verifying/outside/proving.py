"""Runs the proofs of patches on this machine, on the files of an image that is emulated here.

A proof runs code of the tree, so only those of an image are run in which every file has the content
that its cell says: of a locked wheel, as patched here. A proof that needs more than these files, or
says nothing about them here, is left to the image itself.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from imagefactory.inbuild import overlay, proofkit
from imagefactory.patching.patch import Proof, Stage, Step
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.system import temporary
from imagefactory.system.engine import Engine
from imagefactory.verifying.outside import system
from imagefactory.verifying.outside.judged import Proven

#: Files that are larger are libraries, which no proof reads.
MOST_BYTES = 4 << 20
PROOFS_AT_ONCE = 2


def prove(
    engine: Engine, digest: str, plan: CellPlan
) -> tuple[tuple[Proven, ...], tuple[str, ...]]:
    """The results of the proofs that were run here, and the patches whose proofs were not."""
    steps = [step for step in plan.series if _has_proof(step, plan)]
    here = [step for step in steps if _can_run(step.patch.proof)]
    with temporary.folder(prefix="imagefactory-proofs-") as folder:
        tree = folder / "site-packages"
        tree.mkdir()
        for top in _folders(here):
            with engine.folder(digest, f"/{system.install_site(plan)}/{top}") as stream:
                unpack(stream, tree)
        with ThreadPoolExecutor(PROOFS_AT_ONCE) as pool:
            done = list(pool.map(lambda step: _run(step, tree), here))
    results = tuple(one for one in done if one.code in (overlay.RIGHT, overlay.SYMPTOM))
    known = {one.patch for one in results}
    return results, tuple(step.patch.name for step in steps if step.patch.name not in known)


def _has_proof(step: Step, plan: CellPlan) -> bool:
    """Whether there is a proof in the image: see ``planning.context.patch_files``."""
    compiled = plan.cell.build is not None and step.patch.stage is Stage.SOURCE
    return step.patch.proof is not None and not step.exempt and not compiled


def _can_run(proof: Proof | None) -> bool:
    return proof is not None and not proofkit.missing(proof.needs, os.environ)


def _folders(steps: Iterable[Step]) -> Collection[str]:
    """The packages that the patches are of: proofs read their files."""
    return sorted({step.patch.project for step in steps})


def unpack(stream: IO[bytes], folder: Path) -> None:
    """Write the regular files of a tar stream that are no libraries below ``folder``."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            parts = Path(member.name).parts
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or member.size > MOST_BYTES or {"..", "/"} & {*parts}:
                continue
            target = folder.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)


def _run(step: Step, tree: Path) -> Proven:
    proof = step.patch.proof
    if proof is None:
        raise ValueError(f"{step.patch.name} has no proof")
    code, said = overlay.prove(proof.script, tree, {"TMPDIR": str(tree.parent)})
    return Proven(patch=step.patch.name, code=code, output=said)
