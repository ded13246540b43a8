"""The ledger of this machine: who moved which tag, when and by which command.

One JSON object a line, only ever appended. Which image a tag named at which time, the registry
knows, and other machines with it; the ledger adds what a registry does not keep.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from imagefactory.system import locks


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One move.

    Attributes:
        record: the name in the registry that records it.
        digest: of the image that got the tag.
        before: digest of the image that had it; empty if none did.
        action: ``promote`` or ``rollback``.
        by: user and host.
        at: RFC 3339, UTC.
    """

    record: str
    digest: str
    before: str
    action: str
    by: str
    at: str


def read(path: Path) -> dict[str, Entry]:
    """The entries by the name of their record; lines that cannot be read are left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, Entry] = {}
    for line in lines:
        try:
            entry = Entry(**json.loads(line))
        except (ValueError, TypeError, RecursionError):  # cut off when the machine lost power
            continue
        if all(isinstance(value, str) for value in asdict(entry).values()):
            found.setdefault(entry.record, entry)
    return found


def append(path: Path, entry: Entry) -> None:
    """Add an entry, unless its record has one, and wait until it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(path.with_suffix(".lock"), f"the ledger {path}"):
        if entry.record in read(path):
            return
        line = json.dumps(asdict(entry)).encode() + b"\n"
        with path.open("ab+") as file:
            if file.tell() and not _ends_with_newline(file.fileno(), file.tell()):
                line = b"\n" + line  # after a line that was cut off
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def _ends_with_newline(file: int, size: int) -> bool:
    return os.pread(file, 1, size - 1) == b"\n"
