"""The record of a night: what became of each cell and patch, one JSON file a night, never changed.

Unknown values are None, never zero. Pure, except for reading and writing the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from imagefactory import redaction
from imagefactory.errors import Problem
from imagefactory.nightly.values import Broken, Night, Row, State
from imagefactory.reporting.markdown import LONGEST
from imagefactory.system import files
from imagefactory.system.text import encodable

#: Their folder, in the folder of a project's nights.
FOLDER = "records"
#: The format of the files, and bytes that none of them has.
FORMAT, LARGEST = 1, 50_000_000
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, lt=2**63)]
Time = Annotated[
    AwareDatetime, Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(3000, 1, 1, tzinfo=UTC))
]
T = TypeVar("T")


class CellState(StrEnum):
    """What became of a cell."""

    PUSHED = "pushed"
    VERIFIED = "verified"
    #: Its image had been pushed before.
    UNCHANGED = "unchanged"
    FAILED = "failed"
    #: Something else that broke stopped it, such as a patch or the lock.
    STOPPED = "stopped"
    #: The budget did not allow it.
    LEFT = "left"

    @property
    def green(self) -> bool:
        """Whether its image is as it should be."""
        return self in _GREEN


_GREEN = frozenset({CellState.PUSHED, CellState.VERIFIED, CellState.UNCHANGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One thing that broke.

    Attributes:
        where: a cell, a row, a patch, or what else it was.
        step: the step that failed, such as ``build``.
        code: id of the problem.
        what: what is wrong.
        fix: what to do.
        excerpt: the end of the log, or the hunk; may be empty.
        environment: whether the machine, the network or a registry is to blame.
    """

    where: str
    step: str
    code: str
    what: str
    fix: str = ""
    excerpt: str = ""
    environment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """A cell in a night.

    Attributes:
        name: its name.
        state: what became of it.
        failures: why, if it broke.
        digest: of its image.
        build_key: of its plan.
        size: bytes of its image in the engine.
        seconds: how long it was built, verified and pushed; None if none of that was done.
        versions: what it pins, such as ``vllm``.
    """

    name: str
    state: CellState
    failures: tuple[Failure, ...] = ()
    digest: str | None = None
    build_key: str | None = None
    size: Bytes | None = None
    seconds: Seconds | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchRecord:
    """The state of a patch on one version of its project, as it was measured in a night."""

    patch: str
    version: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What is known of a cell's image and plan; see ``CellRecord``."""

    digest: str | None = None
    build_key: str | None = None
    size: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A night.

    Attributes:
        began: when it began.
        ended: when it ended; a night that was killed in between includes that time.
        state: how it ended.
        version: of the imagefactory that ran it.
        cells: all of them; none if nothing was new, as then nothing was looked at.
        patches: the states that were measured, of the cells that were not unchanged.
        failures: what broke, except for failures of single cells.
        news: what was new upstream.
        did: what was taken over, locked and ported.
        tags: what became of each moving tag.
        notes: what a reader should know besides.
        format: of the file.
    """

    began: Time
    ended: Time
    state: State
    version: str
    cells: tuple[CellRecord, ...] = ()
    patches: tuple[PatchRecord, ...] = ()
    failures: tuple[Failure, ...] = ()
    news: tuple[str, ...] = ()
    did: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def name(self) -> str:
        """The name of its file, in the order of time."""
        return f"{self.began.astimezone(UTC):%Y%m%dT%H%M%SZ}.json"


def of(
    night: Night,
    *,
    ended: datetime,
    version: str,
    seconds: Mapping[str, float] = {},
    images: Mapping[str, Image] = {},
    patches: Sequence[PatchRecord] = (),
) -> Record:
    """The record of a night; ``seconds`` are those of its steps, ``images`` are of all cells."""
    rows = {row.cell: row for row in night.cells if row.cell in images or not images}
    rows |= {name: Row(cell=name, state=CellState.LEFT) for name in night.left}
    # a night that could plan nothing has no cells
    stopped = {name: Row(cell=name, state=CellState.STOPPED) for name in images}
    cells = [_cell(row, night.broken, seconds, images) for row in (stopped | rows).values()]
    own = {failure for cell in cells for failure in cell.failures}
    return Record(
        began=night.began,
        ended=ended,
        state=night.state,
        version=version,
        cells=tuple(cells),
        patches=tuple(patches),
        failures=tuple(one for one in _failures(night.broken) if one not in own),
        news=night.news,
        did=night.did,
        tags=night.tags,
        notes=night.notes,
    )


def _cell(
    row: Row,
    broken: Sequence[Broken],
    seconds: Mapping[str, float],
    images: Mapping[str, Image],
) -> CellRecord:
    steps = (f"{step} {row.cell}" for step in ("build", "verify", "push"))
    took = [seconds[step] for step in steps if step in seconds]
    image = images.get(row.cell, Image())
    failed = row.state not in tuple(CellState)  # it is such as "build failed"
    return CellRecord(
        name=row.cell,
        state=CellState.FAILED if failed else CellState(row.state),
        failures=tuple(_failures(one for one in broken if row.cell in one.where.split(", "))),
        digest=image.digest,
        build_key=image.build_key,
        size=image.size,
        seconds=sum(took) if took else None,
        versions=image.versions,
    )


def _failures(broken: Iterable[Broken]) -> Iterator[Failure]:
    for one in broken:
        for problem in one.problems:
            yield Failure(
                where=one.where,
                step=one.step,
                code=problem.code,
                what=f"{problem.where}: {problem.what}" if problem.where else problem.what,
                fix=problem.fix,
                excerpt=problem.detail[-LONGEST:],
                environment=one.environment,
            )


def write(folder: Path, record: Record, project: Path) -> Path:
    """Write a record in one step, without secrets and without the path of ``project``."""
    values = redaction.hide_in(_adapter(Record).dump_python(record, mode="json"))
    text = json.dumps(values, ensure_ascii=False).replace(f"{project}/", "")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / record.name
    files.write_text(path, encodable(text) + "\n")
    return path


def read(path: Path) -> Record | Problem:
    """A record, or what is wrong with its file."""
    data = b""
    try:
        data = files.read(path, LARGEST)
        found: Record = _adapter(Record).validate_json(data)
    except (OSError, ValueError) as error:
        what, number = f"cannot be read: {_shown(error)}", _format(data)
    else:
        if found.format == FORMAT:
            return found
        what, number = "", found.format
    fix = "restore it from a backup, or remove it: no other night needs it"
    if number != FORMAT:
        what = f"has format {number}, and this version of imagefactory reads format {FORMAT}"
        fix = "update imagefactory, or remove it: no other night needs it"
    return Problem(code="record-unreadable", where=str(path), what=what, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    format: int = FORMAT


def _format(data: bytes) -> int:
    """The format that a file names, even if it is not a record of this version."""
    try:
        found: _Format = _adapter(_Format).validate_json(data)
    except ValueError:
        return FORMAT
    return found.format


def _shown(error: OSError | ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    """What reads and writes a type, which takes a while to make."""
    return TypeAdapter(kind)
