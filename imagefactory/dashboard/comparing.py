"""The data with which the page `compare.html` compares any two nights in the browser. Pure."""

from __future__ import annotations

from imagefactory.dashboard.history import History, Night, state_of
from imagefactory.nightly.record import CellRecord


def data(history: History) -> dict[str, object]:
    """Nights, and for each cell and patch the nights in which something about it changed."""
    versions: dict[tuple[tuple[str, str], ...], int] = {}
    cells = [[name, _entries(name, history.nights, versions)] for name in history.cells]
    return {
        "nights": [[night.id, f"{night.record.began:%Y-%m-%d %H:%M}"] for night in history.nights],
        "versions": [list(map(list, one)) for one in versions],
        "cells": cells,
        "patches": _patches(history.nights),
    }


Entry = tuple[object, ...]


def _entries(
    name: str, nights: tuple[Night, ...], versions: dict[tuple[tuple[str, str], ...], int]
) -> list[list[object]]:
    """Number of the night, then what the cell was from there on; nothing if there was none."""
    found, before, last = list[list[object]](), None, None
    for number, night in enumerate(nights):
        cell = night.cells.get(name)
        if cell is last:
            continue
        last, entry = cell, _entry(cell, versions)
        if entry != before:
            found.append([number, *entry])
            before = entry
    return found


def _entry(cell: CellRecord | None, versions: dict[tuple[tuple[str, str], ...], int]) -> Entry:
    if cell is None:
        return ()
    own = tuple(sorted(cell.versions.items()))
    number = versions.setdefault(own, len(versions))
    state = "green" if cell.state.green else state_of(cell)
    return (state, number, cell.size, _brief(cell.digest), _brief(cell.build_key))


def _brief(digest: str | None) -> str | None:
    return digest.removeprefix("sha256:")[:16] if digest else None


def _patches(nights: tuple[Night, ...]) -> list[list[object]]:
    """Patch and version, and the states since the numbers of nights."""
    found: dict[tuple[str, str], list[list[object]]] = {}
    before: object = None
    for number, night in enumerate(nights):
        if night.patches is before:
            continue
        before = night.patches
        for key, state in night.patches.items():
            own = found.setdefault(key, [])
            if not own or own[-1][1] != state:
                own.append([number, state])
    return [[*key, states] for key, states in found.items()]
