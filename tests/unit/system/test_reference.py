"""Image references, by the grammar that Docker uses."""

from __future__ import annotations

import pytest

from imagefactory.errors import InputError
from imagefactory.system import reference
from imagefactory.system.reference import Reference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("debian", Reference(host="docker.io", path="debian")),
        ("me/x:1", Reference(host="docker.io", path="me/x", tag="1")),
        ("Me/x", Reference(host="Me", path="x")),
        ("localhost/x", Reference(host="localhost", path="x")),
        ("[::1]:5000/x", Reference(host="[::1]:5000", path="x")),
        ("h:65535/a/b__c/d-e", Reference(host="h:65535", path="a/b__c/d-e")),
        (
            f"ghcr.io/me/x:1@{DIGEST}",
            Reference(host="ghcr.io", path="me/x", tag="1", digest=DIGEST),
        ),
    ],
)
def test_a_reference_has_the_parts_that_docker_sees(text: str, found: Reference) -> None:
    assert reference.parse(text) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (":1", "no repository path"),
        ("a b", "white space"),
        ("ghcr.io/me/x\n", "white space"),
        ("ghcr.io/Me/x", "uppercase"),
        ("https://ghcr.io/me/x", "no scheme"),
        ("docker://me/x", "no scheme"),
        ("host:0/x", "port 0"),
        ("host:65536/x", "port 65536"),
        ("host:port/x", "malformed host"),
        ("-host.io/x", "malformed host"),
        ("a//b", "malformed repository path"),
        ("../x", "malformed host"),
        ("--help", "malformed repository path"),
        ("x/y:-z", "the tag"),
        ("x/y:" + "z" * 129, "the tag"),
        ("x/y@sha256:abc", "malformed digest"),
        ("x/y@" + DIGEST.upper(), "malformed digest"),
        ("a/" + "x" * 256, "longer than 255"),
        ("bücher/x", "malformed repository path"),
    ],
)
def test_what_is_no_reference_is_refused_with_a_reason_and_a_fix(text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        reference.parse(text)
    (problem,) = caught.value.problems
    assert problem.code == "reference-wrong"
    assert reason in problem.what
    assert problem.fix
    assert len(problem.what) < 200


@pytest.mark.parametrize(
    "text",
    [
        "u:s3cret@host/x",
        "u:s3@s3cret@host/x",
        "https://u:s3cret@ghcr.io/me/x",
        "u:s3cret/x@host",
        "u:s3cret@sha256:abc",
        "u:s3cret/x@sha256:abc",
        f"u:s3cret@host/x@{DIGEST}",
        "s3cret@host:5000/x:1",
    ],
)
def test_an_error_has_no_password_in_it(text: str) -> None:
    with pytest.raises(InputError) as caught:
        reference.parse(text)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize("name", ["ghcr.io/me/x", "localhost:5000/x:1", "me/x"])
def test_the_image_of_a_malformed_digest_is_named(name: str) -> None:
    with pytest.raises(InputError, match="has a malformed digest") as caught:
        reference.parse(f"{name}@sha256:abc")
    assert f"'{name}@sha256:abc'" in str(caught.value)


@pytest.mark.parametrize("text", ["ghcr.io/me/x", "x", "127.0.0.1:5000/team/x"])
def test_a_repository_is_a_reference_without_tag_and_digest(text: str) -> None:
    assert reference.repository(text) == text
    for more in (":1", f"@{DIGEST}", f":1@{DIGEST}"):
        with pytest.raises(InputError) as caught:
            reference.repository(text + more)
        assert caught.value.problems[0].fix == f"write {text}"
