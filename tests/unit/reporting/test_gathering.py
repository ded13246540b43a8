"""The command that writes the page of an image: what it gathers, and from where."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.keys import trusting
from support.pages import Page
from support.reported import DIGEST, KEY, LABELS, TAG, audit, receipt
from support.verify_fakes import image_info, resolution

from imagefactory import opening, workflows
from imagefactory.auditing import auditing
from imagefactory.auditing.auditing import Audit
from imagefactory.commands.inspect import inspect_command
from imagefactory.errors import SetupError, fail
from imagefactory.inspecting import inspecting
from imagefactory.locking import store
from imagefactory.planning import planning
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.verifying.receipt_store import ReceiptStore
from imagefactory.workspace import Workspace, find

OLDER, OLD, LATER = (f"sha256:{digit * 64}" for digit in "123")


class Images(Engine):
    """Has these images of one cell, of which those that are broken cannot be read."""

    def __init__(self, *digests: str, labels: dict[str, str], broken: tuple[str, ...] = ()) -> None:
        super().__init__()
        names = {TAG: DIGEST, **{digest: digest for digest in digests}}
        self.images = {
            ref: image_info(ref=ref, digest=digest, labels=labels) for ref, digest in names.items()
        }
        self.broken = broken

    def find_images(self, refs: Iterable[str]) -> dict[str, ImageInfo]:
        return {ref: self.images[ref] for ref in refs if ref in self.images}

    def inspect_image(self, ref: str) -> ImageInfo:
        if ref in self.broken:
            raise fail(SetupError, "engine-failed", "not unpacked")
        return self.images[ref]

    def read_file(self, image: str, path: str) -> str | None:  # noqa: ARG002
        return '{"wheels": []}'

    def history(self, ref: str) -> list[tuple[str, int]]:  # noqa: ARG002
        return []


@pytest.fixture
def workspace(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return find(tmp_path / "matrix.yaml", os.environ)


def page(workspace: Workspace, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(opening, "connect", lambda _: engine)
    target = workspace.project / "deep" / "image.html"
    inspect_command(TAG, file=workspace.matrix, html=target)
    return " ".join(Page.of(target).text.split())


def test_a_machine_that_knows_nothing_of_an_image_says_so(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page(workspace, Images(labels=LABELS), monkeypatch)
    assert "no receipt on this machine" in text
    assert "Not audited:" in text
    assert "no receipt of an earlier one" in text
    assert "Not audited: it was not built by" in page(workspace, Images(labels={}), monkeypatch)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (Images(OLD, labels=LABELS), "0 layers are the same; 0 are new"),
        (Images(labels=LABELS), "Only receipts are compared"),
        (Images(OLD, labels=LABELS, broken=(OLD,)), "Only receipts are compared"),
    ],
    ids=["here", "gone", "broken"],
)
def test_the_last_image_of_the_cell_is_the_one_that_was_verified_before(
    engine: Engine, says: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ReceiptStore(folder=workspace.settings.receipts)
    for digest, day in ((OLDER, 18), (OLD, 19), (DIGEST, 20), (LATER, 21)):
        kept.save(receipt(digest=digest, verified_at=f"2026-11-{day}T12:00:00+00:00"))
    other = f"sha256:{'4' * 64}"
    kept.save(receipt(digest=other, cell="other", verified_at="2026-11-19T13:00:00+00:00"))
    text = page(workspace, engine, monkeypatch)
    assert f"Since {'2' * 12}" in text
    assert says in text


def test_a_receipt_that_does_not_count_is_not_a_pass(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ReceiptStore(folder=workspace.settings.receipts, trust=trusting(b"stranger")).save(receipt())
    text = page(workspace, Images(labels=LABELS), monkeypatch)
    assert "Not verified: it has a receipt that does not count" in text


def test_an_audit_counts_if_the_lock_has_the_wheels_of_the_image(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, wheels = SimpleNamespace(name="mine"), resolution()
    locked = store.digest(wheels)
    inputs = SimpleNamespace(matrix=SimpleNamespace(cells=[cell]))
    monkeypatch.setattr(opening, "read", lambda _: inputs)
    monkeypatch.setattr(planning, "installed", lambda *_: wheels)
    known: list[Audit] = []
    monkeypatch.setattr(auditing, "audit_cells", lambda *_, **__: known)

    def judged(**labels: str) -> object:
        own = {f"io.imagefactory.{name.replace('_', '-')}": text for name, text in labels.items()}
        engine = Images(labels={"io.imagefactory.build-key": KEY, **own})
        image = inspecting.look(engine, TAG)
        return workflows._recall_audit(workspace, image)

    assert judged(cell=cell.name, lock_digest=locked) == f"run imagefactory audit {cell.name}"
    assert judged(cell=cell.name, lock_digest="other") == "the lock has other wheels than the image"
    assert str(judged(cell="none", lock_digest=locked)).endswith("has no cell none")
    known.append(audit())
    assert judged(cell=cell.name, lock_digest=locked) == audit()
