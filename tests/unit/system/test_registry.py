"""What registries are asked, with whose credentials, and what becomes of their answers."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from support.registries import LAYERS, ask, basic, login, refused, server
from support.registry import FakeRegistry, digest_of

from imagefactory.errors import InputError
from imagefactory.system import registry, registry_names, registry_writes
from imagefactory.system.manifests import Descriptor
from imagefactory.system.registry import Answer, Registries
from imagefactory.system.registry_names import Name
from imagefactory.system.registry_writes import Attachment

__all__ = ["ask", "server"]
DIGEST = "sha256:" + "2" * 64


@pytest.mark.parametrize(
    ("reference", "url", "wanted"),
    [
        ("debian", "https://registry-1.docker.io/v2/library/debian", "latest"),
        ("debian:slim", "https://registry-1.docker.io/v2/library/debian", "slim"),
        ("docker.io/me/x:1", "https://registry-1.docker.io/v2/me/x", "1"),
        ("me/x", "https://registry-1.docker.io/v2/me/x", "latest"),
        ("ghcr.io/me/x:1", "https://ghcr.io/v2/me/x", "1"),
        (f"ghcr.io/me/x:1@{DIGEST}", "https://ghcr.io/v2/me/x", DIGEST),
        ("localhost/x", "http://localhost/v2/x", "latest"),
        ("127.0.0.1:5000/a/b/x:1", "http://127.0.0.1:5000/v2/a/b/x", "1"),
        (f"127.9.9.9/x@{DIGEST}", "http://127.9.9.9/v2/x", DIGEST),
        ("[::1]:5000/x", "http://[::1]:5000/v2/x", "latest"),
        ("10.0.0.1:5000/x", "https://10.0.0.1:5000/v2/x", "latest"),
    ],
)
def test_a_reference_is_read_as_docker_reads_it(reference: str, url: str, wanted: str) -> None:
    found: Name = registry_names.parse(reference)
    assert (found.url, found.wanted) == (url, wanted)


@pytest.mark.parametrize("reference", ["", ":1", f"@{DIGEST}", "ghcr.io/:1"])
def test_a_reference_without_a_repository_is_refused(reference: str) -> None:
    with pytest.raises(InputError) as caught:
        registry_names.parse(reference)
    assert caught.value.problems[0].code == "reference-wrong"


def test_a_manifest_is_known_by_the_hash_of_what_came(
    server: FakeRegistry, ask: Registries
) -> None:
    digest = server.put("me/x", "1", LAYERS)
    found = ask.manifest(f"{server.address}/me/x:1")
    assert found is not None
    assert found.digest == digest
    assert found.media_type == "application/vnd.oci.image.manifest.v1+json"
    assert found.size == len(server.manifests["me/x", "1"])
    assert [layer.digest for layer in found.layers] == ["sha256:1", "sha256:2"]
    assert found.config is not None
    assert (found.config.digest, found.config.size) == ("sha256:config-1", 10)
    assert ask.manifest(f"{server.address}/me/x@{digest}") == found


def test_other_bytes_than_the_digest_says_are_refused(
    server: FakeRegistry, ask: Registries
) -> None:
    digest = server.put("me/x", "1", LAYERS)
    server.manifests["me/x", digest] = b'{"mediaType": "x"}'
    code, what = refused(lambda: ask.manifest(f"{server.address}/me/x@{digest}"))
    assert code == "registry-failed"
    assert digest_of(b'{"mediaType": "x"}') in what


def test_the_blobs_of_an_index_are_those_of_all_its_images(
    server: FakeRegistry, ask: Registries
) -> None:
    arm = server.put("me/x", "arm", {"sha256:1": 100, "sha256:arm": 1})
    amd = server.put("me/x", "amd", {"sha256:1": 100, "sha256:amd": 2})
    rows = [
        {"digest": digest, "size": 9, "platform": {"os": "linux", "architecture": arch}}
        for digest, arch in ((arm, "arm64"), (amd, "amd64"))
    ]
    server.put_manifest("me/x", "both", {"manifests": rows})
    found = ask.manifest(f"{server.address}/me/x:both")
    assert found is not None
    assert [part.platform for part in found.manifests] == ["linux/arm64", "linux/amd64"]
    assert ask.blobs(f"{server.address}/me/x:both") == {
        "sha256:1": 100,
        "sha256:arm": 1,
        "sha256:amd": 2,
        "sha256:config-arm": 10,
        "sha256:config-amd": 10,
    }


def test_what_does_not_exist_is_no_error(server: FakeRegistry, ask: Registries) -> None:
    repository = f"{server.address}/me/x"
    assert ask.manifest(f"{repository}:1") is None
    assert ask.blobs(f"{repository}:1") == {}
    assert ask.tags(repository) == ()
    assert ask.referrers(repository, "sha256:1") == ()
    assert not ask.has_blob(repository, "sha256:1")


def test_a_blob_is_there_wherever_the_registry_keeps_it(
    server: FakeRegistry, ask: Registries
) -> None:
    server.put("me/x", "1", LAYERS)
    assert ask.has_blob(f"{server.address}/me/x", "sha256:1")
    assert server.asked == ["HEAD /v2/me/x/blobs/sha256:1"]


def test_tags_are_read_page_by_page(server: FakeRegistry, ask: Registries) -> None:
    tags = tuple(f"v{number}" for number in range(7))
    for tag in tags:
        server.put("me/x", tag, LAYERS)
    server.page = 3
    assert ask.tags(f"{server.address}/me/x") == tags
    assert len(server.asked) == 3


@pytest.mark.parametrize("has_referrers", [True, False])
def test_what_is_attached_to_a_manifest_is_found_with_and_without_the_referrers_api(
    server: FakeRegistry, ask: Registries, has_referrers: bool
) -> None:
    row = {
        "digest": "sha256:sbom",
        "size": 5,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "application/spdx+json",
        "annotations": {"made": "today"},
    }
    server.has_referrers = has_referrers
    if has_referrers:
        server.referrers["me/x", "sha256:1"] = json.dumps({"manifests": [row]}).encode()
    else:
        server.put_manifest("me/x", "sha256-1", {"manifests": [row]})
    assert ask.referrers(f"{server.address}/me/x", "sha256:1") == (
        Descriptor(
            digest="sha256:sbom",
            media_type="application/vnd.oci.image.manifest.v1+json",
            size=5,
            artifact_type="application/spdx+json",
            annotations={"made": "today"},
        ),
    )


def test_a_registry_that_is_away_for_a_moment_is_asked_again(
    server: FakeRegistry, ask: Registries
) -> None:
    server.put("me/x", "1", LAYERS)
    server.broken = 2
    assert ask.manifest(f"{server.address}/me/x:1")
    server.broken = 9
    code, what = refused(lambda: ask.manifest(f"{server.address}/me/x:1"))
    assert (code, what) == ("registry-failed", f"{server.address}: HTTP 503")


def test_a_registry_that_does_not_answer_is_the_machines_fault(ask: Registries) -> None:
    code, what = refused(lambda: ask.manifest("127.0.0.1:9/me/x:1"))
    assert code == "registry-unreachable"
    assert what.startswith("127.0.0.1:9: Failed to establish a new connection")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"layers": [{}]}',
        b'{"config": "x"}',
        b'{"layers": 5}',
        b'{"layers": [{"digest": "x", "size": 1e999}]}',
        b"[" * 100_000,
        b'{"config": {"digest": "x", "size": -1}}',
    ],
)
def test_nonsense_is_an_error_of_the_registrys(
    server: FakeRegistry, ask: Registries, body: bytes
) -> None:
    server.manifests["me/x", "1"] = body
    code, _ = refused(lambda: ask.manifest(f"{server.address}/me/x:1"))
    assert code == "registry-failed"


def test_the_bundle_that_docker_trusts_is_trusted(
    ask: Registries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))

    def trusted() -> object:
        session = ask._session("ghcr.io")
        return session.merge_environment_settings("https://ghcr.io", {}, False, None, None)[
            "verify"
        ]

    assert trusted() == str(tmp_path / "ca.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/own.pem")
    assert trusted() == "/own.pem"


@pytest.mark.parametrize(
    "tags", [b'{"tags": 5}', b'{"tags": ["a b"]}', b'{"tags": ["--help"]}', b'{"tags": [1]}']
)
def test_a_list_of_what_are_no_tags_is_an_error_of_the_registrys(
    ask: Registries, monkeypatch: pytest.MonkeyPatch, tags: bytes
) -> None:
    answer = Answer(status=200, headers={}, content=tags)
    monkeypatch.setattr(ask, "_send", lambda *_, **__: answer)
    assert refused(lambda: ask.tags("127.0.0.1:1/me/x"))[0] == "registry-failed"


def test_a_list_without_an_end_is_an_error_of_the_registrys(
    ask: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = iter(range(10**6))

    def send(*_: object, **__: object) -> Answer:
        link = f"/v2/me/x/tags/list?last={next(pages)}"
        return Answer(status=200, headers={}, content=b'{"tags": ["a"]}', following=link)

    monkeypatch.setattr(ask, "_send", send)
    code, what = refused(lambda: ask.tags("127.0.0.1:1/me/x"))
    assert (code, "no end" in what) == ("registry-failed", True)
    assert next(pages) == registry.MOST_PAGES


def test_a_link_that_is_no_address_is_an_error_of_the_registrys(
    ask: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Answer(status=200, headers={}, content=b"{}", following="http://[")
    monkeypatch.setattr(ask, "_send", lambda *_, **__: answer)
    assert refused(lambda: ask.tags("127.0.0.1:1/me/x"))[0] == "registry-failed"


def test_an_answer_that_is_too_long_or_too_slow_is_not_waited_for(
    server: FakeRegistry, ask: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("me/x", "1", LAYERS)
    monkeypatch.setattr(registry, "MOST_BYTES", 10)
    assert "longer than 10 bytes" in refused(lambda: ask.manifest(f"{server.address}/me/x:1"))[1]
    monkeypatch.setattr(registry, "MOST_BYTES", 10**6)
    monkeypatch.setattr(registry, "DEADLINE", 0.01)
    ended, read = threading.Event(), registry._read
    monkeypatch.setattr(registry, "_read", lambda *args: ended.wait(30) and read(*args))
    assert refused(lambda: ask.manifest(f"{server.address}/me/x:1"))[0] == "registry-cut"
    ended.set()


def test_a_password_is_not_sent_without_encryption(
    ask: Registries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login(tmp_path, auths={"ghcr.io": {"auth": basic("me:secret")}})
    challenge = {"WWW-Authenticate": 'Bearer realm="http://ghcr.io/token"'}
    answer = Answer(status=401, headers=challenge, content=b"")
    monkeypatch.setattr(ask, "_send", lambda *_, **__: answer)
    code, what = refused(lambda: ask.manifest("ghcr.io/me/x:1"))
    assert (code, "without encryption" in what) == ("registry-failed", True)


def test_what_is_written_is_authorized_and_tried_again(
    server: FakeRegistry, ask: Registries, tmp_path: Path
) -> None:
    server.user, server.broken = "me:secret", 1
    login(tmp_path, auths={server.address: {"auth": basic("me:secret")}})
    repository = f"{server.address}/me/x"
    digest = registry_writes.put_blob(ask, repository, b"content")
    assert server.contents["me/x", digest] == b"content"
    asked = len(server.asked)
    assert registry_writes.put_blob(ask, repository, b"content") == digest
    assert server.asked[asked:] == [f"HEAD /v2/me/x/blobs/{digest}"], "it is sent once"
    made = registry_writes.document({"layers": []}, registry_writes.IMAGE)
    server.broken = 2
    registry_writes.put_manifest(ask, f"{repository}:1", made)
    assert server.manifests["me/x", "1"] == made.content
    assert registry_writes.delete(ask, repository, made.digest)
    assert not registry_writes.delete(ask, repository, made.digest)
    server.deletes = False
    assert refused(lambda: registry_writes.delete(ask, repository, made.digest))[0] == (
        "registry-cannot"
    )


def test_what_is_attached_later_is_listed_beside_what_was_before(
    server: FakeRegistry, ask: Registries
) -> None:
    server.has_referrers = False
    repository = f"{server.address}/me/x"
    server.put("me/x", "1", LAYERS)
    subject = ask.document(f"{repository}:1")
    assert subject is not None
    one, two, three = (
        Attachment(kind="application/x", media_type="a/b", content=text, annotations={"a": "b"})
        for text in (b"one", b"two", b"three")
    )
    for rows in ([one], [two, one], [one, three]):
        registry_writes.attach(ask, repository, subject, rows)
    found = ask.referrers(repository, subject.digest)
    assert [(one.artifact_type, one.annotations) for one in found] == [
        ("application/x", {"a": "b"})
    ] * 3


@pytest.mark.parametrize(
    ("status", "said", "code"),
    [
        (401, "", "registry-login"),
        (403, "", "registry-denied"),
        (403, "quota exceeded", "registry-full"),
        (404, "", "registry-missing"),
        (405, "", "registry-cannot"),
        (413, "", "registry-too-large"),
        (418, "", "registry-failed"),
        (429, "", "registry-busy"),
        (503, "", "registry-failed"),
        (507, "", "registry-full"),
    ],
)
def test_every_answer_to_a_write_has_its_own_advice(
    ask: Registries, monkeypatch: pytest.MonkeyPatch, status: int, said: str, code: str
) -> None:
    content = json.dumps({"errors": [{"message": said}]}).encode()
    answer = Answer(status=status, headers={}, content=content)
    monkeypatch.setattr(ask, "_send", lambda *_, **__: answer)
    made = registry_writes.document({}, registry_writes.IMAGE)
    found, what = refused(lambda: registry_writes.put_manifest(ask, "127.0.0.1:9/me/x:1", made))
    assert (found, str(status) in what) == (code, True)
