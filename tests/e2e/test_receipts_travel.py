"""What is attached to an image in a real registry, read back by tools that are not ours.

The registry is Debian's, which has no referrers API. No engine is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.signer import Key  # type: ignore[attr-defined]
from support import ROOT
from support.e2e import Completed, factory
from support.images import Images, image
from support.keys import signer
from support.machine import settings
from support.plans import all_planned
from support.promoting import PATH
from support.receipts import TOOLS

from imagefactory import __version__
from imagefactory.building import records
from imagefactory.errors import CheckFailedError, fail
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.publishing import attachments, provenance, publishing, tags
from imagefactory.system import registry_writes, signing
from imagefactory.system.engine import ImageInfo
from imagefactory.system.manifests import Document, digest_of
from imagefactory.system.registry import Registries
from imagefactory.system.signing import Trust
from imagefactory.verifying import check_registry, receipt_store
from imagefactory.verifying.receipt import CheckResult, Level, Outcome, Receipt
from imagefactory.verifying.receipt_store import ReceiptStore

pytestmark = pytest.mark.e2e
PLAN = next(one for one in all_planned() if one.cell.flavor.name == "gb10")


class Builder(Images):
    """An engine that has the image of a plan and pushes it without Docker."""

    def __init__(self, plan: CellPlan, folder: Path) -> None:
        super().__init__()
        self.registries = Registries(folder)
        self.manifest = document_of(plan)
        self.names: dict[str, str] = {}  # type: ignore[assignment]
        info = replace(image(plan), digest=self.manifest[0].digest)
        self.images = {plan.cell.tag: info}

    def tag(self, source: str, target: str) -> None:
        self.names[target] = source

    def untag(self, ref: str) -> None:
        self.names.pop(ref, None)

    def inspect_image(self, ref: str) -> ImageInfo:
        if ref not in self.names:
            raise fail(CheckFailedError, "image-missing", ref)
        return replace(image(PLAN), digest=self.names[ref])

    def push(self, reference: str) -> None:
        made, blobs = self.manifest
        for content in blobs:
            registry_writes.put_blob(self.registries, reference.rpartition(":")[0], content)
        registry_writes.put_manifest(self.registries, reference, made)


def document_of(plan: CellPlan) -> tuple[Document, list[bytes]]:
    labels = {"Labels": dict(plan.labels)}
    config = {"os": "linux", "architecture": plan.cell.platform.arch, "config": labels}
    blobs = [json.dumps(config).encode(), plan.build_key.encode()]
    kinds = ("config.v1+json", "layer.v1.tar")
    rows = [
        {
            "digest": digest_of(content),
            "size": len(content),
            "mediaType": f"application/vnd.oci.image.{kind}",
        }
        for content, kind in zip(blobs, kinds, strict=True)
    ]
    head = {"schemaVersion": 2, "mediaType": registry_writes.IMAGE}
    row = {**head, "config": rows[0], "layers": rows[1:]}
    return registry_writes.document(row, registry_writes.IMAGE), blobs


def receipt_of(digest: str, level: Level = Level.SERVE, hour: int = 10) -> Receipt:
    checks = tuple(
        CheckResult(
            name=one.name, outcome=Outcome.PASS, required=one.required, detail="x", seconds=0.5
        )
        for one in check_registry.requirements(PLAN.cell.channel)
    )
    return Receipt(
        digest=digest,
        tag=PLAN.cell.tag,
        cell=PLAN.cell.name,
        build_key=PLAN.build_key,
        verified_at=f"2026-11-20T{hour}:00:00+00:00",
        checks=checks,
        version=__version__,
        tools=TOOLS,
        level=level,
    )


@dataclass
class Machine:
    """A machine with a key of its own, a project, and nothing in common with others."""

    folder: Path
    registry: str

    @property
    def repository(self) -> str:
        return f"{self.registry}/{PATH}"

    @property
    def store(self) -> ReceiptStore:
        trust = signing.trust(self.environ, self.project / receipt_store.TRUSTED)
        return ReceiptStore(folder=self.folder / "state" / "imagefactory" / "receipts", trust=trust)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def environ(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "IMAGEFACTORY_ENGINE_DIR": str(self.folder),
            "DOCKER_HOST": f"unix://{self.folder}/none.sock",
            "DOCKER_CONFIG": str(self.folder),
        }

    def run(self, *argv: str) -> Completed:
        file = ("--file", str(self.project / "matrix.yaml"))
        own = () if argv[:2] in (("key", "new"), ("key", "show")) else file
        return factory(*argv, *own, cwd=self.project, environ=self.environ)

    def trusts(self, other: Machine) -> None:
        line = other.run("key", "show").out.strip()
        done = self.run("key", "trust", line)
        assert done.code == 0, done.err


def machine(folder: Path, registry: str) -> Machine:
    (folder / "project").mkdir(parents=True)
    shutil.copy(ROOT / "matrix.yaml", folder / "project")
    made = Machine(folder=folder, registry=registry)
    done = made.run("key", "new", "--comment", folder.name)
    assert done.code == 0, done.err
    return made


def pushed(ci: Machine) -> str:
    """Push the image, signed, from the machine that built it; its digest."""
    engine = Builder(PLAN, ci.folder)
    own = settings(ci.folder / "push")
    (digest,) = {one.digest for one in engine.images.values()}
    records.add(own.state / records.FOLDER, PLAN.build_key, [digest])
    ci.store.save(receipt_of(digest))
    needed = check_registry.requirements
    ready = publishing.allowed([PLAN], engine, ci.store, needed, ci.repository)
    done = publishing.push(engine, ready, ci.repository, ci.store, own)
    assert done.error is None, done.error
    assert done.pushed[0].digest == digest
    return digest


def skopeo(*argv: str) -> bytes:
    done = subprocess.run(
        ["skopeo", "--insecure-policy", *argv],
        capture_output=True,
        check=False,
        env={**os.environ, "HOME": "/none"},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def read_back(registry: str, digest: str, folder: Path) -> dict[str, tuple[Any, bytes]]:
    """What skopeo finds attached: by kind, its manifest and content."""
    name = f"docker://{registry}/{PATH}"
    listed = json.loads(
        skopeo("inspect", "--raw", "--tls-verify=false", f"{name}:{digest.replace(':', '-')}")
    )
    folder.mkdir()
    found = {}
    for number, row in enumerate(listed["manifests"]):
        target = folder / str(number)
        source = f"{name}@{row['digest']}"
        skopeo("copy", "--src-tls-verify=false", source, f"dir:{target}")
        manifest = json.loads((target / "manifest.json").read_text())
        assert manifest["subject"]["digest"] == digest
        (layer,) = manifest["layers"]
        content = (target / layer["digest"].partition(":")[2]).read_bytes()
        found[manifest["artifactType"]] = manifest, content
    return found


def statement_of(content: bytes, key: signing.PublicKey) -> Statement:
    """The in-toto statement in a DSSE envelope, verified and read by the libraries of in-toto."""
    envelope = Envelope.from_dict(json.loads(content))
    public = {"keyval": {"public": key.raw.hex()}, "scheme": "ed25519", "keytype": "ed25519"}
    assert envelope.verify([Key.from_dict(key.id, public)], 1)
    assert envelope.payload_type == receipt_store.IN_TOTO
    found = Statement.copy_from_pb(json_format.Parse(envelope.payload, statement_pb2.Statement()))
    found.validate()
    return found


@pytest.fixture
def ci(registry: str, tmp_path: Path) -> Machine:
    return machine(tmp_path / "ci", registry)


def test_what_is_attached_is_read_by_skopeo_and_the_libraries_of_in_toto_and_cyclonedx(
    ci: Machine, tmp_path: Path
) -> None:
    digest = pushed(ci)
    found = read_back(ci.registry, digest, tmp_path / "read")
    assert {*found} == {attachments.RECEIPTS[0], attachments.SBOM, receipt_store.IN_TOTO}
    (key,) = ci.store.trust.keys

    verified = statement_of(found[attachments.RECEIPTS[0]][1], key)
    assert verified.pb.predicate_type == receipt_store.PREDICATE
    assert dict(verified.pb.subject[0].digest) == {"sha256": digest.partition(":")[2]}
    schema = json.loads((ROOT / "docs" / "receipt.schema.json").read_text())
    predicate = json_format.MessageToDict(verified.pb.predicate)
    jsonschema.validate(predicate, schema)
    assert predicate["digest"] == digest

    _, listed = found[attachments.SBOM]
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(listed.decode())
    assert wrong is None, wrong
    sbom = json.loads(listed)
    own = {one.sha256 for one in PLAN.resolution.wheels}
    assert own <= {one["hashes"][0]["content"] for one in sbom["components"]}
    (vllm,) = (one for one in sbom["components"] if one["name"] == "vllm")
    assert vllm["pedigree"]["patches"]

    manifest, content = found[receipt_store.IN_TOTO]
    assert manifest["annotations"][attachments.PREDICATE_TYPE] == provenance.PREDICATE
    origin = statement_of(content, key)
    row = json_format.MessageToDict(origin.pb.predicate)
    slsa = json_format.ParseDict(row, provenance_pb2.Provenance())
    assert slsa.build_definition.internal_parameters["buildKey"] == PLAN.build_key
    parts = {one.digest["sha256"] for one in slsa.build_definition.resolved_dependencies}
    assert own <= parts
    made = digest_of(listed).partition(":")[2]
    assert slsa.run_details.byproducts[0].digest["sha256"] == made


def test_a_push_that_is_repeated_attaches_nothing_more(ci: Machine, tmp_path: Path) -> None:
    pushed(ci)
    store = tmp_path / "registry"
    before = {path for path in store.rglob("*") if "_uploads" not in path.parts}
    assert before
    pushed(ci)
    assert {path for path in store.rglob("*") if "_uploads" not in path.parts} == before


def receipt_seen(of: Machine, name: str) -> Mapping[str, Any]:
    done = of.run("verify", "--receipt", name, "--json")
    assert done.code == 0, done.err
    (row,) = done.json
    return dict(row)


def test_an_image_built_in_ci_and_verified_on_a_spark_is_promoted_by_whoever_trusts_them(
    ci: Machine, tmp_path: Path
) -> None:
    digest = pushed(ci)
    spark, office = (machine(tmp_path / name, ci.registry) for name in ("spark", "office"))
    name = f"{ci.repository}:{tags.of_plan(PLAN)}"

    untrusted = office.run("verify", "--receipt", name)
    assert (untrusted.code, "[verify-receipt]" in untrusted.err) == (1, True), untrusted.err
    assert "Traceback" not in untrusted.err
    office.trusts(ci)
    seen = receipt_seen(office, name)
    assert (seen["signed_by"]["comment"], seen["receipt"]["level"]) == ("ci", "serve")
    told = office.run("verify", "--receipt", name)
    assert "level serve" in told.out
    assert "signed by ci (SHA256:" in told.out

    where = ("--repository", ci.repository)
    refused = office.run("promote", digest, "stable-gb10", *where)
    assert (refused.code, "[promote-level]" in refused.err) == (1, True), refused.err

    spark.trusts(ci)
    spark.store.save(receipt_of(digest, Level.GPU, hour=12))
    own = spark.run("promote", digest, "stable-gb10", *where, "--json")
    assert own.code == 0, own.err
    assert "level gpu" in own.json["receipt"]

    # the receipt of the Spark has travelled: it counts for those who trust the Spark
    assert receipt_seen(office, name)["receipt"]["level"] == "serve"
    office.trusts(spark)
    seen = receipt_seen(office, name)
    assert (seen["signed_by"]["comment"], seen["receipt"]["level"]) == ("spark", "gpu")
    assert office.run("promote", digest, "stable-gb10", *where).code == 0

    # without the line of the key, its signatures count no more
    lines = (office.project / receipt_store.TRUSTED).read_text().splitlines()
    (office.project / receipt_store.TRUSTED).write_text(f"{lines[0]}\n")
    assert receipt_seen(office, name)["signed_by"]["comment"] == "ci"


def test_an_attached_receipt_that_was_edited_or_forged_does_not_count(
    ci: Machine, tmp_path: Path
) -> None:
    digest = pushed(ci)
    other = machine(tmp_path / "other", ci.registry)
    forger = signer(b"forger")
    better = receipt_of(digest, Level.GPU, hour=23)
    envelope = json.loads(ci.store.path(digest).read_bytes())
    forged = json.loads(receipt_store.write(better, Trust(signer=forger)))
    contents = {
        "edited": {**envelope, "payload": forged["payload"]},
        "of a forger": forged,
        "two signatures": {**envelope, "signatures": envelope["signatures"] + forged["signatures"]},
        "unsigned": better.as_dict(),
    }
    rows = [
        attachments.of_receipt(
            receipt_store.Found(receipt=better, by=forger.key, content=json.dumps(row).encode())
        )
        for row in contents.values()
    ]
    assert attachments.attach(Registries(tmp_path), ci.repository, document_of(PLAN)[0], rows)
    other.trusts(ci)
    name = f"{ci.repository}@{digest}"
    assert receipt_seen(other, name)["receipt"]["level"] == "serve"
    assert other.run("promote", digest, "stable-gb10", "--repository", ci.repository).code == 1


def test_a_private_key_is_in_no_file_but_its_own_and_in_no_output(
    ci: Machine, tmp_path: Path
) -> None:
    path = ci.folder / "config" / "imagefactory" / "signing.key"
    secret = path.read_text().splitlines()[1]
    pushed(ci)
    shown = [ci.run("key", "list"), ci.run("key", "show"), ci.run("key", "new")]
    path.write_text(path.read_text()[:60])
    shown.append(ci.run("key", "show"))
    assert [one.code for one in shown] == [0, 0, 2, 2]
    assert not [one for one in shown if secret in one.out + one.err]
    files = [one for one in tmp_path.rglob("*") if one.is_file() and one != path]
    assert len(files) > 10
    assert not [one for one in files if secret[:40].encode() in one.read_bytes()]


def test_the_keys_that_are_trusted_are_listed_by_ssh_keygen(ci: Machine, tmp_path: Path) -> None:
    other = machine(tmp_path / "other", ci.registry)
    other.trusts(ci)
    trusted = str(other.project / receipt_store.TRUSTED)
    done = subprocess.run(["ssh-keygen", "-lf", trusted], capture_output=True, check=True)
    (key,) = ci.store.trust.keys
    assert done.stdout.decode().split()[1:3] == [key.id, "ci"]
