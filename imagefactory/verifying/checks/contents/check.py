"""The checks that everything that was installed is in the image, and nothing unused."""

from __future__ import annotations

from imagefactory.verifying.check_registry import Verdict, check, count, failed, passed
from imagefactory.verifying.files import by_files
from imagefactory.verifying.probe import HOME
from imagefactory.verifying.subject import Subject

SHOWN = 3


@check("files-complete", needs="facts")
def complete(subject: Subject) -> Verdict:
    """Every file that a wheel's RECORD names exists, and no link is dangling.

    Fails for an installed file that was removed, or a link to a compiler that is not there. Where
    the image is emulated, its layers are judged instead.
    """
    contents = subject.facts["contents"]
    if "missing" not in contents:
        return by_files(subject, _installed, "as the RECORD of every wheel says", extra=False)
    faults = [f"{name} is missing" for name in contents["missing"]]
    faults += [f"{name} is a dangling link" for name in contents["dangling"]]
    if faults:
        shown = "; ".join(faults[:SHOWN])
        return failed(f"{count(len(faults), 'fault')}: {shown}", seconds=contents["seconds"])
    return passed("as the RECORD of every wheel says", seconds=contents["seconds"])


def _installed(path: str) -> bool:
    """Whether a file is one of the image, not one that describes it."""
    return not path.startswith(f"{HOME}/")


@check("nothing-unused", needs="facts")
def unused(subject: Subject) -> Verdict:
    """No compiled Python, wheel, static library or installer's cache is in the image.

    Fails for a ``pip install`` with its cache, or a wheel that was left behind. Where the image is
    emulated, its layers are judged instead.
    """
    contents = subject.facts["contents"]
    dropped = subject.manifest.get("dropped", [])
    files, size = sum(row["files"] for row in dropped), sum(row["bytes"] for row in dropped)
    said = f"{count(files, 'file')} ({size / 1e6:.0f} MB) left out of the image"
    found = contents["unused"]
    if found:
        return failed(f"{count(len(found), 'unused file')}: {', '.join(found[:SHOWN])}")
    return passed(said) if "missing" in contents else by_files(subject, bool, said, changed=False)
