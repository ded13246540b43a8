"""promote, rollback, history and prune as processes: a real registry with TLS and an account, and
kills at every write.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, promoting
from support.e2e import Completed, factory
from support.machine import settings
from support.plans import planned
from support.promoting import PATH, at, labels
from support.receipts import all_passed
from support.registry import FakeRegistry, fake_registry

from imagefactory.publishing import attachments, moving, publishing, tags
from imagefactory.publishing.moving import Repository
from imagefactory.settings import from_environment
from imagefactory.system import registry_writes
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.system.registry import Registries
from imagefactory.system.signing import NOBODY
from imagefactory.verifying import check_registry, receipt_store
from imagefactory.verifying.receipt_store import ReceiptStore

pytestmark = pytest.mark.e2e
PASSWORD = "planted-s3cret"
#: bcrypt, the one hash that the registry takes.
HTPASSWD = "robot:$2b$05$abcdefghijklmnopqrstuuZ40m/8A.T./7lx2iYRZrg6CtYk5pJJq\n"
OLD, MIDDLE, NEW = (labels(f"{n}" * 8, day=f"2026-11-0{n}") for n in (1, 2, 3))
CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: "{store}"}}, delete: {{enabled: {deletes}}}}}
auth: {{htpasswd: {{realm: test, path: "{folder}/htpasswd"}}}}
http: {{addr: "127.0.0.1:{port}", tls: {{certificate: "{folder}/cert.pem", key: "{folder}/key.pem"}}}}
"""


def put_image(registries: Registries, repository: str, own: Mapping[str, str]) -> str:
    """Store a small image with its receipt attached; its digest."""
    config = json.dumps(
        {"os": "linux", "architecture": "arm64", "config": {"Labels": dict(own)}}
    ).encode()
    layer = own["io.imagefactory.build-key"].encode()
    rows = []
    for content, kind in ((config, "config.v1+json"), (layer, "layer.v1.tar")):
        digest = registry_writes.put_blob(registries, repository, content)
        media_type = f"application/vnd.oci.image.{kind}"
        rows.append({"digest": digest, "size": len(content), "mediaType": media_type})
    manifest = {"schemaVersion": 2, "mediaType": registry_writes.IMAGE}
    made = registry_writes.document(
        {**manifest, "config": rows[0], "layers": rows[1:]}, registry_writes.IMAGE
    )
    registry_writes.put_manifest(registries, f"{repository}:{tags.of_labels(own)}", made)
    found = receipt_store.read(
        receipt_store.write(all_passed(made.digest, own), NOBODY), NOBODY, made.digest
    )
    assert isinstance(found, receipt_store.Found)
    row = attachments.of_receipt(found)
    assert attachments.attach(registries, repository, made, [row])
    return made.digest


@dataclass
class Secure:
    """A real registry with TLS and an account.

    Attributes:
        address: host and port.
        folder: has its certificate, ``cert.pem``, and Docker's configuration with the account.
        log: what it wrote.
    """

    address: str
    folder: Path
    log: Path

    @property
    def repository(self) -> str:
        return f"{self.address}/{PATH}"

    @property
    def environment(self) -> dict[str, str]:
        own = str(self.folder)
        return {
            "SSL_CERT_FILE": f"{own}/cert.pem",
            "DOCKER_CONFIG": own,
            "XDG_STATE_HOME": f"{own}/state",
            "IMAGEFACTORY_ENGINE_DIR": own,
            "DOCKER_HOST": f"unix://{own}/none.sock",
        }

    def run(self, *argv: str, **environ: str) -> Completed:
        repository = ("--repository", self.repository)
        return factory(*argv, *repository, environ={**self.environment, **environ})

    def json(self, *argv: str) -> Any:
        done = self.run(*argv, "--json")
        assert done.code == 0, done.err
        return done.json


@pytest.fixture(params=["true", "false"])
def secure(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Secure]:
    """``request.param`` is whether it lets manifests be removed."""
    request.getfixturevalue("registry")  # which installs the program
    name = socket.gethostname()  # on loopback by address, a registry would be asked over http
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    key = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(tmp_path / "key.pem")]
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    out = ["-out", str(tmp_path / "cert.pem")]
    subprocess.run(
        ["openssl", "req", "-x509", "-days", "2", *key, *subject, *out],
        check=True,
        capture_output=True,
    )
    config = tmp_path / "registry.yml"
    config.write_text(
        CONFIG.format(store=tmp_path / "store", deletes=request.param, folder=tmp_path, port=port)
    )
    login(tmp_path, f"{name}:{port}", PASSWORD)
    home = os.environ.get("IMAGEFACTORY_ENGINE_DIR")
    engine = Path(home) if home else from_environment(os.environ).state / "engine"
    program = engine / "prefix" / "usr" / "bin" / "docker-registry"
    log = tmp_path / "registry.log"
    with log.open("wb") as out_file:
        server = subprocess.Popen(
            [program, "serve", str(config)], stdout=out_file, stderr=subprocess.STDOUT
        )
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NO_PROXY", name)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield Secure(address=f"{name}:{port}", folder=tmp_path, log=log)
    finally:
        server.terminate()
        server.wait()


