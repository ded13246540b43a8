"""The files that patches touched, and how the proofs end on the installed tree."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagefactory.verifying.probe_core import Context

LEAVES_TRACES = True
#: Seconds. Much of a proof's time is Python starting, which takes minutes where the image's
#: platform is emulated.
PROOF_TIMEOUT = 600.0


def facts(context: Context) -> dict[str, Any]:
    """Hashes of the touched files, and the result of every patch's proof.

    With ``context.proofs`` only those are run: the others are run outside.
    """
    patches = context.manifest.get("patches", [])
    names = [str(patch["name"]) for patch in patches]
    if context.proofs is not None:
        names = [name for name in names if name in context.proofs]
    return {
        "files": file_hashes(context.site, patches),
        "proofs": [proof_facts(context, name) for name in names],
    }


def file_hashes(site: Path, patches: Sequence[dict[str, Any]]) -> dict[str, str | None]:
    """SHA-256 of every file that a patch touched; None for a missing one."""
    names = {
        name for patch in patches for name in (*patch.get("files", {}), *patch.get("created", []))
    }
    hashes: dict[str, str | None] = {}
    for name in sorted(names):
        path = site / name
        hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    return hashes


def proof_facts(context: Context, name: str) -> dict[str, Any]:
    """How the proof of one patch ends; exit code None if there is no proof or it does not end."""
    proofs = context.home / "proofs"
    script = proofs / name / "proof.py"
    if not script.is_file():
        return {"patch": name, "code": None, "output": f"there is no {script}"}
    done = context.run(
        [sys.executable, str(script), str(context.site)],
        # Proofs import what lies beside them all.
        env={**os.environ, "PYTHONPATH": str(proofs)},
        timeout=PROOF_TIMEOUT,
    )
    return {"patch": name, **done}
