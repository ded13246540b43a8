"""Where wheels are, as indexes say: by hash, whatever else their pages list."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from support.json_index import serve
from support.machine import settings

from imagefactory.errors import SetupError
from imagefactory.locking import indexes, toolchains
from imagefactory.locking.lock import Wheel

NAME = "demo-1.0-py3-none-any.whl"
SHA = hashlib.sha256(NAME.encode()).hexdigest()
RECORD = {"demo": {"1.0": {"uploaded": "2026-01-01T00:00:00Z", "wheels": [NAME]}}}
WHEEL = Wheel(name="demo", version="1.0", filename=NAME, sha256=SHA, size=1, index="")


def test_a_relative_url_is_one_of_the_index_that_has_the_hash(tmp_path: Path) -> None:
    found = []
    with serve({}) as (_, first), serve(RECORD) as (_, second):
        indexes.urls([WHEEL], settings(tmp_path, first, second), lambda *one: found.append(one))
    assert found == [(SHA, f"{second.removesuffix('/simple')}/files/demo/1.0/{NAME}")]


@pytest.mark.parametrize(
    "page",
    [
        {"files": [{"url": "x", "filename": NAME}]},
        {"files": [{"url": 5, "filename": NAME, "hashes": {"sha256": SHA}}]},
        {"files": 5},
        [],
        {},
    ],
    ids=["no hash", "no url", "no files", "a list", "empty"],
)
def test_a_page_that_is_none_is_an_error_of_the_index(
    page: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.json_index._page", lambda *_: json.dumps(page).encode())
    with serve(RECORD) as (_, url):
        found = indexes.pages(url, ["demo"], settings(tmp_path, url))["demo"]
        assert (found.files, "demo" in found.problem) == ((), True)
        with pytest.raises(SetupError) as caught:
            indexes.urls([WHEEL], settings(tmp_path, url), print)
    (problem,) = caught.value.problems
    assert problem.code == "wheel-unreachable"


def test_a_wheel_that_no_index_has_is_gone(tmp_path: Path) -> None:
    with serve({"demo": {}}) as (_, url), pytest.raises(SetupError) as caught:
        indexes.urls([WHEEL], settings(tmp_path, url), print)
    (problem,) = caught.value.problems
    assert problem.code == "wheel-gone"
    assert problem.where == NAME


def test_an_index_without_any_package_is_at_fault_unless_a_local_wheel_is_one(
    tmp_path: Path,
) -> None:
    local = tmp_path / "wheels"
    local.mkdir()
    (local / "README").touch()
    with serve({}) as (_, url):
        using = replace(settings(tmp_path, url), find_links=(local,))
        (problem,) = indexes.faults(["demo"], using)
        assert url in problem.what
        (local / NAME).touch()
        assert indexes.faults(["demo"], using) == []


@pytest.mark.parametrize(
    ("status", "fails"), [(200, False), (404, False), (403, True), (500, True)]
)
def test_only_a_page_that_is_not_there_is_an_answer_without_one(status: int, fails: bool) -> None:
    answer = requests.Response()
    answer.status_code = status
    session = SimpleNamespace(get=lambda *_, **__: answer)
    client: Any = SimpleNamespace(accept="x", s=session)
    if not fails:
        assert indexes._get(client, "https://h.example/x") is answer
        return
    with pytest.raises(requests.HTTPError):
        indexes._get(client, "https://h.example/x")


def file(name: str, kind: str, version: str, **digests: str) -> SimpleNamespace:
    url = f"https://u:pw@h.example/{name}#sha256=x"
    return SimpleNamespace(
        filename=name, package_type=kind, version=version, digests=digests, url=url, size=5
    )


def test_the_sources_of_vllm_are_the_sdist_of_exactly_that_version_with_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [
        file("a.whl", "wheel", "1.0", sha256="a"),
        file("b.tar.gz", "sdist", "1.1", sha256="b"),
        file("c.tar.gz", "sdist", "1.0", md5="c"),
        file("d.tar.gz", "sdist", "1.0", sha256="d"),
    ]
    pages = [{"vllm": indexes.Page()}, {"vllm": indexes.Page(files=tuple(files))}]  # type: ignore[arg-type]
    monkeypatch.setattr(indexes, "pages", lambda index, *_: pages[int(index)])
    using = settings(tmp_path, "0", "1")
    found = toolchains._sdist("1.0", using, where="matrix.yaml:7")
    assert (found.name, found.version, found.filename) == ("vllm", "1.0", "d.tar.gz")
    assert (found.sha256, found.size, found.url) == ("d", 5, "https://h.example/d.tar.gz")
    with pytest.raises(SetupError) as caught:
        toolchains._sdist("2.0", using, where="matrix.yaml:7")
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("sources-unreachable", "matrix.yaml:7")
