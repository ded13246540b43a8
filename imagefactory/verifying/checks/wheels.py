"""Is exactly what was locked installed?"""

from __future__ import annotations

from collections import Counter

from imagefactory.verifying.registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Subject

SHOWN = 5


@check("wheels-installed", needs=("facts", "lock"))
def installed(subject: Subject) -> Verdict:
    """No distribution is missing, extra, twice there or of another version than the lock says."""
    found = [(entry["name"], entry["version"]) for entry in subject.facts["distributions"]]
    locked = (
        {wheel.name: wheel.version for wheel in subject.resolution.wheels}
        if subject.resolution
        else {}
    )
    added = _added_by_patches(subject)
    here = dict(found)
    twice = sorted(name for name, count in Counter(name for name, _ in found).items() if count > 1)
    faults = [
        *(f"{name} is there twice" for name in twice),
        *(f"{name} {locked[name]} is missing" for name in sorted(locked.keys() - here.keys())),
        *(
            f"{name} {here[name]} is not in the lock"
            for name in sorted(here.keys() - locked.keys() - added)
        ),
        *(
            f"{name} is {here[name]}, locked is {locked[name]}"
            for name in sorted(here.keys() & locked.keys())
            if not _same(here[name], locked[name])
        ),
    ]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        return failed("; ".join(faults[:SHOWN]) + more)
    extra = f", and {', '.join(sorted(added))} by a patch" if added else ""
    return passed(f"{len(locked)} as locked{extra}")


@check("wheels-hashes", needs=("facts", "lock"))
def hashes(subject: Subject) -> Verdict:
    """The build installed the files that the lock names, by hash."""
    locked = (
        {(wheel.name, wheel.sha256) for wheel in subject.resolution.wheels}
        if subject.resolution
        else set()
    )
    used = {(wheel["name"], wheel["sha256"]) for wheel in subject.manifest.get("wheels", [])}
    other = sorted({name for name, _ in locked ^ used})
    if other:
        return failed(
            f"the build used other wheels than the lock names for {', '.join(other[:SHOWN])}"
        )
    return passed(f"{len(used)} hashes as locked")


def _added_by_patches(subject: Subject) -> set[str]:
    """Distributions that a patch of the build adds, which is said in the manifest.

    The only ones allowed.
    """
    created = [
        name for patch in subject.manifest.get("patches", []) for name in patch.get("created", [])
    ]
    return {
        name.split("-", 1)[0].replace("_", "-").lower()
        for name in created
        if name.endswith(".dist-info/METADATA")
    }


def _same(installed: str, locked: str) -> bool:
    """Versions agree; METADATA may leave out the local part (torch's does.

    ``torch-identity`` looks behind it).
    """
    return installed == locked or installed == locked.partition("+")[0]
