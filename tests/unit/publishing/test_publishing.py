"""What a push sends, which tags it sets, and what it says of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.images import DIGEST, Images, image
from support.machine import settings
from support.plans import planned
from support.receipts import saved
from support.registry import FakeRegistry, digest_of

from imagefactory import pipeline
from imagefactory.building import records
from imagefactory.errors import CheckFailedError, InputError, SetupError, fail
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.publishing import attachments, lending, publishing, sbom, tags
from imagefactory.publishing.publishing import Delivery
from imagefactory.system import registry_writes
from imagefactory.system.engine import ImageInfo
from imagefactory.system.manifests import Document
from imagefactory.system.registry import Registries
from imagefactory.verifying import receipt_store
from imagefactory.verifying.receipt_store import ReceiptStore
from imagefactory.workspace import Workspace


class Pushing(Images):
    """An engine whose images go to a fake registry."""

    def __init__(self, registry: FakeRegistry, config: Path) -> None:
        super().__init__()
        self.registries = Registries(config)
        self.registry = registry
        self.layers: dict[str, dict[str, int]] = {}
        self.named: dict[str, str] = {}
        self.settings = settings(config)
        self.pushes: list[tuple[str, str]] = []

    def image(self, plan: CellPlan, layers: dict[str, int]) -> ImageInfo:
        """An image of these layers, verified as it will be in the registry."""
        digest = FakeRegistry().put("any", "same", layers)
        self.layers[digest] = layers
        return replace(image(plan), digest=digest)

    def tag(self, source: str, target: str) -> None:
        self.named[target] = source

    def untag(self, ref: str) -> None:
        self.named.pop(ref, None)

    def inspect_image(self, ref: str) -> ImageInfo:
        if ref not in self.named:
            raise fail(CheckFailedError, "image-missing", f"the engine has no image {ref}")
        return replace(image(planned()), digest=self.named[ref])

    def push(self, reference: str) -> None:
        self.pushes.append((reference, self.named[reference]))
        repository, _, tag = reference.removeprefix(f"{self.registry.address}/").rpartition(":")
        self.registry.put(repository, "same", self.layers[self.named[reference]])
        self.registry.manifests[repository, tag] = self.registry.manifests.pop((repository, "same"))


@pytest.fixture
def pushing(registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pushing:
    # the real one takes a fifth of a second
    monkeypatch.setattr(sbom, "make", lambda _, digest: json.dumps({"of": digest}).encode())
    return Pushing(registry, tmp_path)


def cell(*tags: str) -> CellPlan:
    made, key = planned(), digest_of(tags[0].encode())[7:]
    names = tuple(f"imagefactory/vllm:{tag}" for tag in tags)
    labels = {**made.labels, f"{LABEL}.build-key": key}
    own = replace(made.cell, name=tags[0], tags=names)
    return replace(made, cell=own, build_key=key, labels=labels)


def push(
    pushing: Pushing, ready: list[tuple[CellPlan, ImageInfo]], receipts: Path = Path("none")
) -> Delivery:
    """Push to the fake registry."""
    repository = f"{pushing.registry.address}/me/vllm"
    store = ReceiptStore(folder=receipts)
    return publishing.push(pushing, ready, repository, store, pushing.settings)


def test_a_blob_is_sent_once_to_a_repository(pushing: Pushing) -> None:
    repository = f"{pushing.registry.address}/me/vllm"
    pushing.registry.put("me/vllm", "older", {"sha256:base": 1000})
    first = cell("gb10", "gb10-torch")
    second = cell("gb10-nemotron")
    ready = [
        (first, pushing.image(first, {"sha256:base": 1000, "sha256:vllm": 200})),
        (second, pushing.image(second, {"sha256:base": 1000, "sha256:vllm": 200, "sha256:p": 3})),
    ]
    done = push(pushing, ready).pushed
    immutable = [f"{repository}:{tags.of_plan(plan)}" for plan in (first, second)]
    assert [one.reference for one in done] == [
        immutable[0],
        f"{repository}:gb10",
        f"{repository}:gb10-torch",
        immutable[1],
        f"{repository}:gb10-nemotron",
    ]
    assert [reference for reference, _ in pushing.pushes] == immutable
    # the config is a blob too, of ten bytes; the fake gives equal ones to all images
    assert [(one.blobs_sent, one.blobs_there, one.bytes_sent) for one in done] == [
        (2, 1, 210),
        *[(0, 3, 0)] * 2,
        (1, 3, 3),
        (0, 4, 0),
    ]
    assert [one.digest for one in done] == [ready[0][1].digest] * 3 + [ready[1][1].digest] * 2
    assert pushing.named == {}
    assert done[0].as_dict()["bytes_sent"] == 210


def test_of_a_large_repository_the_tags_that_are_most_alike_are_read(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "MOST_TAGS", 1)
    pushing.registry.put("me/vllm", "of-another-cell", {"sha256:other": 1})
    pushing.registry.put("me/vllm", "gb10-old", {"sha256:base": 1000})
    one = cell("gb10-new")
    ready = [(one, pushing.image(one, {"sha256:base": 1000}))]
    done, _ = push(pushing, ready).pushed
    assert (done.blobs_sent, done.blobs_there) == (1, 1)


def test_a_tag_that_is_something_else_in_the_registry_is_refused(pushing: Pushing) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:base": 1})
    pushing.layers[made.digest] = {"sha256:swapped": 1}
    done = push(pushing, [(one, made)])
    assert done.pushed == ()
    assert isinstance(done.error, CheckFailedError)
    (problem,) = done.error.problems
    assert (problem.code, made.digest in problem.what) == ("push-other-digest", True)
    assert pushing.named == {}


def test_an_immutable_tag_is_never_another_image_and_is_not_sent_twice(pushing: Pushing) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:base": 1})
    assert push(pushing, [(one, made)]).error is None
    assert push(pushing, [(one, made)]).error is None
    assert len(pushing.pushes) == 1
    other = pushing.image(one, {"sha256:changed": 1})
    done = push(pushing, [(one, other)])
    assert isinstance(done.error, CheckFailedError)
    assert done.error.problems[0].code == "push-immutable"
    assert {*pushing.registry.tags("me/vllm").values()} == {made.digest}


def test_a_tag_never_names_what_another_process_put_under_the_immutable_one(
    pushing: Pushing,
) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:base": 1})
    pushing.layers[made.digest] = {"sha256:swapped": 1}
    assert push(pushing, [(one, made)]).error is not None
    assert "gb10" not in pushing.registry.tags("me/vllm")


def test_a_push_attaches_the_receipt_once(pushing: Pushing, tmp_path: Path) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:base": 1})
    folder = tmp_path / "receipts"
    saved(folder, digest=made.digest, cell="gb10", build_key=one.build_key)
    repository = f"{pushing.registry.address}/me/vllm"
    for has_api in (True, False, False):
        pushing.registry.has_referrers = has_api
        assert push(pushing, [(one, made)], folder).error is None
        attached = pushing.registries.referrers(repository, made.digest)
        assert [one.artifact_type for one in attached] == [
            attachments.RECEIPTS[0],
            attachments.SBOM,
        ]
    sent = [line for line in pushing.registry.asked if line.startswith("PUT")]
    assert len(sent) == 3 + 2 + 1 + 1, "three blobs, two manifests, their list, and the cell's tag"


class Killed(BaseException):
    """Ends a run as a kill does: nothing catches it."""


@pytest.mark.parametrize("until", range(11))
def test_a_push_that_is_killed_at_any_step_is_finished_by_the_next(
    pushing: Pushing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int
) -> None:
    one = cell("gb10", "gb10-torch")
    made = pushing.image(one, {"sha256:base": 1})
    folder = tmp_path / "receipts"
    saved(folder, digest=made.digest, cell="gb10", build_key=one.build_key)
    records.add(pushing.settings.state / records.FOLDER, one.build_key, [made.digest])
    before = digest_of(b'{"older": 1}')
    pushing.registry.has_referrers = False
    pushing.registry.manifests["me/vllm", "gb10"] = b'{"older": 1}'
    done: list[object] = []

    def step(work: Callable[..., object], *args: object) -> object:
        if len(done) == until:
            raise Killed
        done.append(result := work(*args))
        return result

    with monkeypatch.context() as patched:
        for owner, name in (
            (pushing, "push"),
            (registry_writes, "put_blob"),
            (registry_writes, "put_manifest"),
        ):
            patched.setattr(owner, name, partial(step, getattr(owner, name)))
        with pytest.raises(Killed):
            push(pushing, [(one, made)], folder)
    names = pushing.registry.tags("me/vllm")
    assert {*names.values()} <= {made.digest, before}
    assert push(pushing, [(one, made)], folder).error is None
    names = pushing.registry.tags("me/vllm")
    assert names == dict.fromkeys((tags.of_plan(one), "gb10", "gb10-torch"), made.digest)
    attached = pushing.registries.referrers(f"{pushing.registry.address}/me/vllm", made.digest)
    kinds = [attachments.RECEIPTS[0], attachments.SBOM, receipt_store.IN_TOTO]
    assert [one.artifact_type for one in attached] == kinds


def test_an_engine_that_knows_images_by_their_config_may_push(pushing: Pushing) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:base": 1})
    pushing.layers["sha256:config-same"] = pushing.layers[made.digest]
    ready = [(one, replace(made, digest="sha256:config-same"))]
    done, _ = push(pushing, ready).pushed
    assert done.digest == made.digest


def test_a_repository_that_nobody_may_list_gets_its_images_and_says_so(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object) -> tuple[str, ...]:
        raise fail(SetupError, "registry-denied", "nobody may list it")

    monkeypatch.setattr(pushing.registries, "tags", denied)
    one = cell("gb10")
    ready = [(one, pushing.image(one, {"sha256:base": 1}))]
    done, _ = push(pushing, ready).pushed
    assert (done.blobs_sent, done.blobs_there) == (2, 0)
    assert "all blobs are counted as sent: nobody may list it" in capsys.readouterr().err


def test_a_users_own_tag_of_that_name_is_given_back(pushing: Pushing) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:1": 1})
    target = f"{pushing.registry.address}/me/vllm:{tags.of_plan(one)}"
    before = {target: "sha256:" + "e" * 64, "other:1": "sha256:" + "f" * 64}
    pushing.named = dict(before)
    assert push(pushing, [(one, made)]).error is None
    assert pushing.pushes == [(target, made.digest)]
    assert pushing.named == before

    def killed(reference: str) -> None:
        raise KeyboardInterrupt

    pushing.push = killed  # type: ignore[method-assign]
    pushing.registry.manifests.clear()
    with pytest.raises(KeyboardInterrupt):
        push(pushing, [(one, made)])
    assert pushing.named == before


@pytest.mark.parametrize("own", ["", "sha256:" + "e" * 64])
@pytest.mark.parametrize("until", range(8))
def test_names_that_a_killed_push_has_left_are_given_back_by_the_next(
    pushing: Pushing, own: str, until: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:1": 1})
    target = f"{pushing.registry.address}/me/vllm:{tags.of_plan(one)}"
    before = pushing.named = {"other:1": made.digest} | ({target: own} if own else {})
    pushing.named, calls = dict(before), 0

    def dying(work: Callable[..., object], *args: object) -> object:
        nonlocal calls
        calls += 1
        if calls > until:  # once dead, it does nothing any more
            raise Killed
        return work(*args)

    with monkeypatch.context() as patched:
        for name in ("tag", "untag", "push", "inspect_image"):
            patched.setattr(pushing, name, partial(dying, getattr(pushing, name)))
        with suppress(Killed):
            push(pushing, [(one, made)])
    assert made.digest in pushing.named.values()
    # also if there is nothing more to send
    assert push(pushing, [(one, made)]).error is None
    assert pushing.named == before
    assert list(pushing.settings.loans.glob("*.json")) == []


def test_a_name_that_a_push_uses_just_now_and_one_that_is_the_users_again_stay(
    pushing: Pushing,
) -> None:
    names = ["r/a:1", "r/b:1", "r/c:1"]
    with lending.named(pushing, DIGEST, names[0], pushing.settings.loans):
        lending.sweep(pushing, pushing.settings.loans)
        assert pushing.named == {names[0]: DIGEST}
    for name, text in zip(names, ('{"name":', "", '"x"'), strict=True):
        pushing.named[name] = DIGEST
        (pushing.settings.loans / f"{name[2]}.json").write_text(text)
    lost = {"name": names[1], "digest": "sha256:other", "before": "sha256:gone", "kept": ""}
    (pushing.settings.loans / "b.json").write_text(json.dumps(lost))
    lending.sweep(pushing, pushing.settings.loans)
    assert pushing.named == dict.fromkeys(names, DIGEST)
    assert list(pushing.settings.loans.glob("*.json")) == []


def test_a_users_own_tag_of_the_same_image_is_not_touched(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = cell("gb10")
    made = pushing.image(one, {"sha256:1": 1})
    target = f"{pushing.registry.address}/me/vllm:{tags.of_plan(one)}"
    pushing.named = {target: made.digest}
    monkeypatch.delattr(Pushing, "tag")
    monkeypatch.delattr(Pushing, "untag")  # an engine that is called would fail
    assert push(pushing, [(one, made)]).error is None
    assert pushing.named == {target: made.digest}


def test_of_several_tags_each_is_reported_when_one_fails(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = cell("a", "b", "c")
    ready = [(one, pushing.image(one, {"sha256:1": 1}))]
    put = registry_writes.put_manifest

    def denied(registries: Registries, reference: str, found: Document) -> None:
        if reference.endswith(":b"):
            raise fail(SetupError, "registry-denied", "not you")
        put(registries, reference, found)

    monkeypatch.setattr(registry_writes, "put_manifest", denied)
    done = push(pushing, ready)
    assert isinstance(done.error, SetupError)
    rows = [row.as_dict() for row in done.rows]
    assert [str(row["reference"])[-1] for row in rows[1:]] == ["a", "b", "c"]
    assert [row["digest"] for row in rows] == [ready[0][1].digest] * 2 + [None, None]
    codes = [[error["code"] for error in row["errors"]] for row in rows]  # type: ignore[attr-defined]
    assert codes == [[], [], ["registry-denied"], ["push-not-tried"]]
    assert {*rows[0]} == {*rows[1]}
    assert pushing.named == {}


def test_blobs_that_the_registry_does_not_show_are_unknown_and_not_zero(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> dict[str, int]:
        raise fail(SetupError, "registry-cut", "cut")

    one = cell("a")
    ready = [(one, pushing.image(one, {"sha256:1": 1}))]
    monkeypatch.setattr(pushing.registries, "blobs", denied)
    done, _ = push(pushing, ready).pushed
    assert (done.blobs_sent, done.blobs_there, done.bytes_sent) == (None, None, None)


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("", "is empty"),
        ("u:pw@host/x", "contains credentials"),
        ("a b", "contains white space"),
        ("x:tag", "has the tag tag"),
    ],
)
def test_a_wrong_repository_is_refused_before_anything_is_read(
    tmp_path: Path, to: str, reason: str
) -> None:
    workspace = Workspace(matrix=tmp_path / "none", project=tmp_path, settings=settings(tmp_path))
    with pytest.raises(InputError) as caught:
        pipeline.push(workspace, [], to)
    (problem,) = caught.value.problems
    assert (problem.where, problem.code, reason in problem.what) == (
        "--to",
        "reference-wrong",
        True,
    )
    assert problem.fix
    assert "pw" not in str(problem)
