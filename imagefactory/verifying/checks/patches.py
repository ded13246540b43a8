"""Are the patches in the image, and do they work?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagefactory.planning.cell_plan import LABEL
from imagefactory.verifying.registry import Verdict, check, excused, failed, passed
from imagefactory.verifying.subject import Subject

NOTHING = "no patches in this image"
#: What means nothing for the version, and what is in the binaries, whose hashes `patches-present`
#: holds.
NOT_PROVEN_HERE = ("n/a", "compiled in")
HOLDS, SYMPTOM, CANNOT_TELL = 0, 1, 3


@check("patches-present", needs="facts")
def present(subject: Subject) -> Verdict:
    """The patches that the labels claim are in the manifest.

    And their files are as the build left them.
    """
    patches = subject.manifest.get("patches", [])
    names = {patch["name"] for patch in patches}
    prefix = f"{LABEL}.patch."
    claimed = {
        key.removeprefix(prefix).replace(".", "/", 1)
        for key in subject.image.labels
        if key.startswith(prefix)
    }
    wanted = claimed | set(subject.expected.cell.flavor.patches if subject.expected else ())
    faults = [f"{name} is claimed and not in the manifest" for name in sorted(wanted - names)]
    for patch in patches:
        faults += [f"{patch['name']}: {fault}" for fault in _changed(patch, subject.facts["files"])]
    if faults:
        return failed("; ".join(faults))
    return passed(", ".join(sorted(names)) or NOTHING)


def _changed(patch: Mapping[str, Any], now: Mapping[str, str | None]) -> list[str]:
    """What is no longer as the patch left it; an empty digest stands for a file that it deleted."""
    faults = []
    for file, digest in {**dict.fromkeys(patch.get("created", []), None), **patch["files"]}.items():
        found = now.get(file) or ""
        if not found and digest != "":
            faults.append(f"{file} is missing")
        elif digest is not None and found != digest:
            faults.append(
                f"{file} is not as patched (sha256 {found[:12]}, not {digest[:12] or 'deleted'})"
            )
    return faults


@check("patches-effective", needs="facts")
def effective(subject: Subject) -> Verdict:
    """The proof of every patch passes in the finished image."""
    proofs = {proof["patch"]: proof for proof in subject.facts["proofs"]}
    seconds = sum(proof["seconds"] for proof in proofs.values())
    failures, open_ones = [], []
    wanted = [
        patch
        for patch in subject.manifest.get("patches", [])
        if patch.get("state") not in NOT_PROVEN_HERE
    ]
    for patch in wanted:
        proof = proofs.get(patch["name"], {"code": None, "output": "its proof was not run"})
        line = f"{patch['name']}: {_last_line(proof['output'])}"
        if proof["code"] == SYMPTOM:
            failures.append(f"{line} (the fault is still there)")
        elif proof["code"] == CANNOT_TELL:
            open_ones.append(line)
        elif proof["code"] != HOLDS:
            failures.append(f"{line} (its proof exits {proof['code']})")
    if failures:
        return failed("; ".join(failures), seconds=seconds)
    if open_ones:
        return excused("cannot be proven here: " + "; ".join(open_ones), seconds=seconds)
    return passed(f"{len(wanted)} proofs hold" if wanted else NOTHING, seconds=seconds)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
