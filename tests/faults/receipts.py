"""Spoilt receipts: edited, cut, nested, huge or of other types; none lets another image move."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.images import DIGEST, Images, image
from support.plans import planned

from faults import Outcome
from faults.observations import spoil
from imagefactory.errors import CheckFailedError
from imagefactory.publishing import publishing
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import CheckResult, Receipt, Requirement

#: Seconds that a receipt may take.
MOST_SECONDS = 5.0
NEEDED = tuple(
    Requirement(name=name, required=True, excusable=name == "on-gpu")
    for name in ("files", "torch", "on-gpu")
)


def attack(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Spoil the receipt of a verified image; what says anything else is refused."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    plan = planned()
    engine = Images(image(plan))
    checks = tuple(
        CheckResult(
            name=one.name, outcome=receipt.Outcome.PASS, required=True, detail="x", seconds=1
        )
        for one in NEEDED
    )
    good = Receipt(
        digest=DIGEST,
        cell=plan.cell.name,
        build_key=plan.build_key,
        tag=plan.cell.tag,
        verified_at="now",
        checks=checks,
        version="1",
    )
    path = receipt.save(folder, good)
    text = path.read_text()
    for number in range(count + 1):
        spoilt = spoil(chance, json.loads(text)) if number else text
        what = f"receipt {number}"
        if number % 20 == 19:
            what = chance.choice(("a pipe", "a folder", "a link to itself", "an endless device"))
            _odd(path, what)
        else:
            path.write_bytes(spoilt.encode("utf-8", "surrogatepass"))
        began = time.process_time()
        detail = ""
        try:
            allowed = bool(publishing.allowed([plan], engine, folder, lambda _: NEEDED))
        except CheckFailedError as error:
            allowed = False
            str(error).encode()  # it can be shown
        except Exception as error:  # noqa: BLE001 - whatever it is, it was not held
            allowed, detail = False, f"{type(error).__name__}: {error}"
        if not detail and allowed != (what.startswith("receipt") and _is_same(spoilt, good)):
            detail = f"{'accepted' if allowed else 'refused'}: {spoilt[:300]}"
        if time.process_time() - began > MOST_SECONDS:
            detail = f"took {time.process_time() - began:.0f} s"
        yield Outcome(fault=what, held=not detail, detail=detail)
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


def _odd(path: Path, what: str) -> None:
    path.unlink(missing_ok=True)
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if what == "a link to itself" else "/dev/zero")


def _is_same(text: str, good: Receipt) -> bool:
    """Whether a text is a receipt that says the same of the same image as ``good``."""
    try:
        data: Any = json.loads(text, parse_constant=_no_number)
        expected = good.as_dict()
        checks = [{**row, "detail": "", "seconds": 0} for row in data["checks"]]
        texts = [data["tag"], data["verified_at"], data.get("version", "")]
        texts += [row["detail"] for row in data["checks"]]
        numbers = [row["seconds"] for row in data["checks"]]
        return (
            all(data[key] == expected[key] for key in ("digest", "cell", "build_key"))
            and data["passed"] is True
            and data.get("unproven", []) == []
            and checks == [{**row, "detail": "", "seconds": 0} for row in expected["checks"]]
            and all(type(row["required"]) is bool for row in data["checks"])
            and all(isinstance(one, str) and one.encode() is not None for one in texts)
            and all(type(one) in (int, float) and 0 <= one < 1e9 for one in numbers)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _no_number(text: str) -> float:
    raise ValueError(text)
