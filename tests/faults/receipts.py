"""Spoilt receipts: edited, cut, nested, huge, re-signed or replayed; none moves another image."""

from __future__ import annotations

import base64
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.images import DIGEST, Images, image
from support.keys import signer
from support.plans import planned
from support.receipts import TOOLS

from faults import Outcome
from faults.observations import spoil
from imagefactory.errors import CheckFailedError
from imagefactory.publishing import publishing, vouching
from imagefactory.system import signing, strict_json
from imagefactory.system.signing import Trust
from imagefactory.verifying import receipt, receipt_store
from imagefactory.verifying.receipt import CHECKS, CheckResult, Receipt, Requirement
from imagefactory.verifying.receipt_store import IN_TOTO, ReceiptStore

#: Seconds that a receipt may take.
MOST_SECONDS = 5.0
NEEDED = tuple(
    Requirement(name=name, required=True, excusable=name == "on-gpu")
    for name in ("files", "torch", "on-gpu")
)
OWN, OTHER = signer(b"own"), signer(b"other")
TRUST = Trust(keys=(OWN.key,), signer=OWN)


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """The image of a plan, its receipt, and where spoilt ones are put."""

    folder: Path
    good: Receipt

    @property
    def path(self) -> Path:
        return ReceiptStore(folder=self.folder).path(DIGEST)

    def verdict(self, trust: Trust) -> tuple[bool, str]:
        """Whether the image may be pushed, and what went wrong besides."""
        store, plan = ReceiptStore(folder=self.folder, trust=trust), planned()
        began = time.process_time()
        engine = Images(image(plan))
        try:
            allowed = bool(
                publishing.allowed([plan], engine, store, lambda _: NEEDED, "127.0.0.1:9/x")
            )
        except CheckFailedError as error:
            allowed = False
            str(error).encode()  # it can be shown
        except Exception as error:  # noqa: BLE001 - whatever it is, it was not held
            return False, f"{type(error).__name__}: {error}"
        took = time.process_time() - began
        return allowed, f"took {took:.0f} s" if took > MOST_SECONDS else ""


