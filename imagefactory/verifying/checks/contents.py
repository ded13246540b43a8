"""Is everything in the image that was installed, and nothing that nobody uses?"""

from __future__ import annotations

from imagefactory.verifying.registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Subject

SHOWN = 3


@check("files-complete", needs="facts")
def complete(subject: Subject) -> Verdict:
    """Every file that a RECORD names is there, and every link leads somewhere."""
    contents = subject.facts["contents"]
    faults = [f"{name} is missing" for name in contents["missing"]]
    faults += [f"{name} leads nowhere" for name in contents["dangling"]]
    if faults:
        return failed(
            f"{len(faults)} faults: {'; '.join(faults[:SHOWN])}", seconds=contents["seconds"]
        )
    return passed("as the RECORD of every wheel says", seconds=contents["seconds"])


@check("nothing-unused", needs="facts")
def unused(subject: Subject) -> Verdict:
    """No compiled Python, wheel, static library or installer's cache fills the image."""
    found = subject.facts["contents"]["unused"]
    if found:
        return failed(f"{len(found)} files that nobody uses: {', '.join(found[:SHOWN])}")
    dropped = subject.manifest.get("dropped", [])
    files, size = sum(row["files"] for row in dropped), sum(row["bytes"] for row in dropped)
    return passed(f"{files} files ({size / 1e6:.0f} MB) were left out")
