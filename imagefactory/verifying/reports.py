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


def with_proofs(probed: Probed, more: Probed) -> Probed:
    """``probed`` with the proofs that ``more`` reports beside its own."""
    if probed.report is None or more.report is None:
        return probed
    facts = probed.report["facts"]
    proofs = [*_proofs(probed.report), *_proofs(more.report)]
    facts = {**facts, "patches": {**facts.get("patches", {}), "proofs": proofs}}
    return replace(probed, report={**probed.report, "facts": facts})


def _proofs(report: Mapping[str, Any]) -> list[Any]:
    found = report["facts"].get("patches", {}).get("proofs")
    return found if isinstance(found, list) else []


def _maps_to(kind: type, value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, kind) for one in value.values())


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
