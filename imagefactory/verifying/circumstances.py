"""What a receipt says about the image and the machine, besides the results of checks."""

from __future__ import annotations

import os
import platform as python_platform
from collections.abc import Iterator, Mapping
from typing import Any

from imagefactory import __version__
from imagefactory.planning.cell_plan import LABEL
from imagefactory.system import platforms
from imagefactory.system.engine import Engine
from imagefactory.verifying import revision
from imagefactory.verifying.receipt import CHECKS, PatchResult
from imagefactory.verifying.subject import Subject

#: Labels that have fields of their own in a receipt.
ELSEWHERE = ("cell", "build-key", "lock-digest", "unproven", "patch.")
#: How a proof ended, by its exit code.
PROOFS = {0: "pass", 1: "fail", 3: "inconclusive"}
#: Characters of what a proof said that are kept.
MOST = 300


def of(subject: Subject, engine: Engine) -> dict[str, Any]:
    """Fields of the receipt of ``subject``, which was verified with ``engine``."""
    server, buildx = engine.version
    here = platforms.here()
    return {
        "lock_digest": subject.label("lock-digest"),
        "inputs": {**_inputs(subject), "platform": str(subject.image.platform)},
        "patches": _patches(subject),
        "tools": {
            "imagefactory": __version__,
            CHECKS: revision.of_checks(),
            "python": python_platform.python_version(),
            "engine": server,
            "buildx": buildx,
        },
        "machine": {
            "platform": str(here),
            "cpus": str(os.cpu_count() or ""),
            "emulated": "no" if platforms.is_native(subject.image.platform) else "yes",
        },
    }


def _inputs(subject: Subject) -> dict[str, str]:
    labels = subject.image.labels
    own = {name.removeprefix(f"{LABEL}."): labels[name] for name in sorted(labels)}
    base = "org.opencontainers.image.base."
    return {
        name.replace(base, "base-"): text
        for name, text in own.items()
        if (name.startswith(base) or f"{LABEL}.{name}" in labels) and not name.startswith(ELSEWHERE)
    }


def _patches(subject: Subject) -> tuple[PatchResult, ...]:
    """The patches that labels name, with what their proofs said, in the image or outside."""
    proofs, start = dict(_proofs(subject)), f"{LABEL}.patch."
    named = {
        label.removeprefix(start).replace(".", "/", 1): variant
        for label, variant in sorted(subject.image.labels.items())
        if label.startswith(start)
    }
    return tuple(
        PatchResult(name=name, variant=variant, **proofs.get(name, {}))
        for name, variant in named.items()
    )


def _proofs(subject: Subject) -> Iterator[tuple[str, dict[str, str]]]:
    """How the proof of each patch ended; what an image reports may have any shape."""
    reported = subject.facts.get("patches", {}).get("proofs")
    for row in reported if isinstance(reported, list) else ():
        if isinstance(row, Mapping) and isinstance(row.get("patch"), str):
            yield row["patch"], _ended(row.get("code"), str(row.get("output", "")))
    for one in subject.content.proofs if subject.content else ():
        yield one.patch, _ended(one.code, one.output)


def _ended(code: object, output: str) -> dict[str, str]:
    last = next(reversed(output.strip().splitlines()), "")[:MOST]
    proof = PROOFS.get(code, "fail") if isinstance(code, int) else ""
    return {"proof": proof, "detail": last.encode(errors="replace").decode()}
