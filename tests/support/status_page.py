"""The published page of states, read back; and the part of it that is measured in a test."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from imagefactory.patching.measure import Measured
from imagefactory.patching.patch import State
from imagefactory.patching.sources import SourceTree, fetch
from imagefactory.settings import Settings
from support import ROOT

PAGE = ROOT / "docs" / "patch-status.md"
T = TypeVar("T")
_TABLE = re.compile(r"^\| release \| (.*) \|\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)


def published(page: str) -> list[Measured]:
    """The rows from which ``page`` was written, with nothing but their states."""
    rows = []
    for project, section in re.findall(r"^## (\w+)\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL):
        for names, lines in _TABLE.findall(section):
            for line in lines.splitlines():
                version, *states = (cell.strip() for cell in line.strip("|").split("|"))
                rows += [
                    Measured(
                        project=project,
                        patch=f"{project}/{name}",
                        version=version,
                        state=_state(state),
                        reason="",
                        evidence="",
                    )
                    for name, state in zip(names.split(" | "), states, strict=True)
                ]
    return rows


def _state(cell: str) -> State:
    return State(cell.partition(" (")[0])


def trees_of(rows: Sequence[Measured], settings: Settings) -> list[SourceTree]:
    releases = dict.fromkeys((row.project, row.version) for row in rows)
    return [fetch(project, version, settings) for project, version in releases]


def drawn(items: Sequence[T], count: int) -> list[T]:
    """``count`` of ``items``: others each day, or those of SEED."""
    seed = os.environ.get("SEED") or datetime.now(UTC).strftime("%Y%m%d")
    print(f"drawn with SEED={seed}")  # noqa: T201  # pytest shows it when the test fails
    return random.Random(seed).sample(list(items), count)  # noqa: S311  # no secret
