"""Releases as a server answers: pages by ETag, core metadata, and never a whole wheel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version
from support.json_index import JsonIndex, serve
from support.machine import settings
from support.watched import NOW

from imagefactory.errors import SetupError
from imagefactory.settings import Settings
from imagefactory.watching.indexes_now import IndexesNow

ONE, TWO = "one-1.0-py3-none-any.whl", "one-2.0-py3-none-any.whl"
RECORD = {
    "one": {
        "1.0": {"uploaded": "2026-01-01T00:00:00Z", "wheels": [ONE], "requires": ["two>=1"]},
        "2.0": {"uploaded": "2026-11-01T00:00:00Z", "wheels": [TWO], "yanked": "bad"},
        "3.0": {"uploaded": "2026-12-01T00:00:00Z", "wheels": ["one-3.0-py3-none-any.whl"]},
        "old-style": {"uploaded": "2009-12-01T00:00:00Z", "wheels": ["one-old-py3-none-any.whl"]},
    }
}


@pytest.fixture
def served() -> Iterator[tuple[JsonIndex, str]]:
    with serve(RECORD) as found:
        yield found


@pytest.fixture
def here(tmp_path: Path, served: tuple[JsonIndex, str]) -> Settings:
    return settings(tmp_path, served[1])


def test_a_page_becomes_releases_with_dates_and_reasons(here: Settings) -> None:
    newest, oldest = IndexesNow(here, NOW).listing("one").newest_first
    assert (str(newest.version), newest.yanked) == ("2.0", "bad")
    assert (str(oldest.version), oldest.yanked) == ("1.0", None)
    assert oldest.uploaded
    assert oldest.uploaded.year == 2026


def test_an_unchanged_page_is_not_sent_again(here: Settings, served: tuple[JsonIndex, str]) -> None:
    first = IndexesNow(here, NOW).listing("one")
    assert IndexesNow(here, NOW).listing("one") == first
    assert served[0].answers == [("one", 200), ("one", 304)]
    for kept in (here.cache / "index").iterdir():
        kept.write_text(kept.read_text().replace("one-1.0", "one-9.0"))  # damaged
    assert IndexesNow(here, NOW).listing("one") == first
    served[0].record = {"one": {"1.0": RECORD["one"]["1.0"]}}
    assert len(IndexesNow(here, NOW).listing("one").releases) == 1
    assert [status for _, status in served[0].answers[2:]] == [200, 200]


def test_requirements_are_read_without_the_wheel_or_not_at_all(
    here: Settings, served: tuple[JsonIndex, str]
) -> None:
    index = IndexesNow(here, NOW)
    found = {str(one.version): one.wheels[0] for one in index.listing("one").releases}
    assert index.requires("one", found["1.0"]) == ("two>=1",)
    assert served[0].wheels == []
    with pytest.raises(SetupError, match="answers no ranged requests"):
        index.requires("one", found["2.0"])
    assert len(served[0].wheels) == 1  # asked for a range, and then given up


def test_an_index_that_is_down_is_a_problem_of_the_listing(
    here: Settings, served: tuple[JsonIndex, str]
) -> None:
    served[0].down.add("one")
    found = IndexesNow(here, NOW).listing("one")
    assert found.problem
    assert found.problem.code == "index-failing"
    assert IndexesNow(here, NOW).listing("nothing").releases == ()


def test_wheels_in_local_folders_count(tmp_path: Path, here: Settings) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "one-1.5+cpu-py3-none-any.whl").touch()
    index = IndexesNow(replace(here, find_links=(folder,)), NOW)
    assert index.listing("one").of(Version("1.5+cpu"))
