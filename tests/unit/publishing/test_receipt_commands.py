"""The commands about keys and receipts, without an engine, on a fake registry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import projects
from support.images import Images, image
from support.keys import signer, trusting
from support.machine import settings
from support.plans import planned
from support.promoting import NEEDED, PATH, attach, attached, labels, receipt_of, repository
from support.promoting import image as stored
from support.receipts import GOOD, TOOLS
from support.registry import FakeRegistry
from typer.testing import CliRunner

from imagefactory import opening, pipeline, workflows
from imagefactory.building import records
from imagefactory.commands import key, sbom, verify
from imagefactory.errors import CheckFailedError, FactoryError, InputError, Problem, SetupError
from imagefactory.publishing import attachments, provenance, publishing, tags, vouching
from imagefactory.results import Watcher
from imagefactory.system import signing, strict_json, ui
from imagefactory.system.manifests import digest_of
from imagefactory.system.platforms import Platform
from imagefactory.system.registry import Registries
from imagefactory.system.registry_writes import Attachment
from imagefactory.system.signing import NOBODY, Trust
from imagefactory.verifying import leftovers, verifying
from imagefactory.verifying.receipt import Level, Outcome, Receipt, Requirement
from imagefactory.verifying.receipt_store import IN_TOTO, TRUSTED, ReceiptStore, statement
from imagefactory.workspace import Workspace

NEW = labels("bbbbbbbb")
Run = Callable[..., Any]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project on a machine without an engine, whose user has no key."""
    monkeypatch.setattr(opening, "connect_if_any", lambda _: None)
    monkeypatch.setattr(workflows, "_needed", lambda _: NEEDED)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(signing.VARIABLE, raising=False)
    return Workspace(matrix=tmp_path / "m.yaml", project=tmp_path, settings=settings(tmp_path))


