"""What Docker writes and what registries answer, as kinds of failures with an advice each."""

from __future__ import annotations

import pytest

from imagefactory.system.registry_failures import KINDS, OTHER, of_answer, of_status, of_text

#: What docker push of 29 wrote, and registries answered.
SAID = {
    "unauthorized: authentication required": "registry-login",
    "push access denied, repository does not exist or may require authorization: authorization "
    "failed: no basic auth credentials": "registry-login",
    "unexpected status from PUT request to http://h/v2/x/manifests/403: 401": "registry-login",
    "denied: requested access to the resource is denied": "registry-denied",
    "unexpected status from HEAD request to https://h/v2/x: 403 Forbidden": "registry-denied",
    "name unknown: The repository with name 'vllm' does not exist": "registry-missing",
    "unexpected status from HEAD request to https://h/v2/x: 404 Not Found": "registry-missing",
    "toomanyrequests: You have reached your pull rate limit": "registry-busy",
    "received unexpected HTTP status: 429 Too Many Requests": "registry-busy",
    "received unexpected HTTP status: 500 Internal Server Error": "registry-failed",
    "received unexpected HTTP status: 502 Bad Gateway": "registry-failed",
    'Head "http://127.0.0.1:9/v2/x": dial tcp 127.0.0.1:9: connect: connection refused': (
        "registry-unreachable"
    ),
    "dial tcp: lookup registry.invalid on 1.1.1.1:53: no such host": "registry-unreachable",
    "write tcp 10.0.0.1:443: write: connection reset by peer": "registry-cut",
    "failed to copy: unexpected EOF": "registry-cut",
    "net/http: TLS handshake timeout": "registry-cut",
    "tls: failed to verify certificate: x509: certificate signed by unknown authority": (
        "registry-untrusted"
    ),
    "http: server gave HTTP response to HTTPS client": "registry-plain-http",
    "tls: first record does not look like a TLS handshake": "registry-plain-http",
    "received unexpected HTTP status: 507 Insufficient Storage": "registry-full",
    "unknown: write /var/lib/registry/x: no space left on device": "registry-full",
    "unsupported: The operation is unsupported.": "registry-cannot",
    "unexpected status from PATCH request to http://h/v2/x: 413 Request Entity Too Large": (
        "registry-too-large"
    ),
}


@pytest.mark.parametrize(("said", "code"), SAID.items())
def test_what_docker_writes_is_of_one_kind(said: str, code: str) -> None:
    assert of_text(said).code == code


def test_every_kind_has_an_advice_of_its_own_and_one_status_is_of_one_kind() -> None:
    assert {kind.code for kind in KINDS} == {*SAID.values()}
    assert len({kind.fix for kind in KINDS}) == len(KINDS)
    statuses = [status for kind in KINDS for status in kind.status]
    assert len(statuses) == len({*statuses})
    assert {of_status(status).code for status in (401, 403, 404, 413, 429, 500, 507)} == {
        *("registry-login", "registry-denied", "registry-missing", "registry-too-large"),
        *("registry-busy", "registry-failed", "registry-full"),
    }


def test_a_full_registry_is_known_by_what_it_says_with_a_403() -> None:
    said = "HTTP 403, DENIED: adding 12 MiB of storage will exceed the configured quota"
    assert of_answer(403, said).code == "registry-full"
    assert of_answer(403, "HTTP 403, requested access is denied").code == "registry-denied"
    assert of_answer(405, "HTTP 405").code == "registry-cannot"


def test_only_what_passes_by_itself_is_tried_again() -> None:
    again = {"registry-busy", "registry-cut", "registry-failed"}
    assert {kind.code for kind in KINDS if kind.transient} == again
    assert not OTHER.transient


@pytest.mark.parametrize(
    "said",
    [
        "unknown: sha256:401403404413429500502503504507" + "0" * 34,
        "manifest invalid: host:5000/x-401:403",
        "",
    ],
)
def test_a_number_in_a_name_is_no_status(said: str) -> None:
    assert of_text(said) is OTHER
