"""The simulated year by release: what was taken over, what a person did, and what it took. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from imagefactory.system import ui

#: A night as its JSON values; simulated_year.py writes them.
Night = Mapping[str, Any]
UNAIDED, BY_HAND, NEVER = "unaided", "by hand", "not taken over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of a release.

    Attributes:
        version: of vLLM.
        uploaded: when.
        night: the first night that ended green with it; empty if none did.
        outcome: ``unaided``, ``by hand`` or ``not taken over``.
        ported: what became of the patches.
        why: what broke or held it back, and what the person did.
        nights: those from its upload until then.
    """

    version: str
    uploaded: datetime
    night: str
    outcome: str
    ported: tuple[str, ...]
    why: tuple[str, ...]
    nights: tuple[Night, ...]


def taken(releases: Mapping[str, datetime], nights: Sequence[Night]) -> list[Taken]:
    """What became of each release, in the order of their dates."""
    ordered = sorted(releases, key=lambda version: releases[version])
    ends = [*(releases[version] for version in ordered[1:]), None]
    return [
        _taken(version, releases[version], end, nights)
        for version, end in zip(ordered, ends, strict=True)
    ]


def _taken(
    version: str, uploaded: datetime, end: datetime | None, nights: Sequence[Night]
) -> Taken:
    after = [one for one in nights if uploaded <= _moment(one)]
    own: list[Night] = []
    for one in after:
        if end and _moment(one) >= end and one["newest"] != version and own:
            break
        own.append(one)
        if one["newest"] == version and one["state"] == "green" and not one["hands"]:
            break
    green = bool(own) and own[-1]["newest"] == version and own[-1]["state"] == "green"
    hands = [text for one in own for text in one["hands"]]
    why = [text for one in own for text in one["broken"]]
    why += [one["held"] for one in own if one["hands"] and not one["broken"]]
    return Taken(
        version=version,
        uploaded=uploaded,
        night=own[-1]["day"] if green else "",
        outcome=BY_HAND if hands else UNAIDED if green else NEVER,
        ported=tuple(dict.fromkeys(_ports(version, own))),
        why=(*dict.fromkeys(why), *hands),
        nights=tuple(own),
    )


def _ports(version: str, nights: Sequence[Night]) -> Iterator[str]:
    for line in (line for one in nights for line in one["did"]):
        found = re.match(rf"vllm/(\S+) on {re.escape(version)}: ([^,]+)", line)
        if found:
            note = " (resolved)" if "resolved" in line else ""
            yield f"{found[1]} {found[2]}{note}"


def obsolete(nights: Sequence[Night]) -> dict[str, list[str]]:
    """Release -> the patches that it made unnecessary."""
    found: dict[str, list[str]] = {}
    before: dict[str, str] = {}
    for one in nights:
        states = one["patches"]
        gone = [n for n, now in states.items() if now == "left out" and before.get(n) == "applied"]
        if gone:
            found[one["newest"]] = [name.removeprefix("vllm/") for name in gone]
        before = states or before
    return found


def false_alarms(nights: Sequence[Night]) -> list[Night]:
    """Nights that broke although nothing had to be done about it."""
    return [
        one
        for one, following in itertools.pairwise(nights)
        if one["state"] == "broken" and not one["hands"] and following["state"] != "broken"
    ]


def share(rows: Sequence[Taken]) -> str:
    """The result in one line."""
    counts = {name: sum(row.outcome == name for row in rows) for name in (UNAIDED, BY_HAND, NEVER)}
    found = ", ".join(f"{number} {name}" for name, number in counts.items() if name != UNAIDED)
    return f"{counts[UNAIDED]} of {len(rows)} releases were taken over unaided ({found})"


def table(rows: Sequence[Taken], nights: Sequence[Night]) -> Iterator[str]:
    """The releases as Markdown."""
    gone = obsolete(nights)
    yield "| vLLM | out | green | outcome | patches ported | obsolete | CPU s | new wheels |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        cpu = sum(one["cpu"] for one in row.nights)
        wheels = sum(one["wheels"] for one in row.nights)
        cells = (
            row.version,
            f"{row.uploaded:%Y-%m-%d}",
            row.night or "-",
            row.outcome,
            ", ".join(row.ported) or "-",
            ", ".join(gone.get(row.version, ())) or "-",
            f"{cpu:.0f}",
            ui.size(wheels),
        )
        yield f"| {' | '.join(cells)} |"


def reasons(rows: Sequence[Taken]) -> Iterator[str]:
    """Why releases needed a person, as Markdown."""
    for row in rows:
        if row.why:
            yield f"**{row.version}**"
            yield ""
            yield from (f"- {_one_line(text)}" for text in row.why)
            yield ""


def _one_line(text: str) -> str:
    cut = re.sub(r"; edit \S+, then: .*", "", " ".join(text.split()))
    return cut if len(cut) < 400 else f"{cut[:400]} ..."


def _moment(night: Night) -> datetime:
    return datetime.fromisoformat(f"{night['day']}T02:17:00+00:00")
