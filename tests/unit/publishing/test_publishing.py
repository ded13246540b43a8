"""Which images may be pushed, and what is said of a push."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.images import DIGEST, Images, image
from support.plans import planned
from support.registry import FakeRegistry, fake_registry

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.publishing import publishing
from imagefactory.system.engine import ImageInfo
from imagefactory.system.registry import Registries
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt


def saved(folder: Path, *outcomes: Outcome, digest: str = DIGEST) -> None:
    checks = tuple(
        CheckResult(name=f"c{n}", outcome=o, required=True, detail="", seconds=0)
        for n, o in enumerate(outcomes)
    )
    made = Receipt(
        digest=digest, tag="t", cell="c", build_key="k", verified_at="now", checks=checks
    )
    receipt.save(folder, made)


def refused(folder: Path, *images: ImageInfo) -> str:
    with pytest.raises(CheckFailedError) as caught:
        publishing.allowed([planned()], Images(*images), folder)
    (problem,) = caught.value.problems
    assert problem.fix.startswith("imagefactory ")
    return problem.code


def test_an_image_may_move_only_with_a_passed_receipt_of_exactly_its_digest(tmp_path: Path) -> None:
    made = planned()
    assert refused(tmp_path) == "push-no-image"
    assert refused(tmp_path, image(made, **{"io.imagefactory.build-key": "old"})) == "push-stale"
    assert refused(tmp_path, image(made)) == "push-unverified"
    saved(tmp_path, Outcome.PASS, digest="sha256:" + "b" * 64)
    assert refused(tmp_path, image(made)) == "push-unverified"
    saved(tmp_path, Outcome.PASS, Outcome.FAIL)
    assert refused(tmp_path, image(made)) == "push-failed-verify"
    saved(tmp_path, Outcome.PASS, Outcome.SKIP)
    assert refused(tmp_path, image(made)) == "push-failed-verify"
    saved(tmp_path)
    assert refused(tmp_path, image(made)) == "push-failed-verify"
    saved(tmp_path, Outcome.PASS)
    assert len(publishing.allowed([made], Images(image(made)), tmp_path)) == 1


def test_a_receipt_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    saved(tmp_path, Outcome.PASS)
    next(tmp_path.glob("*.json")).write_text("{}")
    assert receipt.load(tmp_path, DIGEST) is None


class Pushing(Images):
    """An engine whose images go to a fake registry."""

    def __init__(self, registry: FakeRegistry, config: Path) -> None:
        super().__init__()
        self.registries = Registries(config)
        self.registry = registry
        self.layers: dict[str, dict[str, int]] = {}
        self.named: dict[str, str] = {}
        self.left: list[str] = []

    def image(self, plan: CellPlan, layers: dict[str, int]) -> ImageInfo:
        """An image of these layers, verified as it will be in the registry."""
        digest = FakeRegistry().put("any", "same", layers)
        self.layers[digest] = layers
        return replace(image(plan), digest=digest)

    def tag(self, source: str, target: str) -> None:
        self.named[target] = source
        self.left.append(target)

    def untag(self, ref: str) -> None:
        self.left.remove(ref)

    def push(self, reference: str) -> None:
        repository, _, tag = reference.removeprefix(f"{self.registry.address}/").rpartition(":")
        self.registry.put(repository, "same", self.layers[self.named[reference]])
        self.registry.manifests[repository, tag] = self.registry.manifests.pop((repository, "same"))


@pytest.fixture
def pushing(tmp_path: Path) -> Iterator[Pushing]:
    with fake_registry() as registry:
        yield Pushing(registry, tmp_path)


def cell(*tags: str) -> CellPlan:
    made = planned()
    names = tuple(f"imagefactory/vllm:{tag}" for tag in tags)
    return replace(made, cell=replace(made.cell, name=tags[0], tags=names))


def test_a_blob_is_sent_once_to_a_repository(pushing: Pushing) -> None:
    repository = f"{pushing.registry.address}/me/vllm"
    pushing.registry.put("me/vllm", "older", {"sha256:base": 1000})
    first = cell("gb10", "gb10-torch")
    second = cell("gb10-nemotron")
    ready = [
        (first, pushing.image(first, {"sha256:base": 1000, "sha256:vllm": 200})),
        (second, pushing.image(second, {"sha256:base": 1000, "sha256:vllm": 200, "sha256:p": 3})),
    ]
    done = publishing.push(pushing, ready, repository)
    assert [one.reference for one in done] == [
        f"{repository}:gb10",
        f"{repository}:gb10-torch",
        f"{repository}:gb10-nemotron",
    ]
    # the config is a blob too, of ten bytes; the fake gives equal ones to all images
    assert [(one.blobs_sent, one.blobs_there, one.bytes_sent) for one in done] == [
        (2, 1, 210),
        (0, 3, 0),
        (1, 3, 3),
    ]
    assert [one.digest for one in done] == [ready[0][1].digest, *(i.digest for _, i in ready)]
    assert pushing.left == []
    assert done[0].as_dict()["bytes_sent"] == 210


def test_of_a_large_repository_the_tags_that_are_most_alike_are_read(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "MOST_TAGS", 1)
    pushing.registry.put("me/vllm", "cpu", {"sha256:other": 1})
    pushing.registry.put("me/vllm", "gb10-old", {"sha256:base": 1000})
    one = cell("gb10-new")
    ready = [(one, pushing.image(one, {"sha256:base": 1000}))]
    (done,) = publishing.push(pushing, ready, f"{pushing.registry.address}/me/vllm")
    assert (done.blobs_sent, done.blobs_there) == (1, 1)


def test_a_tag_that_is_something_else_in_the_registry_is_refused(pushing: Pushing) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:base": 1})
    pushing.layers[made.digest] = {"sha256:swapped": 1}
    with pytest.raises(CheckFailedError) as caught:
        publishing.push(pushing, [(one, made)], f"{pushing.registry.address}/me/vllm")
    (problem,) = caught.value.problems
    assert (problem.code, made.digest in problem.what) == ("push-other-digest", True)
    assert pushing.left == []


def test_an_engine_that_knows_images_by_their_config_may_push(pushing: Pushing) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:base": 1})
    pushing.layers["sha256:config-same"] = pushing.layers[made.digest]
    ready = [(one, replace(made, digest="sha256:config-same"))]
    (done,) = publishing.push(pushing, ready, f"{pushing.registry.address}/me/vllm")
    assert done.digest == made.digest


def test_a_repository_that_nobody_may_list_gets_its_images_and_says_so(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object) -> tuple[str, ...]:
        raise fail(SetupError, "registry-denied", "nobody may list it")

    monkeypatch.setattr(pushing.registries, "tags", denied)
    one = cell("gb10")
    ready = [(one, pushing.image(one, {"sha256:base": 1}))]
    (done,) = publishing.push(pushing, ready, f"{pushing.registry.address}/me/vllm")
    assert (done.blobs_sent, done.blobs_there) == (2, 0)
    assert "all blobs are counted as sent: nobody may list it" in capsys.readouterr().err
