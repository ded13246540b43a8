"""Receipts of the image of ``planned()``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagefactory import __version__
from imagefactory.verifying import check_registry, revision
from imagefactory.verifying.receipt import CHECKS, CheckResult, Outcome, Receipt
from imagefactory.verifying.receipt_store import ReceiptStore
from support.images import DIGEST
from support.plans import planned

#: The tools in a receipt of this version's checks.
TOOLS = {CHECKS: revision.of_checks()}
GOOD = (
    CheckResult(name="files", outcome=Outcome.PASS, required=True, detail="", seconds=0),
    CheckResult(name="torch", outcome=Outcome.PASS, required=True, detail="", seconds=0),
    CheckResult(name="on-gpu", outcome=Outcome.SKIP, required=False, detail="", seconds=0),
    CheckResult(name="advice", outcome=Outcome.FAIL, required=False, detail="", seconds=0),
)


def saved(folder: Path, *checks: CheckResult, **fields: object) -> Path:
    """A receipt of these checks for the image of ``planned()``, where ``fields`` say no other."""
    made = planned()
    right = {"digest": DIGEST, "cell": made.cell.name, "build_key": made.build_key}
    usual: dict[str, Any] = {"tag": "t", "verified_at": "now", "tools": TOOLS, **right}
    record = Receipt(**{**usual, **fields}, checks=checks or GOOD)
    return ReceiptStore(folder=folder).save(record)


def all_passed(digest: str, own: Mapping[str, str]) -> Receipt:
    """A receipt of all checks that this version makes."""
    checks = tuple(
        CheckResult(
            name=one.name, outcome=Outcome.PASS, required=one.required, detail="", seconds=0
        )
        for one in check_registry.requirements("cu130")
    )
    return Receipt(
        digest=digest,
        tag="t",
        cell=own["io.imagefactory.cell"],
        build_key=own["io.imagefactory.build-key"],
        verified_at="2026-11-20T10:00:00+00:00",
        checks=checks,
        version=__version__,
        tools=TOOLS,
    )
