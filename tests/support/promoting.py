"""A repository in a fake registry whose images have receipts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from imagefactory import __version__
from imagefactory.matrix.moving_tags import MovingTag
from imagefactory.planning.cell_plan import LABEL
from imagefactory.publishing import attachments, tags
from imagefactory.publishing.moving import Repository
from imagefactory.system.registry import Registries
from imagefactory.system.registry_writes import Attachment
from imagefactory.system.signing import NOBODY, Trust
from imagefactory.system.yamlfile import Location
from imagefactory.verifying import receipt_store
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt, Requirement
from imagefactory.verifying.receipt_store import Found, ReceiptStore
from support.receipts import TOOLS
from support.registry import FakeRegistry

NOW = datetime(2026, 11, 22, 2, 17, tzinfo=UTC)
PATH = "me/vllm"
NEEDED = (Requirement(name="files", required=True, excusable=False),)


def at(hours: int) -> datetime:
    return NOW + timedelta(hours=hours)


def moving(template: str, level: str = "verified", **when: str) -> MovingTag:
    where = Location(file="matrix.yaml", line=5)
    return MovingTag(template=template, when=when, level=level, location=where)


def labels(
    key: str, *, vllm: str = "0.33.0", day: str = "2026-11-20", **more: str
) -> dict[str, str]:
    """The labels of an image whose build key begins with ``key``."""
    own = {
        "pin.vllm": vllm,
        "pin.cuda": "13.0",
        "channel": "cu130",
        "flavor": "gb10",
        "cell": f"cell-{key}",
        "build-key": key.ljust(64, "0"),
        **more,
    }
    return {tags.CREATED: f"{day}T00:00:00Z"} | {f"{LABEL}.{name}": own[name] for name in own}


def image(registry: FakeRegistry, own: Mapping[str, str], *names: str) -> str:
    """Store an image with these labels under its immutable tag and ``names``; its digest."""
    layers = {f"sha256:{own[f'{LABEL}.build-key'][:8]}": 7, "sha256:base": 1000}
    for name in (str(tags.of_labels(own)), *names):
        digest = registry.put(PATH, name, layers, labels=own)
    return digest


def receipt_of(
    digest: str, own: Mapping[str, str], outcome: Outcome = Outcome.PASS, **fields: Any
) -> Receipt:
    check = CheckResult(name="files", outcome=outcome, required=True, detail="", seconds=0)
    right: dict[str, Any] = {
        "digest": digest,
        "tag": "t",
        "cell": own[f"{LABEL}.cell"],
        "build_key": own[f"{LABEL}.build-key"],
        "verified_at": "2026-11-20T10:00:00+00:00",
        "version": __version__,
        "tools": TOOLS,
    }
    return Receipt(**{**right, **fields}, checks=(check,))


def verified(registry: FakeRegistry, folder: Path, own: Mapping[str, str]) -> str:
    """Store an image, and a receipt of it on this machine; its digest."""
    digest = image(registry, own)
    ReceiptStore(folder=folder / "receipts").save(receipt_of(digest, own))
    return digest


def attached(own: Repository, record: Receipt, trust: Trust = NOBODY) -> bool:
    """Attach a receipt to its image, signed if ``trust`` has a signer; whether that worked."""
    return attach(own, record.digest, row_of(record, trust))


def row_of(record: Receipt, trust: Trust = NOBODY) -> Attachment:
    """A receipt as it is attached."""
    found = receipt_store.read(receipt_store.write(record, trust), trust, record.digest)
    assert isinstance(found, Found)
    return attachments.of_receipt(found)


def attach(own: Repository, digest: str, *wanted: Attachment) -> bool:
    """Attach something to an image; whether that worked."""
    image = own.registries.document(f"{own.name}@{digest}")
    assert image is not None
    return attachments.attach(own.registries, own.name, image, wanted)


def repository(registry: FakeRegistry, folder: Path, *declared: MovingTag) -> Repository:
    return Repository(
        name=f"{registry.address}/{PATH}",
        registries=Registries(folder),
        moving=declared or (moving("nightly"), moving("stable-{flavor}", "gpu")),
        receipts=ReceiptStore(folder=folder / "receipts"),
        state=folder / "state",
        needed=lambda _: NEEDED,
    )
