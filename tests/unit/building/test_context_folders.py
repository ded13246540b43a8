"""Folders of build contexts: two checkouts build at the same time, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

from support.machine import settings

from imagefactory.building import context_folders


def test_two_checkouts_of_one_name_have_a_folder_each(tmp_path: Path) -> None:
    found = settings(tmp_path)
    first, second = (context_folders.of(tmp_path / name / "spark", found) for name in "ab")
    assert first != second
    assert first.name.startswith("spark-")
    assert first == context_folders.of(tmp_path / "a" / "spark", found)


def test_a_folder_is_an_orphan_when_its_project_is_gone_or_unknown(tmp_path: Path) -> None:
    found, project = settings(tmp_path), tmp_path / "spark"
    project.mkdir()
    mine = context_folders.claim(project, found)
    unknown = context_folders.root(found) / "gb10-of-an-earlier-version"
    unknown.mkdir()
    assert list(context_folders.orphans(found)) == [unknown]
    project.rmdir()
    assert list(context_folders.orphans(found)) == sorted([mine, unknown])


def test_without_any_context_there_is_no_orphan(tmp_path: Path) -> None:
    assert list(context_folders.orphans(settings(tmp_path))) == []
