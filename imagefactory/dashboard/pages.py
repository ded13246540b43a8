"""Renders the pages. Every value is escaped, as names and logs come from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache as cached
from itertools import groupby
from pathlib import Path

import jinja2
from markupsafe import Markup, escape
from packaging.version import InvalidVersion, Version

from imagefactory.dashboard import comparing, plots
from imagefactory.dashboard.history import History, Night, state_of
from imagefactory.errors import Problem
from imagefactory.nightly.record import CellRecord, CellState
from imagefactory.nightly.values import State
from imagefactory.reporting import environment
from imagefactory.system import ui

TEMPLATES = Path(__file__).parent / "templates"
#: Nights on the first page; the others are on the pages of their months.
RECENT = 30
SYMBOLS = {
    CellState.PUSHED: "✓",
    CellState.VERIFIED: "○",
    CellState.UNCHANGED: "=",
    CellState.FAILED: "✗",
    CellState.STOPPED: "!",
    CellState.LEFT: "…",
}
MEANINGS = {
    CellState.PUSHED: "built, verified and pushed",
    CellState.VERIFIED: "built and verified, not pushed",
    CellState.UNCHANGED: "its verified image is still the right one",
    CellState.FAILED: "a step of this cell failed",
    CellState.STOPPED: "not built, as something else broke, such as a patch or the lock",
    CellState.LEFT: "left for another night by the budget",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the pages show.

    Attributes:
        project: its name.
        history: the nights.
        receipts: the names of the receipts that are in the site.
        problems: records that could not be read.
        written: when.
    """

    project: str
    history: History
    receipts: frozenset[str]
    problems: tuple[Problem, ...]
    written: datetime


def render(site: Site, cache: Path) -> Iterator[tuple[str, str]]:
    """The name and the text of each page; ``cache`` is a folder for compiled templates."""
    history, env = site.history, _environment(cache)
    common = {
        "site": site,
        "history": history,
        "symbols": SYMBOLS,
        "meanings": MEANINGS,
        "months": [month for month, _ in _by_month(history.nights)][::-1],
    }
    last, names = history.last, list(history.last.cells)
    trends = {name: _trend(name, history.nights) for name in history.cells}

    def page(template: str, **values: object) -> str:
        return env.get_template(f"{template}.html.j2").render({**common, **values})

    yield (
        "index.html",
        page(
            "index",
            night=last,
            counts=_counts(last.cells.values()),
            axes=tuple(dict.fromkeys(key for one in last.cells.values() for key in one.versions)),
            images={name: _image_of(name, site) for name in names},
            trends=trends,
            recent=history.nights[-RECENT:],
            names=[name for name in history.cells if _is_in(name, history.nights[-RECENT:])],
            duration=_durations(history.nights),
            patches=_patches(last),
        ),
    )
    yield "cells.html", page("cells", trends=trends)
    for month, nights in _by_month(history.nights):
        own = [name for name in history.cells if _is_in(name, nights)]
        yield f"nights-{month}.html", page("nights", month=month, nights=nights, names=own)
    script = env.get_template("compare.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    yield (
        "compare.html",
        page(
            "compare",
            script=Markup(script),  # noqa: S704 - a file of this package
            script_hash=digest,
            data=comparing.data(history),
        ),
    )


@cached
def _environment(folder: Path) -> jinja2.Environment:
    env = environment.environment(folder, TEMPLATES)
    env.filters |= {
        "slug": slug,
        "size": size,
        "minutes": minutes,
        "took": took,
        "code": code,
        "state": state_of,
        "page": page_of,
    }
    env.globals |= {"grid_row": grid_row, "months_of": months_of, "plots": plots}
    return env


def slug(name: str) -> str:
    """A name as an id."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)


def size(cell: CellRecord) -> str:
    """The size of a cell's image; a dash if it has none."""
    if cell.size is None and not cell.state.green:
        return "-"
    return ui.size(cell.size)


def minutes(cell: CellRecord) -> str:
    """How long was worked on a cell; a dash if it was not."""
    if cell.seconds is None:
        idle = cell.state in (CellState.UNCHANGED, CellState.STOPPED, CellState.LEFT)
        return "-" if idle else "unknown"
    return took(cell.seconds / 60)


def took(minutes: float) -> str:
    """A time; seconds if it is less than a minute."""
    return f"{minutes:.0f} min" if minutes >= 1 else f"{minutes * 60:.0f} s"


