"""Writes the dashboard: the records of all nights as a static site.

The site keeps the records and receipts that it shows. So a machine that has only the site, such as
one of a CI service, adds its night to those of others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from imagefactory.dashboard import history, pages
from imagefactory.dashboard.pages import Site
from imagefactory.errors import InputError, Problem, SetupError, fail
from imagefactory.nightly import record
from imagefactory.nightly.record import Record
from imagefactory.settings import Settings
from imagefactory.system import files
from imagefactory.system.collection import without_collection

#: The folders of a site with what its pages were made from.
RECORDS, RECEIPTS = "records", "receipts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A site that was written.

    Attributes:
        index: its first page.
        nights: how many records it has.
        cells: how many cells they are about.
        problems: the records that could not be read, and are left out.
    """

    index: Path
    nights: int
    cells: int
    problems: tuple[Problem, ...]


def write(out: Path, records: Path, project: str, now: datetime, *, settings: Settings) -> Written:
    """Write the site of the nights in ``records``, and of those that the site has already.

    Raises InputError if there are none, SetupError if the folder cannot be written.
    """
    with without_collection():
        return _write(out, records, project, now, settings)


def _write(out: Path, records: Path, project: str, now: datetime, settings: Settings) -> Written:
    found, problems = _read([out / RECORDS, records])
    if not found and problems:
        raise InputError(problems)
    if not found:
        what = f"there is no record of a night in {records}"
        raise fail(InputError, "dashboard-no-nights", what, fix="run 'imagefactory nightly' first")
    shown = history.of(found)
    try:
        out.mkdir(parents=True, exist_ok=True)
        damaged = {Path(one.where).name for one in problems if one.where}
        _copy(records, out / RECORDS, _names(records) - damaged)
        digests = {c.digest for night in shown.nights for c in night.cells.values() if c.digest}
        wanted = {f"{digest.replace(':', '-')}.json" for digest in digests}
        _copy(settings.receipts, out / RECEIPTS, wanted & _names(settings.receipts))
        site = Site(
            project=project,
            history=shown,
            receipts=frozenset(wanted & _names(out / RECEIPTS)),
            problems=problems,
            written=now,
        )
        for name, text in pages.render(site, settings.cache / "templates"):
            files.write_text(out / name, text)
    except OSError as error:
        what, fix = f"cannot write the site: {error}", "choose another folder with -o"
        raise fail(SetupError, "dashboard-folder", what, where=str(out), fix=fix) from error
    return Written(
        index=out / "index.html",
        nights=len(found),
        cells=len(shown.cells),
        problems=problems,
    )


def _read(folders: Iterable[Path]) -> tuple[list[Record], tuple[Problem, ...]]:
    """The records, and what is wrong with the others; a later folder replaces an earlier one."""
    paths = {name: folder / name for folder in folders for name in _names(folder)}
    read = [record.read(path) for _, path in sorted(paths.items())]
    problems = tuple(one for one in read if isinstance(one, Problem))
    return [one for one in read if isinstance(one, Record)], problems


def _names(folder: Path) -> set[str]:
    """The JSON files of a folder, without those that are just being written."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a Path for each of thousands takes longer
    except (FileNotFoundError, NotADirectoryError):
        return set()
    return {name for name in names if name.endswith(".json") and not name.startswith(".")}


def _copy(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy files that are new or have changed, each in one step."""
    target.mkdir(exist_ok=True)
    for name in sorted(names):
        if not _is_same(source / name, target / name):
            with files.replacing(target / name) as part:
                shutil.copy2(source / name, part)


def _is_same(source: Path, target: Path) -> bool:
    try:
        old = target.stat()
    except FileNotFoundError:
        return False
    new = source.stat()
    return (old.st_size, old.st_mtime_ns) == (new.st_size, new.st_mtime_ns)
