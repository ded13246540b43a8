"""Results that are kept: the same wheels on the same base need not be judged again."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from imagefactory.auditing import reading
from imagefactory.auditing.gpu_code import GpuCode, Way
from imagefactory.auditing.judging import Extension
from imagefactory.auditing.subject import Subject
from imagefactory.errors import Problem
from imagefactory.settings import Settings

#: Raised with every change to what is judged, or how.
RULES = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found out about a subject of which everything could be read."""

    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    extensions: tuple[Extension, ...]


class Verdicts:
    """Verdicts in the cache folder."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.cache / "audits" / reading.FORMAT / "verdicts"

    def find(self, subject: Subject) -> Verdict | None:
        """The verdict on a subject; None if there is none, or it is damaged."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            return _verdict(json.loads(self._path(subject).read_bytes()))
        return None

    def keep(self, subject: Subject, verdict: Verdict) -> None:
        """Keep a verdict; where the problems are is not part of it."""
        problems = [asdict(replace(one, where=None)) for one in verdict.problems]
        extensions = [asdict(one) for one in verdict.extensions]
        row = {"problems": problems, "notes": verdict.notes, "extensions": extensions}
        reading.write(self._path(subject), row)

    def _path(self, subject: Subject) -> Path:
        return self._folder / f"{_key(subject)}.json"


def _key(subject: Subject) -> str:
    """A hash of all that a verdict depends on."""
    found, base = subject.resolution, subject.base
    debs = [(deb.name, deb.version) for deb in base.debs] if base and base.suite else None
    target = [found.platform, found.python, found.glibc, found.channel, subject.capability]
    torch = [found.torch.version, found.torch.cuda]
    wheels = [(wheel.sha256, wheel.requires) for wheel in found.wheels]
    text = json.dumps([RULES, target, torch, debs, wheels])
    return hashlib.sha256(text.encode()).hexdigest()


def _verdict(row: Any) -> Verdict:
    return Verdict(
        problems=tuple(Problem(**one) for one in row["problems"]),
        notes=tuple(row["notes"]),
        extensions=tuple(
            Extension(
                wheel=one["wheel"],
                path=one["path"],
                gpu=GpuCode(**one["gpu"]),
                way=Way(one["way"]) if one["way"] else None,
            )
            for one in row["extensions"]
        ),
    )