def code(line: str) -> Markup:
    """A line of the report, in which backquotes mark names."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(line))))  # noqa: S704


def month_of(night: Night) -> str:
    """The month of a night."""
    return f"{night.day:%Y-%m}"


def page_of(night: Night) -> str:
    """The page that has the night."""
    return f"nights-{month_of(night)}.html"


def months_of(nights: Sequence[Night]) -> list[tuple[str, int]]:
    """Each month of ``nights``, and how many of them are in it."""
    return [(month, len(own)) for month, own in _by_month(nights)]


def grid_row(name: str, nights: Sequence[Night], page: str, *, full: bool) -> Markup:
    """The cells of a row of a grid; ``page`` has the nights, else those of their months do."""
    row = []
    for night in nights:
        cell = night.cells.get(name)
        if cell is None:
            row.append("<td></td>")
            continue
        # what broke is a link to why
        link = "" if cell.state.green else f"{page or page_of(night)}#{night.id}"
        more = (size(cell), minutes(cell)) if full else ()
        row.append(_grid_cell(cell.state, state_of(cell), link, *more))
    return Markup("".join(row))  # noqa: S704 - escaped below


@cached
def _grid_cell(state: CellState, text: str, link: str, *more: str) -> str:
    inner = f"<i>{escape(text)}</i>"  # the style sheet shows its symbol instead
    if link:
        inner = f'<a href="{escape(link)}" title="{escape(text)}">{inner}</a>'
    lines = "".join(f"<b>{escape(one)}</b>" for one in more)
    return f'<td class="{state}">{inner}{lines}</td>'


def _is_in(name: str, nights: Iterable[Night]) -> bool:
    return any(name in night.cells for night in nights)


def _by_month(nights: Sequence[Night]) -> list[tuple[str, list[Night]]]:
    return [(month, list(own)) for month, own in groupby(nights, month_of)]


def _counts(cells: Iterable[CellRecord]) -> dict[CellState, int]:
    every = [cell.state for cell in cells]
    return {state: every.count(state) for state in CellState if state in every}


def _image_of(name: str, site: Site) -> Mapping[str, object]:
    """The digest and receipt of a cell's image, and the night that made it."""
    cell = site.history.last.cells[name]
    receipt = f"{cell.digest.replace(':', '-')}.json" if cell.digest else ""
    made = (CellState.PUSHED, CellState.VERIFIED)
    nights = (
        night
        for night in reversed(site.history.nights)
        if (one := night.cells.get(name)) and one.state in made
    )
    night = next(nights, None) if cell.state.green else None
    # another image would have been made by something else than a night
    is_same = night is not None and night.cells[name].build_key == cell.build_key
    return {
        "receipt": receipt if receipt in site.receipts else "",
        "night": night if is_same else None,
    }


def _trend(name: str, nights: Sequence[Night]) -> Mapping[str, plots.Plot]:
    days = [night.day for night in nights]
    cells = [night.cells.get(name) for night in nights]
    took = [one.seconds / 60 if one and one.seconds is not None else None for one in cells]
    return {
        "size": plots.line(days, [one.size if one else None for one in cells]),
        "minutes": plots.bars(days, took),
    }


def _durations(nights: Sequence[Night]) -> Mapping[str, plots.Plot]:
    """How long the nights were; those in which something broke apart from the others."""
    days, most = [night.day for night in nights], max(night.minutes for night in nights)
    broken = [night.record.state is State.BROKEN for night in nights]
    pairs = list(zip(nights, broken, strict=True))
    return {
        "fine": plots.bars(days, [None if bad else one.minutes for one, bad in pairs], most),
        "broken": plots.bars(days, [one.minutes if bad else None for one, bad in pairs], most),
    }


def _patches(night: Night) -> list[tuple[str, list[str], list[tuple[str, list[str]]]]]:
    """For each project: its versions, and each patch with its states on them."""
    tables = []
    keys = sorted(night.patches, key=lambda key: key[0].partition("/")[0])
    for project, group in groupby(keys, key=lambda key: key[0].partition("/")[0]):
        own = list(group)
        versions = sorted({version for _, version in own}, key=_version, reverse=True)
        rows = [
            (patch, [night.patches.get((patch, version), "") for version in versions])
            for patch in sorted({patch for patch, _ in own})
        ]
        tables.append((project, versions, rows))
    return tables


def _version(text: str) -> tuple[Version, str]:
    try:
        return Version(text), ""
    except InvalidVersion:  # such as a git ref
        return Version("0.dev0"), text
