"""Where wheels are, as indexes say: by hash, whatever else their pages list."""

import hashlib
import json
from pathlib import Path

import pytest
from support.json_index import serve
from support.machine import settings

from imagefactory.errors import SetupError
from imagefactory.locking import indexes
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
