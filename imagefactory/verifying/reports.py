"""Reads the probe's report, which is only what the image says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from imagefactory.verifying.subject import Probed


def read(text: str) -> dict[str, Any]:
    """The report in what the probe wrote, in the shape of ``probe_core.collect``.

    Raises ValueError, which says what is wrong with it.
    """
    if not text.strip():
        raise ValueError("the probe reported nothing")
    try:
        report = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("its report is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"its report is not JSON: {error}") from None
    if not isinstance(report, dict):
        raise ValueError(f"its report is a JSON {type(report).__name__} and not an object")  # noqa: TRY004
    faults = [
        name
        for name, good in {
            "python": isinstance(report.get("python"), str),
            "machine": isinstance(report.get("machine"), str),
            "manifest": isinstance(report.get("manifest", ""), dict | None),
            "facts": _maps_to(dict, report.get("facts")),
            "errors": _maps_to(str, report.get("errors")),
        }.items()
        if not good
    ]
    if faults:
        raise ValueError(f"its report lacks {', '.join(faults)}, or has it in another shape")
    return report


def merged(probed: Probed, more: Probed, theme: str) -> Probed:
    """``probed`` with what ``more`` says about ``theme``, of which it is the only source."""
    if probed.report is None:
        return probed
    said = more.report or {"facts": {}, "errors": {theme: more.error}}
    parts = {
        part: {**_without(probed.report[part], theme), **_only(said[part], theme)}
        for part in ("facts", "errors")
    }
    return replace(probed, report={**probed.report, **parts})


def with_proofs(probed: Probed, more: Probed) -> Probed:
    """``probed`` with the proofs that ``more`` reports; its own were not asked for."""
    report = probed.report or {}
    known, found = (
        dict((one.get("facts") or {}).get("patches") or {}) for one in (report, more.report or {})
    )
    if probed.report is None or not known:
        return probed
    facts = {**report["facts"], "patches": {**known, "proofs": found.get("proofs", [])}}
    return replace(probed, report={**report, "facts": facts})


def _without(part: Mapping[str, Any], theme: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != theme}


def _only(part: Mapping[str, Any], theme: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name == theme}


def _maps_to(kind: type, value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, kind) for one in value.values())


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
