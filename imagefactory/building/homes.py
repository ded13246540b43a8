"""Which builder built each image last, and so has most of its steps in its cache."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from imagefactory.system import files

#: Images that are kept, the latest ones.
KEPT = 10_000


def read(state: Path) -> dict[str, str]:
    """Builder by image tag; empty for a file that is missing or not readable."""
    try:
        found = json.loads(_file(state).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {tag: builder for tag, builder in pairs if isinstance(builder, str)}


def add(state: Path, tags: Iterable[str], builder: str) -> None:
    """Note that ``builder`` built the images ``tags``; what cannot be written is only slower."""
    new = dict.fromkeys(tags, builder)
    if not new:
        return
    known = {tag: one for tag, one in read(state).items() if tag not in new}
    kept = dict(list({**known, **new}.items())[-KEPT:])
    with suppress(OSError):
        files.write_text(_file(state), json.dumps(kept, indent=1) + "\n")


def _file(state: Path) -> Path:
    return state / "builders.json"