@pytest.fixture
def run(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; its JSON, its text, or the error that it raises."""
    monkeypatch.setattr(ui, "_results", [])

    def run(module: Any, *argv: str) -> Any:
        monkeypatch.setattr(module, "workspace_of", lambda _: workspace)
        done = CliRunner().invoke(module.app, [*argv])
        if isinstance(done.exception, (FactoryError, OSError)):
            raise done.exception
        assert done.exit_code == 0, done.output
        return ui._results.pop() if "--json" in argv else done.output

    return run


def test_a_key_is_made_shown_trusted_once_and_listed(run: Run, workspace: Workspace) -> None:
    with pytest.raises(InputError, match="no key"):
        run(key, "show")
    made = run(key, "new", "--comment", "me\x1b@here", "--json")
    assert run(key, "show").strip() == made["line"]
    other = signer(b"other").key
    for added in (True, False):
        (row,) = run(key, "trust", other.line, "--json")
        assert (row["id"], row["added"]) == (other.id, added)
    (workspace.project / "more.pub").write_text(f"{signer(b'more').key.line}\n")
    assert "counts now" in run(key, "trust", str(workspace.project / "more.pub"))
    rows = run(key, "list", "--json")
    assert [(row["comment"], row["own"]) for row in rows] == [
        ("me@here", True),
        ("other", False),
        ("more", False),
    ]
    assert len((workspace.project / TRUSTED).read_text().splitlines()) == 2
    for bad in (str(workspace.project / "none.pub"), "ssh-ed25519 AAAA"):
        with pytest.raises(InputError):
            run(key, "trust", bad)


def test_the_receipt_of_an_image_is_checked_without_running_it(
    run: Run, workspace: Workspace, registry: FakeRegistry
) -> None:
    digest = stored(registry, NEW)
    own = repository(registry, workspace.project)
    name = f"{registry.address}/{PATH}:{tags.of_labels(NEW)}"

    def refused(*names: str) -> str:
        with pytest.raises(CheckFailedError) as caught:
            run(verify, "--receipt", *(names or (name,)))
        return caught.value.problems[0].code

    assert refused() == "verify-unverified"
    assert refused(f"{registry.address}/{PATH}:none") == "verify-unverified"
    attached(own, receipt_of(digest, NEW), trusting(b"ci"))
    assert refused() == "verify-receipt"
    (workspace.project / TRUSTED).write_text(signer(b"ci").key.line)
    shown = run(verify, "--receipt", name)
    assert "signed by ci (SHA256:" in shown
    assert "verified (import): 1 passed" in shown
    (row,) = run(verify, "--receipt", f"{registry.address}/{PATH}@{digest}", "--json")
    assert (row["signed_by"]["comment"], row["receipt"]["digest"]) == ("ci", digest)
    reports = [workspace.project / "report.xml", workspace.project / "report.md"]
    wanted = [f"--junit={reports[0]}", f"--markdown={reports[1]}", "--level"]
    assert run(verify, "--receipt", name, *wanted, "import") == shown
    assert [digest.partition(":")[2] in one.read_text() for one in reports] == [True, True]
    with pytest.raises(CheckFailedError, match="verified up to import, not up to gpu"):
        run(verify, "--receipt", name, *wanted, "gpu")
    assert "not verified" in reports[1].read_text()
    for more in (["--rerun"], ["--models", "all"], ["--select", "cpu"]):
        with pytest.raises(InputError, match=f"runs nothing, and takes no {more[0]}"):
            run(verify, "--receipt", name, *more)
    later = "2026-11-21T10:00:00+00:00"
    failed = receipt_of(digest, NEW, Outcome.FAIL, verified_at=later)
    attached(own, failed, trusting(b"ci"))
    assert refused() == "verify-failed-verify"
    with pytest.raises(InputError):
        run(verify, "--receipt")


@pytest.fixture
def pulled(
    workspace: Workspace, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str, list[list[str]]]:
    """The name and digest of an image from the registry, and which images are run here."""
    digest, name = stored(registry, NEW), f"{registry.address}/{PATH}:{tags.of_labels(NEW)}"
    own = replace(image(planned()), digest=digest, labels=NEW)
    engine = Images(own)
    engine.images, engine.registries = {name: own}, Registries(workspace.project)
    ran: list[list[str]] = []

    def verified(_: Workspace, names: list[str], *__: Any, **___: Any) -> tuple[Receipt, ...]:
        ran.append(names)
        return (receipt_of(digest, NEW),)

    for find in ("connect", "connect_if_any"):
        monkeypatch.setattr(opening, find, lambda _: engine)
    monkeypatch.setattr(pipeline, "verify", verified)
    return name, digest, ran


def test_a_pulled_image_is_not_run_if_a_machine_that_is_trusted_has_verified_it(
    run: Run,
    workspace: Workspace,
    registry: FakeRegistry,
    pulled: tuple[str, str, list[list[str]]],
) -> None:
    name, digest, ran = pulled
    own = repository(registry, workspace.project)
    attached(own, receipt_of(digest, NEW), trusting(b"ci"))
    run(verify, name)
    assert ran.pop() == [name]  # nobody is trusted
    (workspace.project / TRUSTED).write_text(signer(b"spark").key.line)
    run(verify, name)
    assert ran.pop() == [name]  # another one is
    (workspace.project / TRUSTED).write_text(signer(b"ci").key.line)
    said = run(verify, name)
    assert "verified (import): 1 passed" in said
    assert f"{name} was not run here (--rerun does): " in said
    (row,) = run(verify, name, "--level", "import", "--json")
    assert (row["digest"], ran) == (digest, [])
    for more in (["--rerun"], ["--gpu"], ["--models", "all"]):
        with suppress(CheckFailedError):  # for --gpu the level is too low
            run(verify, name, *more)
        assert ran.pop() == [name]


def test_what_is_attached_counts_beside_the_receipt_of_this_machine(
    run: Run,
    workspace: Workspace,
    registry: FakeRegistry,
    pulled: tuple[str, str, list[list[str]]],
) -> None:
    name, digest, _ = pulled
    own = repository(registry, workspace.project)
    (workspace.project / TRUSTED).write_text(signer(b"spark").key.line)
    spark = trusting(b"spark")
    mine = receipt_of(digest, NEW)
    replace(opening.receipts(workspace), trust=spark).save(mine)
    with pytest.raises(CheckFailedError, match="verified up to import, not up to gpu"):
        run(verify, "--receipt", name, "--gpu")
    later = replace(mine, verified_at="2026-11-21T10:00:00+00:00", level=Level.GPU)
    attached(own, later, spark)
    assert "verified (gpu)" in run(verify, "--receipt", name, "--gpu")
    latest = receipt_of(digest, NEW, Outcome.FAIL, verified_at="2026-11-22T10:00:00+00:00")
    attached(own, latest, spark)
    with pytest.raises(CheckFailedError, match="did not pass its last verification"):
        run(verify, "--receipt", name)


def test_nothing_runs_where_its_report_or_its_receipt_could_not_be_written(
    run: Run,
    workspace: Workspace,
    pulled: tuple[str, str, list[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, _, ran = pulled
    (workspace.project / "file").touch()
    for option in ("--junit", "--markdown"):
        for path in (workspace.project, workspace.project / "file" / "report"):
            with pytest.raises(OSError, match=r"directory|File exists"):
                run(verify, name, option, str(path))
    assert ran == []

    def runs(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.undo()
    monkeypatch.setattr(leftovers, "sweep", lambda *_: None)
    monkeypatch.setattr(opening, "read_lock", lambda _: None)
    monkeypatch.setattr(verifying, "verify", runs)
    workspace.settings.receipts.parent.mkdir(parents=True, exist_ok=True)
    workspace.settings.receipts.touch()
    engine: Any = None
    for models in (None, ()):  # with --models all, too
        with pytest.raises(OSError, match="receipts"):
            pipeline._verify_all(workspace, engine, [name], {}, Watcher(), models=models)


def test_why_a_receipt_here_does_not_count_is_said_where_no_registry_answers(
    run: Run, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = image(planned())
    monkeypatch.setattr(opening, "connect_if_any", lambda _: Images(made))

    def unreachable(*_: object) -> None:
        raise SetupError([Problem(code="registry-unreachable", what="nobody answers")])

    monkeypatch.setattr(vouching, "read_image", unreachable)
    with pytest.raises(SetupError):
        run(verify, "--receipt", made.ref)
    opening.receipts(workspace).save(receipt_of(made.digest, NEW))
    (workspace.project / TRUSTED).write_text(signer(b"ci").key.line)
    with pytest.raises(CheckFailedError, match="only signed receipts count here"):
        run(verify, "--receipt", made.ref)


def test_an_image_that_was_built_or_verified_here_is_run_here(
    run: Run,
    workspace: Workspace,
    registry: FakeRegistry,
    pulled: tuple[str, str, list[list[str]]],
) -> None:
    name, digest, ran = pulled
    attached(repository(registry, workspace.project), receipt_of(digest, NEW), trusting(b"ci"))
    (workspace.project / TRUSTED).write_text(signer(b"ci").key.line)
    builds = workspace.settings.state / records.FOLDER
    records.add(builds, NEW["io.imagefactory.build-key"], [digest])
    run(verify, name)
    assert ran.pop() == [name]
    shutil.rmtree(builds)
    opening.receipts(workspace).save(receipt_of(digest, NEW))
    run(verify, name)
    assert ran.pop() == [name]


def test_an_image_with_a_moving_tag_is_compared_with_the_cell_that_its_labels_name(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Images, "platform", Platform.AMD64)
    projects.write(workspace.project)
    place = replace(workspace, matrix=workspace.project / "matrix.yaml")
    (plan, *_) = workflows.check(place, [])
    moving, made = "ghcr.io/me/vllm:latest-gb10", image(plan)
    engine = Images(made)

    def expected(labels: dict[str, str]) -> set[str]:
        engine.images = {moving: replace(made, ref=moving, labels=labels)}
        found = pipeline.expected_by_tag(place, [moving], engine)
        return {one.build_key for tag, one in found.items() if tag == moving}

    assert expected({**made.labels}) == {plan.build_key}
    assert expected({**made.labels, "io.imagefactory.build-key": "older"}) == set()
    assert expected({**made.labels, "io.imagefactory.cell": "foreign"}) == set()
    assert expected({}) == set()


def test_an_sbom_is_that_of_a_cell_or_the_one_that_is_attached(
    run: Run, workspace: Workspace, registry: FakeRegistry
) -> None:
    projects.write(workspace.project)
    workspace = replace(workspace, matrix=workspace.project / "matrix.yaml")
    (plan, *_) = workflows.check(workspace, [])
    made = json.loads(workflows.sbom(workspace, plan.cell.name))
    assert made["metadata"]["component"]["bom-ref"] == plan.build_key
    digest = stored(registry, NEW)
    name, own = f"{registry.address}/{PATH}@{digest}", repository(registry, workspace.project)
    with pytest.raises(CheckFailedError, match="sbom-missing"):
        run(sbom, name)
    row = Attachment(kind=attachments.SBOM, media_type="a/b", content=b"{}", annotations={})
    assert attach(own, digest, row)
    assert run(sbom, name) == "{}\n"
    run(sbom, name, "-o", str(workspace.project / "x.json"))
    assert (workspace.project / "x.json").read_text() == "{}"


def sbom_row(content: bytes) -> Attachment:
    return Attachment(kind=attachments.SBOM, media_type="a/b", content=content, annotations={})


def origin_row(digest: str, listed: bytes, trust: Trust) -> Attachment:
    """The provenance of an image that names an SBOM."""
    by = {"digest": {"sha256": digest_of(listed).partition(":")[2]}}
    predicate = {"runDetails": {"byproducts": [by]}}
    made = statement(digest, "t", provenance.PREDICATE, predicate)
    content = strict_json.dumps(made)
    if trust.signer:
        content = signing.seal(content, IN_TOTO, trust.signer)
    return Attachment(kind=IN_TOTO, media_type="a/b", content=content, annotations={})


def test_of_several_sboms_the_one_counts_that_a_trusted_provenance_names(
    run: Run, workspace: Workspace, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(ui, "warn", warned.append)
    digest, right, wrong = stored(registry, NEW), b'{"right": 1}', b'{"wrong": 1}'
    name, own = f"{registry.address}/{PATH}@{digest}", repository(registry, workspace.project)
    assert attach(own, digest, sbom_row(wrong))
    assert (run(sbom, name), warned) == ('{"wrong": 1}\n', [])  # nobody is trusted here
    (workspace.project / TRUSTED).write_text(signer(b"ci").key.line)
    assert (run(sbom, name), len(warned)) == ('{"wrong": 1}\n', 1)
    for nobody in (
        origin_row(digest, wrong, NOBODY),
        origin_row(digest, wrong, trusting(b"mallory")),
        origin_row("sha256:" + "e" * 64, wrong, trusting(b"ci")),
        replace(origin_row(digest, wrong, NOBODY), content=b'{"payloadType": [[1]]}'),
    ):
        assert attach(own, digest, nobody)
    assert (run(sbom, name), len(warned)) == ('{"wrong": 1}\n', 2)
    assert attach(own, digest, origin_row(digest, right, trusting(b"ci")))
    with pytest.raises(CheckFailedError, match="sbom-edited"):
        run(sbom, name)
    assert attach(own, digest, sbom_row(right))
    assert (run(sbom, name), len(warned)) == ('{"right": 1}\n', 2)


def test_an_image_may_be_pushed_with_the_receipt_that_another_machine_attached(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    made = planned()
    digest = registry.put(PATH, tags.of_plan(made), {"sha256:1": 1}, labels=made.labels)
    engine = Images(image(made))
    engine.registries = Registries(tmp_path)
    record = Receipt(
        digest=digest,
        tag="t",
        cell=made.cell.name,
        build_key=made.build_key,
        verified_at="2026-11-20",
        checks=GOOD[:1],
        tools=TOOLS,
    )
    needed = (Requirement(name="files", required=True, excusable=False),)
    own = repository(registry, tmp_path)

    def allowed(*trusted: bytes) -> int:
        trust = signing.Trust(keys=tuple(signer(one).key for one in trusted))
        store = ReceiptStore(folder=tmp_path / "none", trust=trust)
        return len(publishing.allowed([made], engine, store, lambda _: needed, own.name))

    attached(own, record, trusting(b"ci"))
    with pytest.raises(CheckFailedError, match="push-unverified"):
        allowed(b"ci")  # the image here is another one
    engine.images = {made.cell.tag: replace(image(made), digest=digest)}
    assert allowed(b"ci", b"spark") == 1
    with pytest.raises(CheckFailedError, match="who is not trusted here"):
        allowed(b"spark")
