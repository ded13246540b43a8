"""The files of locked packages: from the cache, a folder, a mirror or a snapshot; or an error."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pysequoia import Tsk
from support.debian import key, package, serve, write
from support.machine import settings

from imagefactory.errors import SetupError
from imagefactory.locking.debian import files, select
from imagefactory.locking.debian.archive import indexes
from imagefactory.locking.debian.packages import Universe
from imagefactory.locking.lock import Deb
from imagefactory.settings import Debian, Settings
from imagefactory.system import web

DAY = "2026-11-20"
POOL = Path("debian", "pool")


@pytest.fixture(scope="module")
def owner() -> Tsk:
    return key()


@pytest.fixture
def www(tmp_path: Path, owner: Tsk) -> Path:
    rows = [package(name) for name in ("apt", "ca-certificates")]
    write(tmp_path / "www", owner, *rows, package("tool", "1:2"))
    return tmp_path / "www"


@pytest.fixture
def machine(tmp_path: Path, www: Path, owner: Tsk) -> Iterator[Settings]:
    with serve(www, owner) as debian:
        yield replace(settings(tmp_path), debian=debian)


@pytest.fixture
def debs(machine: Settings) -> list[Deb]:
    universe = Universe(indexes("trixie", ["arm64"], machine.debian)["arm64"])
    return [one.deb for one in select.base(universe, ["tool"], where="trixie")]


def without_network(machine: Settings, *folders: Path) -> Settings:
    gone = "http://127.0.0.1:9"
    mirrors = (("debian", f"{gone}/debian"), ("debian-security", f"{gone}/debian-security"))
    return replace(machine, debian=Debian(mirrors=mirrors, snapshot=gone, folders=folders))


def contents(paths: list[Path]) -> list[str]:
    return [path.read_text() for path in paths]


def test_files_are_downloaded_in_the_order_of_the_packages_and_kept(
    machine: Settings, debs: list[Deb]
) -> None:
    paths = files.fetch(debs, DAY, machine)
    assert contents(paths) == ["apt 1", "ca-certificates 1", "tool 1:2"]
    assert files.fetch(debs, DAY, without_network(machine)) == paths


@pytest.mark.parametrize("time", ["120000"])
def test_a_package_that_the_archive_dropped_comes_from_a_snapshot_of_its_day(
    machine: Settings, debs: list[Deb], www: Path, time: str
) -> None:
    (www / "snapshot" / "debian").mkdir(parents=True)
    dated = www / "snapshot" / "debian" / f"20261120T{time}Z"
    shutil.copytree(www / POOL, dated / "pool")
    shutil.rmtree(www / POOL)
    assert files.missing([(deb, DAY) for deb in debs], machine) == []
    assert contents(files.fetch(debs, DAY, machine))[2] == "tool 1:2"
    assert [p.code for p in files.missing([(debs[0], "2026-11-19")], machine)] == ["debian-gone"]


def test_snapshots_are_asked_after_the_mirror_the_last_state_of_the_day_first(
    debs: list[Deb], machine: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(web, "is_up", lambda _: True)

    def answers(url: str, _: object) -> bool:
        asked.append(url)
        return False

    monkeypatch.setattr(web, "answers", answers)
    noble = replace(debs[0], archive="ubuntu", path="pool/apt.deb")
    assert files.missing([(noble, DAY)], replace(machine, debian=Debian())) != []
    times = ("235959", "000000", "180000", "120000", "060000")
    assert asked == [
        "http://archive.ubuntu.com/ubuntu/pool/apt.deb",
        *(f"https://snapshot.ubuntu.com/ubuntu/20261120T{t}Z/pool/apt.deb" for t in times),
    ]


@pytest.mark.parametrize("name", ["tool_2_all.deb", "tool_1%3a2_all.deb"])
def test_a_local_folder_has_precedence_and_is_searched_by_both_names(
    machine: Settings, debs: list[Deb], tmp_path: Path, name: str
) -> None:
    (tmp_path / "debs").mkdir()
    (tmp_path / "debs" / name).write_text("tool 1:2")
    alone = without_network(machine, tmp_path / "debs")
    assert contents(files.fetch([debs[2]], DAY, alone)) == ["tool 1:2"]
    assert files.missing([(debs[2], DAY)], alone) == []


def test_a_file_with_another_hash_is_used_from_nowhere(
    machine: Settings, debs: list[Deb], www: Path, tmp_path: Path
) -> None:
    (tmp_path / "debs").mkdir()
    (tmp_path / "debs" / debs[2].filename).write_text("changed")
    for path in (www / POOL).rglob("tool*.deb"):
        path.write_text("changed")
    where = replace(machine.debian, folders=(tmp_path / "debs",))
    with pytest.raises(SetupError) as caught:
        files.fetch(debs, DAY, replace(machine, debian=where))
    assert [problem.where for problem in caught.value.problems] == ["tool 1:2"]
    left = [path for path in (machine.cache / "debs").rglob("*") if path.is_file()]
    assert sorted(path.read_text() for path in left) == ["apt 1", "ca-certificates 1"]


def test_a_package_that_is_gone_is_reported_with_what_was_searched_and_what_to_do(
    machine: Settings, debs: list[Deb]
) -> None:
    alone = without_network(machine, Path("/nowhere"))
    with pytest.raises(SetupError) as caught:
        files.fetch(debs, DAY, alone)
    assert len(caught.value.problems) == 3
    problem = caught.value.problems[2]
    assert problem.code == "debian-gone"
    assert problem.where == "tool 1:2"
    assert "/nowhere, http://127.0.0.1:9/debian (no answer)" in problem.what
    assert "imagefactory lock --upgrade-base" in problem.fix
    assert "IMAGEFACTORY_DEBS" in problem.fix
    assert files.missing([(deb, DAY) for deb in debs], alone) == list(caught.value.problems)