def login(folder: Path, address: str, password: str) -> None:
    basic = base64.b64encode(f"robot:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {address: {"auth": basic}}}))


def test_tags_move_in_a_real_registry_with_tls_and_an_account(secure: Secure) -> None:
    registries = Registries(secure.folder)
    old, middle, new = (put_image(registries, secure.repository, own) for own in (OLD, MIDDLE, NEW))
    blobs = {path: path.stat().st_size for path in (secure.folder / "store").rglob("data")}

    first = secure.json("promote", str(tags.of_labels(OLD)), "nightly")
    assert (first["digest"], first["before"]) == (old, "")
    assert secure.json("promote", new, "nightly")["before"] == old
    assert secure.json("promote", f"{secure.repository}@{new}", "latest-gb10")["digest"] == new
    assert secure.json("rollback", "nightly")["digest"] == old
    (current, *past) = secure.json("history", "nightly")
    assert (current["digest"], current["action"]) == (old, "rollback")
    assert [row["digest"] for row in past] == [new, old]
    found = registries.manifest(f"{secure.repository}:nightly")
    assert found is not None
    assert found.digest == old
    assert {p for p in (secure.folder / "store").rglob("data") if p not in blobs} == set(), (
        "no blob was sent"
    )
    stable = secure.run("promote", new, "stable-gb10")
    assert (stable.code, "[promote-level]" in stable.err) == (1, True)

    planned = secure.run("prune", "--registry", "--keep", "1", "--dry-run")
    assert planned.code == 0
    assert middle[:19] in planned.out.partition("kept")[0]
    pruned = secure.run("prune", "--registry", "--keep", "1", "--yes")
    left = set(registries.tags(secure.repository))
    if "enabled: false" in (secure.folder / "registry.yml").read_text():
        assert (pruned.code, "[registry-cannot]" in pruned.err) == (3, True)
        assert str(tags.of_labels(MIDDLE)) in left
    else:
        assert pruned.code == 0, pruned.err
        assert registries.manifest(f"{secure.repository}@{middle}") is None
        assert registries.referrers(secure.repository, middle) == ()
        assert {"nightly", "latest-gb10", str(tags.of_labels(OLD))} <= left
        assert str(tags.of_labels(MIDDLE)) not in left
        assert secure.json("prune", "--registry", "--keep", "1", "--dry-run")["items"] == []
    assert [row["digest"] for row in secure.json("history", "nightly")] == [old, new, old]
    assert secure.json("rollback", "nightly", "--to", new[:20])["digest"] == new

    untrusted = secure.run("history", "nightly", SSL_CERT_FILE="/etc/ssl/certs/ca-certificates.crt")
    assert (untrusted.code, "[registry-untrusted]" in untrusted.err) == (3, True)
    login(secure.folder, secure.address, "wrong-s3cret")
    denied = secure.run("promote", old, "nightly")
    assert (denied.code, "[registry-login]" in denied.err) == (3, True)
    texts = [denied.err, untrusted.err, secure.log.read_text()]
    texts += [path.read_text(errors="replace") for path in (secure.folder / "state").rglob("*.*")]
    assert not [text for text in texts if PASSWORD in text or "wrong-s3cret" in text]


def test_an_immutable_tag_is_pushed_once_and_is_never_another_image(
    engine: Engine, registry: str, tmp_path: Path
) -> None:
    plan, repository = planned(), f"{registry}/{PATH}"

    def built(content: str) -> ImageInfo:
        texts = {name: text for name, text in plan.labels.items() if '"' not in text}
        labels = " ".join(f'{name}="{text}"' for name, text in texts.items())
        (tmp_path / "image").mkdir(exist_ok=True)
        (tmp_path / "image" / "file").write_text(content)
        dockerfile = f"FROM scratch\nCOPY file /\nLABEL {labels}\n"
        (tmp_path / "image" / "Dockerfile").write_text(dockerfile)
        engine.build(tmp_path / "image", tag=f"imagefactory/test:{content}")
        return engine.inspect_image(f"imagefactory/test:{content}")

    one, other = built("one"), built("other")
    store = ReceiptStore(folder=tmp_path / "receipts")
    store.save(all_passed(one.digest, plan.labels))
    rest = store, settings(tmp_path)
    for _ in range(2):
        done = publishing.push(engine, [(plan, one)], repository, *rest)
        assert done.error is None
        assert {row.digest for row in done.pushed} == {one.digest}
    attached = engine.registries.referrers(repository, one.digest)
    assert [row.artifact_type for row in attached] == [attachments.RECEIPTS[0], attachments.SBOM]
    assert engine.names(repository) == [], "the engine has no more names than before"
    refused = publishing.push(engine, [(plan, other)], repository, *rest).error
    assert refused is not None
    assert refused.problems[0].code == "push-immutable"


def child(registry: FakeRegistry, state: Path, *argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "imagefactory", *argv, "--repository", f"{registry.address}/{PATH}"],
        cwd=ROOT,
        env={
            **os.environ,
            "XDG_STATE_HOME": str(state),
            "IMAGEFACTORY_ENGINE_DIR": str(state),
            "DOCKER_HOST": f"unix://{state}/none.sock",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run_killed(registry: FakeRegistry, state: Path, point: int | None, *argv: str) -> int:
    """Run a command and kill it at a write, before (even) or after (odd) it has been done.

    Returns the number of such points that it came by.
    """
    passed = 0
    running: subprocess.Popen[bytes]

    def on_write(_: str, __: bool) -> None:
        nonlocal passed
        if passed == point:
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
        passed += 1

    registry.on_write = on_write
    running = child(registry, state, *argv)
    out, _ = running.communicate()
    registry.on_write = lambda *_: None
    assert running.returncode == (0 if point is None else -signal.SIGKILL), out.decode()
    return passed


def prepared(registry: FakeRegistry, state: Path) -> tuple[str, str]:
    """Two verified images, of which the tag names the old one; receipts are on this machine."""
    digests = []
    for own in (OLD, NEW):
        digest = registry.put(PATH, str(tags.of_labels(own)), {"sha256:base": 1}, labels=own)
        ReceiptStore(folder=state / "imagefactory" / "receipts").save(all_passed(digest, own))
        digests.append(digest)
    moving.promote(repository(registry, state), digests[0], "nightly", at(0))
    return digests[0], digests[1]


def repository(registry: FakeRegistry, state: Path) -> Repository:
    """As the command line sees it."""
    own = promoting.repository(registry, state)
    folder = state / "imagefactory"
    return replace(
        own,
        receipts=ReceiptStore(folder=folder / "receipts"),
        state=folder,
        needed=check_registry.requirements,
    )


def end_state(registry: FakeRegistry, state: Path) -> list[tuple[str, str]]:
    """All names with their digests, times left out, and the lines of the ledger."""
    names = registry.tags(PATH)
    (ledger,) = (state / "imagefactory" / "history").glob("*.jsonl")
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    return sorted(
        [
            (f"{r.tag} was" if (r := tags.parse_record(name)) else name, names[name])
            for name in names
        ]
        + [(row["action"], row["digest"]) for row in rows]
    )


# a rollback finds the receipt attached: the record and the tag are all that it writes
@pytest.mark.parametrize(("action", "writes"), [("promote", 5), ("rollback", 2)])
def test_a_process_that_is_killed_at_any_write_leaves_verified_tags_and_is_finished_by_the_next(
    action: str, writes: int, tmp_path: Path
) -> None:
    undisturbed: list[tuple[str, str]] = []
    points = 0
    for point in [None, *range(2 * writes)]:
        state = tmp_path / str(point)
        with fake_registry() as registry:
            old, new = prepared(registry, state)
            if action == "rollback":
                moving.promote(repository(registry, state), new, "nightly", at(1))
            argv = ("promote", new, "nightly") if action == "promote" else ("rollback", "nightly")
            if action == "rollback":
                argv = (*argv, "--to", old)
            came_by = run_killed(registry, state, point, *argv)
            assert {*registry.tags(PATH).values()} <= {old, new}
            if point is None:
                points, undisturbed = came_by, end_state(registry, state)
                continue
            run_killed(registry, state, None, *argv)
            assert end_state(registry, state) == undisturbed, f"killed at {point}"
    assert points == 2 * writes, "every point was tried"


def test_two_processes_that_move_a_tag_at_once_leave_one_history(tmp_path: Path) -> None:
    with fake_registry() as registry:
        old, new = prepared(registry, tmp_path)
        both = [child(registry, tmp_path, "promote", d, "nightly") for d in (new, old, new)]
        for one in both:
            out, _ = one.communicate()
            assert one.returncode == 0, out.decode()
        names = registry.tags(PATH)
        records = tags.records("nightly", [*names])
        assert records[-1].is_of(names["nightly"])
        assert all(record.is_of(names[str(record)]) for record in records)
        path = next((tmp_path / "imagefactory" / "history").glob("*.jsonl"))
        rows = [json.loads(line)["record"] for line in path.read_text().splitlines()]
        assert rows == [str(record) for record in records]
