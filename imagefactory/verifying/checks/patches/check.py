"""The checks that the patches are in the image and work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagefactory.inbuild.overlay import UNPROVEN
from imagefactory.planning.cell_plan import LABEL
from imagefactory.verifying.check_registry import Verdict, check, count, excused, failed, passed
from imagefactory.verifying.outside.judged import Judged
from imagefactory.verifying.subject import Subject

NOTHING = "no patches in this image"
#: States of patches without a proof in the image: one that does not apply to this version, one
#: in the binaries, whose hashes `patches-present` compares, and one that has none at all.
NOT_PROVEN_HERE = ("n/a", "compiled in", UNPROVEN)
#: Exit codes of a proof.
HOLDS, SYMPTOM, INCONCLUSIVE = 0, 1, 3


@check("patches-present", needs=("facts", "manifest"))
def present(subject: Subject) -> Verdict:
    """The patches of the labels and of the cell are in the manifest, and their files unchanged.

    Fails for a patch that was left out or added, a patched file that was changed later, or a patch
    that is unproven where the label or the cell does not say so.
    """
    patches = subject.manifest.get("patches", [])
    names = {patch["name"] for patch in patches}
    prefix = f"{LABEL}.patch."
    labelled = {
        key.removeprefix(prefix).replace(".", "/", 1)
        for key in subject.image.labels
        if key.startswith(prefix)
    }
    faults = [f"{name} has a label and is not in the manifest" for name in sorted(labelled - names)]
    faults += _unproven_faults(subject)
    if subject.expected:
        wanted = set(subject.expected.cell.flavor.patches)
        faults += [f"{name} is missing, the cell has it" for name in sorted(wanted - names)]
        faults += [
            f"{name} is in the image, the cell does not have it" for name in sorted(names - wanted)
        ]
    for patch in patches:
        changes = _changed(patch, subject.facts["patches"]["files"])
        faults += [f"{patch['name']}: {change}" for change in changes]
    if faults:
        return failed("; ".join(faults))
    return passed(", ".join(sorted(names)) or NOTHING)


def _unproven(subject: Subject) -> list[str]:
    """The patches that the manifest calls unproven: the only ones without a proof to run."""
    rows = subject.manifest.get("patches", [])
    return sorted(patch["name"] for patch in rows if patch.get("state") == UNPROVEN)


def _unproven_faults(subject: Subject) -> list[str]:
    found = _unproven(subject)
    said = {"label": sorted(subject.label("unproven").split())}
    if subject.expected:
        said["cell"] = sorted(subject.expected.unproven)
    return [
        f"unproven are {', '.join(found) or 'none'}, the {who} says {', '.join(names) or 'none'}"
        for who, names in said.items()
        if names != found
    ]


def _changed(patch: Mapping[str, Any], now: Mapping[str, str | None]) -> list[str]:
    """What is no longer as the patch left it; an empty digest is that of a file that it deleted."""
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


@check("patches-effective", needs=("facts", "manifest"), excusable=True)
def effective(subject: Subject) -> Verdict:
    """The proof of every patch passes in the finished image.

    Fails for a patch that is lost or no longer has its effect. A proof that is inconclusive on this
    machine makes a skip. Where the image is emulated, proofs that only read its files run on this
    machine, once those were found to be what they should be.
    """
    facts, content = subject.facts["patches"], subject.content or Judged()
    proofs = {proof["patch"]: proof for proof in facts["proofs"]}
    proofs |= {one.patch: {"code": one.code, "output": one.output} for one in content.proofs}
    seconds = content.proof_seconds if content.proofs else facts["seconds"]
    failures, inconclusive = [], []
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
        elif proof["code"] == INCONCLUSIVE:
            inconclusive.append(line)
        elif proof["code"] is None:
            failures.append(line)
        elif proof["code"] != HOLDS:
            failures.append(f"{line} (its proof exits {proof['code']})")
    if failures:
        return failed("; ".join(failures), seconds=seconds)
    if inconclusive:
        return excused("inconclusive here: " + "; ".join(inconclusive), seconds=seconds)
    unproven = _unproven(subject)
    if not wanted and not unproven:
        return passed(NOTHING, seconds=seconds)
    here = len(content.proofs)
    where = f", {here} of them run on this machine, on the image's files" if here else ""
    parts = [f"{count(len(wanted), 'proof')} passed{where}"] if wanted else []
    if unproven:
        parts.append(f"{len(unproven)} unproven: {', '.join(unproven)}")
    return passed("; ".join(parts), seconds=seconds)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"
