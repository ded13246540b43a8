"""Reads the probe's report, which is only what the image says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn


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
        raise ValueError(f"its report is no JSON: {error}") from None
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


def _maps_to(kind: type, value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, kind) for one in value.values())


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
