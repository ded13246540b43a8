"""The checks that everything that was installed is in the image, and nothing unused."""

from __future__ import annotations

from imagefactory.verifying.check_registry import Verdict, check, count, failed, passed
from imagefactory.verifying.subject import Subject

SHOWN = 3


@check("files-complete", needs="facts")
def complete(subject: Subject) -> Verdict:
    """Every file that a wheel's RECORD names exists, and no link is dangling.

    Fails for an installed file that was removed, or a link to a compiler that is not there.
    """
    contents = subject.facts["contents"]
    faults = [f"{name} is missing" for name in contents["missing"]]
    faults += [f"{name} is a dangling link" for name in contents["dangling"]]
    if faults:
        shown = "; ".join(faults[:SHOWN])
        return failed(f"{count(len(faults), 'fault')}: {shown}", seconds=contents["seconds"])
    return passed("as the RECORD of every wheel says", seconds=contents["seconds"])


@check("nothing-unused", needs="facts")
def unused(subject: Subject) -> Verdict:
    """No compiled Python, wheel, static library or installer's cache is in the image.

    Fails for a ``pip install`` with its cache, or a wheel that was left behind.
    """
    found = subject.facts["contents"]["unused"]
    if found:
        return failed(f"{count(len(found), 'unused file')}: {', '.join(found[:SHOWN])}")
    dropped = subject.manifest.get("dropped", [])
    files, size = sum(row["files"] for row in dropped), sum(row["bytes"] for row in dropped)
    return passed(f"{count(files, 'file')} ({size / 1e6:.0f} MB) left out of the image")
