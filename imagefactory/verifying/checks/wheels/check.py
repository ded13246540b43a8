"""The checks that exactly what was locked is installed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from imagefactory.verifying.check_registry import Verdict, check, failed, passed
from imagefactory.verifying.files import by_files
from imagefactory.verifying.subject import Subject

SHOWN = 5
#: Files that make a distribution.
METADATA = re.compile(r"\.(?:dist|egg)-info\b|\.egg\b")


@check("wheels-installed", needs=("facts", "lock"))
def installed(subject: Subject) -> Verdict:
    """The installed distributions are those of the lock, in its versions, each once.

    Fails for a distribution that is missing, extra, installed twice or of another version, as after
    a stray ``pip install``. Only what a patch of the build adds is allowed beside the lock. Where
    the image is emulated, its layers are judged instead.
    """
    if "distributions" not in subject.facts["wheels"]:
        said = f"{len(_locked(subject))} as locked"
        return by_files(subject, METADATA.search, said)
    found = [
        (entry["name"], entry["version"]) for entry in subject.facts["wheels"]["distributions"]
    ]
    locked = {name: version for name, version, _ in _locked(subject)}
    added = _added_by_patches(subject)
    faults = [
        *_repeated([name for name, _ in found]),
        *_differences(dict(found), locked, added),
    ]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        return failed("; ".join(faults[:SHOWN]) + more)
    extra = f", and {', '.join(sorted(added))} by a patch" if added else ""
    return passed(f"{len(locked)} as locked{extra}")


@check("wheels-hashes", needs=("manifest", "lock"))
def hashes(subject: Subject) -> Verdict:
    """The build installed the very files of the lock, by their hashes.

    Fails for another file of the same version, or an image that was made from an older lock.
    """
    locked = {(name, sha256) for name, _, sha256 in _locked(subject)}
    used = {(wheel["name"], wheel["sha256"]) for wheel in subject.manifest.get("wheels", [])}
    other = sorted({name for name, _ in locked ^ used})
    if other:
        return failed(f"the build and the lock have different wheels for {_shown(other)}")
    return passed(f"{len(used)} hashes as locked")


def _locked(subject: Subject) -> list[tuple[str, str, str]]:
    """Name, version and SHA-256 of every locked wheel."""
    if subject.resolution is None:
        raise ValueError('a check that reads the locked wheels needs "lock"')
    return [(wheel.name, wheel.version, wheel.sha256) for wheel in subject.resolution.wheels]


def _repeated(names: list[str]) -> list[str]:
    counts = Counter(names)
    return [f"{name} is installed twice" for name in sorted(counts) if counts[name] > 1]


def _differences(here: Mapping[str, str], locked: Mapping[str, str], added: set[str]) -> list[str]:
    """How the installed versions differ from the locked ones."""
    return [
        *(f"{name} {locked[name]} is missing" for name in sorted(locked.keys() - here.keys())),
        *(
            f"{name} {here[name]} is not in the lock"
            for name in sorted(here.keys() - locked.keys() - added)
        ),
        *(
            f"{name} is {here[name]}, locked is {locked[name]}"
            for name in sorted(here.keys() & locked.keys())
            if not same(here[name], locked[name])
        ),
    ]


def _added_by_patches(subject: Subject) -> set[str]:
    """Distributions that a patch of the build adds, according to the manifest."""
    created = [
        name for patch in subject.manifest.get("patches", []) for name in patch.get("created", [])
    ]
    return {
        name.split("-", 1)[0].replace("_", "-").lower()
        for name in created
        if name.endswith(".dist-info/METADATA")
    }


def same(installed: str, locked: str) -> bool:
    """Whether the versions agree.

    METADATA may leave out the local part, as torch's does; ``torch-identity`` compares that.
    """
    return installed == locked or installed == locked.partition("+")[0]


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