def attack(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Spoil the receipt of a verified image; what says anything else is refused."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    plan = planned()
    good = Receipt(
        digest=DIGEST,
        cell=plan.cell.name,
        build_key=plan.build_key,
        tag=plan.cell.tag,
        verified_at="now",
        checks=tuple(
            CheckResult(
                name=one.name, outcome=receipt.Outcome.PASS, required=True, detail="x", seconds=1
            )
            for one in NEEDED
        ),
        version="1",
        tools=TOOLS,
    )
    attacked = Attacked(folder=folder, good=good)
    kept = vouching.read_image
    vouching.read_image = lambda *_: None  # nothing has been pushed
    try:
        yield from _plain(chance, count, attacked)
        yield from _signed(chance, count, attacked)
    finally:
        vouching.read_image = kept


def _plain(chance: random.Random, count: int, attacked: Attacked) -> Iterator[Outcome]:
    """Where nobody is trusted, unsigned receipts count, but none that says something else."""
    text, path, good = json.dumps(attacked.good.as_dict()), attacked.path, attacked.good
    for number in range(count + 1):
        spoilt = spoil(chance, json.loads(text)) if number else text
        what = f"receipt {number}"
        if number % 20 == 19:
            what = chance.choice(("a pipe", "a folder", "a link to itself", "an endless device"))
            _odd(path, what)
        else:
            path.write_bytes(spoilt.encode("utf-8", "surrogatepass"))
        allowed, detail = attacked.verdict(signing.NOBODY)
        if not detail and allowed != (what.startswith("receipt") and _is_same(spoilt, good)):
            detail = f"{'accepted' if allowed else 'refused'}: {spoilt[:300]}"
        yield Outcome(fault=what, held=not detail, detail=detail)
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


def _signed(chance: random.Random, count: int, attacked: Attacked) -> Iterator[Outcome]:
    """Where keys are trusted, only what one of them signed about this very image counts."""
    right = receipt_store.write(attacked.good, TRUST)
    envelope = json.loads(right)
    for name, make in FORGERIES.items():
        content, trust = make(attacked.good, json.loads(right))
        attacked.path.write_bytes(content)
        allowed, detail = attacked.verdict(trust)
        if allowed != (name in HARMLESS) and not detail:
            detail = "accepted" if allowed else "refused"
        yield Outcome(fault=name, held=not detail, detail=detail)
    for number in range(count):
        if number % 2:
            spoilt = bytearray(right)
            spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
            content = bytes(spoilt)
        else:
            content = spoil(chance, envelope).encode("utf-8", "surrogatepass")
        attacked.path.write_bytes(content)
        allowed, detail = attacked.verdict(TRUST)
        if allowed and not _is_equal(content, envelope):
            detail = f"accepted: {content[:300]!r}"
        yield Outcome(fault=f"envelope {number}", held=not detail, detail=detail)


def _is_equal(content: bytes, envelope: object) -> bool:
    try:
        return bool(json.loads(content) == envelope)
    except (ValueError, RecursionError):
        return False


Forged = tuple[bytes, Trust]
Envelope = dict[str, Any]


def _edited(edit: Callable[[Any], object], envelope: Envelope) -> Forged:
    """The statement in an envelope edited, its signature left as it was."""
    statement = json.loads(base64.b64decode(envelope["payload"]))
    edit(statement)
    envelope["payload"] = base64.b64encode(strict_json.dumps(statement)).decode()
    return strict_json.dumps(envelope), TRUST


def _resealed(payload: object, kind: str = IN_TOTO) -> Forged:
    """Signed by a trusted key, but not a receipt of this image."""
    content = payload if isinstance(payload, bytes) else strict_json.dumps(payload)
    return signing.seal(content, kind, OWN), TRUST


def _with(envelope: Envelope, *more: Any, **fields: Any) -> Forged:
    rows = [*envelope["signatures"], *more]
    return strict_json.dumps({**envelope, "signatures": rows, **fields}), TRUST


def _statement(record: Receipt) -> dict[str, Any]:
    made = receipt_store.statement(
        record.digest, record.tag, receipt_store.PREDICATE, record.as_dict()
    )
    return dict(json.loads(json.dumps(made)))


def _twice(record: Receipt) -> bytes:
    text = strict_json.dumps(_statement(record)).decode()
    return text.replace('"build_key":', '"build_key":"other","build_key":', 1).encode()


def _pass(statement: Any) -> None:
    statement["predicate"]["checks"][0]["outcome"] = "pass"
    statement["predicate"]["passed"] = True


BAD = replace(OTHER.key, raw=OWN.key.raw)
WRONG = {"keyid": OWN.key.id, "sig": base64.b64encode(bytes(64)).decode()}
UNKNOWN = {"keyid": OTHER.key.id, "sig": WRONG["sig"]}
#: What a signed receipt is turned into; only those in ``HARMLESS`` count.
FORGERIES: dict[str, Callable[[Receipt, Envelope], Forged]] = {
    "untouched": lambda _, e: (strict_json.dumps(e), TRUST),
    "laid out differently": lambda _, e: (json.dumps(e, indent=4).encode(), TRUST),
    "a failed check edited to pass": lambda r, _: _edited(_pass, _failed(r)),
    "another detail": lambda _, e: _edited(
        lambda row: row["predicate"]["checks"][0].update(detail="y"), e
    ),
    "another level": lambda _, e: _edited(lambda row: row["predicate"].update(level="gpu"), e),
    "another subject": lambda _, e: _edited(lambda row: row.update(subject=[]), e),
    "signature removed": lambda r, _: (strict_json.dumps(r.as_dict()), TRUST),
    "no signatures": lambda _, e: _with({**e, "signatures": []}),
    "signed by another key": lambda r, _: (
        receipt_store.write(r, Trust(keys=(OTHER.key,), signer=OTHER)),
        TRUST,
    ),
    "another key that says it is this one": lambda r, _: (
        receipt_store.write(r, Trust(signer=replace(OTHER, key=BAD))),
        TRUST,
    ),
    "the key is trusted no more": lambda _, e: (strict_json.dumps(e), Trust(keys=(OTHER.key,))),
    "nobody is trusted": lambda _, e: (strict_json.dumps(e), signing.NOBODY),
    "two signatures, one bad": lambda _, e: _with(e, WRONG),
    "two signatures, one of nobody": lambda _, e: _with(e, UNKNOWN),
    "a bad signature first": lambda _, e: _with({**e, "signatures": [WRONG]}, *e["signatures"]),
    "another payload type": lambda _, e: _with(e, payloadType="application/json"),
    "signed as another type": lambda r, _: _resealed(_statement(r), "application/json"),
    "a field more": lambda _, e: _with(e, more=1),
    "no base64": lambda _, e: _with(e, payload="!"),
    "signed, of another image": lambda r, _: _resealed(
        _statement(replace(r, digest="sha256:" + "b" * 64))
    ),
    "signed, of another build": lambda r, _: _resealed(_statement(replace(r, build_key="other"))),
    "signed, of another cell": lambda r, _: _resealed(_statement(replace(r, cell="other"))),
    "signed, another subject": lambda r, _: _resealed({**_statement(r), "subject": []}),
    "signed, two subjects": lambda r, _: _resealed(
        {**_statement(r), "subject": _statement(r)["subject"] * 2}
    ),
    "signed, another predicate": lambda r, _: _resealed(
        {**_statement(r), "predicateType": "https://slsa.dev/provenance/v1"}
    ),
    "signed, a key twice": lambda r, _: _resealed(_twice(r)),
    "signed, of a newer version": lambda r, _: _resealed(
        {**_statement(r), "predicate": {**r.as_dict(), "schema": 99}}
    ),
    "signed, cut": lambda r, _: _resealed(strict_json.dumps(_statement(r))[:-1]),
    "signed, nested": lambda *_: _resealed(b"[" * 100_000),
    "cut": lambda _, e: (strict_json.dumps(e)[:-1], TRUST),
    "a field twice": lambda _, e: (
        strict_json.dumps(e).replace(b'{"payload":', b'{"payload":"","payload":', 1),
        TRUST,
    ),
    "huge": lambda _, e: (strict_json.dumps(e) + b" " * signing.LARGEST, TRUST),
    "many signatures": lambda _, e: _with(e, *[UNKNOWN] * 100_000),
    "an envelope of nothing": lambda *_: (b'{"payloadType": []}', TRUST),
    "nested": lambda *_: (b"[" * 100_000, TRUST),
}
HARMLESS = ("untouched", "laid out differently")


def _failed(record: Receipt) -> Envelope:
    bad = replace(record.checks[0], outcome=receipt.Outcome.FAIL)
    failed = replace(record, checks=(bad, *record.checks[1:]))
    return dict(json.loads(receipt_store.write(failed, TRUST)))


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
        expected = json.loads(json.dumps(good.as_dict()))
        new = ("level", "patches", "schema")
        told = [data["tools"], data.get("inputs", {}), data.get("machine", {})]
        checks = [{**row, "detail": "", "seconds": 0} for row in data["checks"]]
        texts = [data["tag"], data["verified_at"]]
        texts += [data.get(name, "") for name in ("version", "lock_digest")]
        texts += [row["detail"] for row in data["checks"]]
        numbers = [row["seconds"] for row in data["checks"]]
        return (
            all(data[key] == expected[key] for key in ("digest", "cell", "build_key"))
            and data["tools"][CHECKS] == expected["tools"][CHECKS]
            and all(isinstance(one, str) for row in told for one in row.values())
            and data["passed"] is True
            and data.get("unproven", []) == []
            and {*data} <= {*expected}
            and all(data.get(key, expected[key]) == expected[key] for key in new)
            and checks == [{**row, "detail": "", "seconds": 0} for row in expected["checks"]]
            and all(type(row["required"]) is bool for row in data["checks"])
            and all(isinstance(one, str) and one.encode() is not None for one in texts)
            and all(type(one) in (int, float) and 0 <= one < 1e9 for one in numbers)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _no_number(text: str) -> float:
    raise ValueError(text)
