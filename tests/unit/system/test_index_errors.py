"""Failures of an index: each has its own message and cure."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from imagefactory.errors import InputError
from imagefactory.settings import from_environment
from imagefactory.system import index_errors, web

URL = "https://me:secret@host.example/simple"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Failed to fetch: `x` Caused by: HTTP status client error (401 Unauthorized)", "credentials"),
        ("Failed to fetch: `x` Caused by: HTTP status client error (403 Forbidden)", "forbidden"),
        ("HTTP status client error (404 Not Found) for url (x)", "not-found"),
        ("HTTP status server error (503 Service Unavailable)", "failing"),
        ("error sending request for url: operation timed out", "timeout"),
        ("error sending request: invalid peer certificate: UnknownIssuer", "tls"),
        ("tcp connect error: Could not connect", "unreachable"),
        ("Hash mismatch for `x`", "hash"),
        ("Failed to extract archive: unexpected end of file", "cut-off"),
        ("Failed to read metadata: invalid Zip archive", "corrupt"),
    ],
)  # fmt: skip
def test_what_uv_says_of_an_index_is_recognized(text: str, code: str) -> None:
    found = index_errors.of_uv(text, text)
    assert found is not None
    assert found.code == f"index-{code}"
    assert "override" not in found.fix


def test_what_uv_says_of_requirements_is_not_blamed_on_an_index() -> None:
    text = "Because there is no version of leaf==9 and you require leaf==9, it is unsatisfiable."
    assert index_errors.of_uv(text, text) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (requests.Timeout("read timed out"), "timeout"),
        (requests.exceptions.SSLError("bad"), "tls"),
        (requests.exceptions.ChunkedEncodingError("cut"), "cut-off"),
        (requests.ConnectionError("refused"), "unreachable"),
        (requests.exceptions.InvalidJSONError("x"), "garbage"),
        (ValueError("no page"), "garbage"),
    ],
)
def test_a_failed_request_is_explained_without_its_password(error: Exception, code: str) -> None:
    found = index_errors.of_request(URL, error)
    assert found.code == f"index-{code}"
    assert "host.example" in found.what
    assert "secret" not in found.what


def test_a_refused_connection_is_told_in_the_words_of_the_system() -> None:
    with pytest.raises(requests.ConnectionError) as caught:
        requests.get("http://127.0.0.1:9/simple/torch/", timeout=5)
    what = index_errors.of_request("http://127.0.0.1:9/simple/torch/", caught.value).what
    assert what == (
        "cannot connect to 127.0.0.1:9 (http://127.0.0.1:9/simple/torch/): Connection refused"
    )


@pytest.mark.parametrize("status", [302, 401, 403, 404, 407, 500, 503])
def test_every_status_has_a_fix(status: int) -> None:
    assert index_errors.of_status(URL, status).fix


def test_time_outs_and_retries_are_bounded_and_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_HTTP_TIMEOUT", "UV_HTTP_CONNECT_TIMEOUT", "UV_HTTP_RETRIES"):
        monkeypatch.delenv(name, raising=False)
    assert (web.timeout(), web.retries()) == ((10.0, 30.0), 2)
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "7")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    assert web.uv_environment() == {
        "UV_HTTP_TIMEOUT": "7",
        "UV_HTTP_CONNECT_TIMEOUT": "10",
        "UV_HTTP_RETRIES": "0",
    }


@pytest.mark.parametrize("text", ["never", "-1", "nan", "inf", "9" * 5000])
def test_a_time_out_that_is_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("UV_HTTP_TIMEOUT", text)
    with pytest.raises(InputError, match="UV_HTTP_TIMEOUT"):
        web.timeout()


def test_a_slow_host_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(web, "_SAID", {})
    for _ in range(3):
        web._say_waiting("slow.example")
    assert capsys.readouterr().err == "waiting for slow.example ...\n"


@pytest.mark.parametrize("text", ["--help", "x", "ftp://x", "https://-x/y", "file:///etc"])
def test_an_index_of_the_environment_is_a_url(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="not the URL of an index"):
        from_environment({"HOME": str(tmp_path), "UV_DEFAULT_INDEX": text})
