"""Images move to files and back, and to other engines over ssh, which get only what they lack."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from machines import Machine, Machines
from support.e2e import factory
from support.promoting import labels

from imagefactory import __version__
from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine
from imagefactory.transport import content
from imagefactory.transport.content import Folder
from imagefactory.verifying import check_registry
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt
from imagefactory.verifying.receipt_store import ReceiptStore

pytestmark = pytest.mark.e2e

REPOSITORY = "imagefactory/test-transport"
#: Bytes of the layers that images share, and of those that an upgrade changes.
SHARED, CHANGED = 24 << 20, 12 << 20


def make(engine: Engine, folder: Path, name: str, key: str, **layers: int) -> str:
    """A verified image whose layers have so many random bytes, by their names."""
    own = labels(key)
    lines = [f'LABEL {label}="{value}"' for label, value in own.items()]
    for layer, size in layers.items():
        file = folder / layer
        if not file.exists():
            file.write_bytes(os.urandom(size))
        lines.append(f"COPY {layer} /{layer}")
    (folder / "Dockerfile").write_text("\n".join(["FROM scratch", *lines]) + '\nCMD ["/none"]\n')
    tag = f"{REPOSITORY}:{name}"
    engine.build(folder, tag=tag)
    receipts(os.environ).save(passed(engine.inspect_image(tag).digest, own))
    return tag


def passed(digest: str, own: Mapping[str, str]) -> Receipt:
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
    )


def receipts(environ: Mapping[str, str]) -> ReceiptStore:
    return ReceiptStore(folder=from_environment(environ).receipts)


@pytest.fixture
def images(engine: Engine, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """An image and its upgrade, which shares a layer with it."""
    folder = tmp_path / "image"
    folder.mkdir()
    old = make(engine, folder, "old", "1", stack=SHARED, vllm1=CHANGED)
    new = make(engine, folder, "new", "2", stack=SHARED, vllm2=CHANGED)
    digests = [engine.inspect_image(tag).digest for tag in (old, new)]
    yield old, new
    for tag in (old, new):
        engine.untag(tag)
    for digest in digests:
        receipts(os.environ).path(digest).unlink(missing_ok=True)


def blobs(engine: Engine, tag: str) -> dict[str, int]:
    """What an image consists of."""
    digest = engine.inspect_image(tag).digest
    folder = engine.blob_folder(digest)
    assert folder is not None
    return dict(content.read(Folder(folder), digest, tag).blobs)


def missing(engine: Engine, new: str, old: str) -> int:
    """Bytes of ``new`` that who has ``old`` lacks."""
    there = blobs(engine, old)
    return sum(size for digest, size in blobs(engine, new).items() if digest not in there)


def test_an_upgraded_image_costs_its_missing_blobs_and_a_dead_machine_stops_no_other(
    engine: Engine, images: tuple[str, str], machines: Machines
) -> None:
    old, new = images
    one, other = machines.all
    first = factory("distribute", one.name, "--tag", old, "--json", environ=machines.environment)
    assert first.code == 0, first.err
    before = one.received()
    other.unplug()
    done = factory(
        *("distribute", one.name, other.name, "nowhere.invalid", "--tag", new, "--json"),
        environ=machines.environment,
    )
    sent, dead, unknown = done.json
    assert (done.code, sent["state"], sent["errors"]) == (1, "sent", []), done.err
    assert [row["errors"][0]["code"] for row in (dead, unknown)] == ["remote-connection"] * 2
    lacked = missing(engine, new, old)

    assert lacked <= sent["bytes_sent"] <= 1.02 * lacked
    assert one.received() - before <= 1.02 * lacked
    assert names_on(one) == {old, new}
    assert digest_on(one, new) == engine.inspect_image(new).digest
    again = factory("distribute", one.name, "--tag", new, "--json", environ=machines.environment)
    assert [(row["state"], row["bytes_sent"]) for row in again.json] == [("there", 0)]


def digest_on(machine: Machine, tag: str) -> str:
    return machine.run("docker", "image", "inspect", "--format", "{{.Id}}", tag).stdout.strip()


def names_on(machine: Machine) -> set[str]:
    listed = machine.run("docker", "image", "ls", "--format", "'{{.Repository}}:{{.Tag}}'")
    return set(listed.stdout.split())
