"""The uv that unpacks wheels in builds: a locked wheel, whatever uv this machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import uv
from support import ROOT
from support.index import serve, unpacker, wheel, write_pages
from support.machine import DOWN, settings
from support.plans import base_image, inputs_with, planned

from imagefactory.building.contexts import Contexts
from imagefactory.errors import CheckFailedError, FactoryError, InputError, SetupError
from imagefactory.locking import locking, store
from imagefactory.locking import unpacker as unpackers
from imagefactory.locking.lock import Lock
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform

EMPTY = Lock(created="2026-01-01", tools=(), resolutions=())


@pytest.fixture
def files(tmp_path: Path) -> Path:
    unpacker(tmp_path / "files", "0.13.8")
    return tmp_path / "files"


@pytest.fixture
def using(tmp_path: Path, files: Path) -> Iterator[Settings]:
    with serve(files, tmp_path / "www") as url:
        yield settings(tmp_path, url)


def renewed(lock: Lock, using: Settings, *upgrade: str) -> Lock:
    return locking.renew(lock, [], using, upgrade_packages=upgrade).lock


def code_of(error: FactoryError) -> str:
    (problem,) = error.problems
    return problem.code


def another_uv(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put another uv first on PATH, and pretend that the virtual environment has that version."""
    folder.mkdir()
    (folder / "uv").write_text("#!/bin/sh\necho uv 9.9.9\n")
    (folder / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(uv, "find_uv_bin", lambda: str(folder / "uv"))
    found = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "9.9.9" if name == "uv" else found(name))


def test_it_is_locked_once_for_each_build_platform_and_read_back(
    tmp_path: Path, using: Settings
) -> None:
    lock = renewed(EMPTY, using)
    assert [(one.platform, one.wheel.version) for one in lock.unpackers] == [
        ("linux/amd64", "0.13.8"),
        ("linux/arm64", "0.13.8"),
    ]
    assert lock.unpackers[0].wheel.size > 0
    store.write(tmp_path / "wheels.lock", lock, guards=tmp_path)
    assert store.read(tmp_path / "wheels.lock") == lock


def test_only_an_upgrade_changes_its_version(tmp_path: Path, files: Path, using: Settings) -> None:
    lock = renewed(EMPTY, using)
    unpacker(files, "0.14.0")
    unpacker(files, "0.15.0rc1")
    write_pages(files, tmp_path / "www")
    assert renewed(lock, using).unpacker_version == "0.13.8"
    assert renewed(lock, using, "leaf").unpacker_version == "0.13.8"
    assert renewed(lock, using, "UV").unpacker_version == "0.14.0"
    assert locking.renew(lock, [], using, upgrade=True).lock.unpacker_version == "0.14.0"


def test_every_platform_gets_its_own_wheel_of_a_version_that_all_have(
    tmp_path: Path, files: Path, using: Settings
) -> None:
    (any_platform,) = files.iterdir()
    data = any_platform.read_bytes()
    for name in (
        "0.14.0-py3-none-manylinux_2_17_x86_64",
        "0.14.0-py3-none-musllinux_1_1_x86_64",
        "0.14.0-py3-none-manylinux_2_99_aarch64",
        "0.14.0-py3-none-manylinux_2_28_aarch64",
        "0.15.0-py3-none-manylinux_2_17_x86_64",
    ):
        (files / f"uv-{name}.whl").write_bytes(data)
    write_pages(files, tmp_path / "www")
    assert [one.wheel.filename for one in unpackers.newest(using)] == [
        "uv-0.14.0-py3-none-manylinux_2_17_x86_64.whl",
        "uv-0.14.0-py3-none-manylinux_2_28_aarch64.whl",
    ]


def test_a_wheel_folder_serves_it_without_an_index(tmp_path: Path, files: Path) -> None:
    offline = settings(tmp_path, DOWN, links=(files,))
    lock = renewed(EMPTY, offline)
    assert lock.unpackers[0].wheel.is_local
    assert unpackers.program(lock.unpackers, Platform.ARM64, offline).is_file()


def test_an_index_that_is_down_or_has_none_is_reported(
    tmp_path: Path, files: Path, using: Settings
) -> None:
    with pytest.raises(SetupError) as caught:
        unpackers.newest(settings(tmp_path, DOWN))
    assert code_of(caught.value) == "index-unreachable"
    next(files.iterdir()).unlink()
    write_pages(files, tmp_path / "www")
    with pytest.raises(CheckFailedError) as nothing:
        unpackers.newest(using)
    assert code_of(nothing.value) == "lock-no-wheel"


def test_its_program_is_extracted_once_and_needs_no_network_afterwards(
    tmp_path: Path, using: Settings
) -> None:
    lock = renewed(EMPTY, using)
    path = unpackers.program(lock.unpackers, Platform.AMD64, using)
    assert path.read_text() == "#!/bin/sh\necho uv 0.13.8\n"
    assert os.access(path, os.X_OK)
    assert [one.name for one in path.parent.iterdir()] == ["uv"]
    assert unpackers.program(lock.unpackers, Platform.AMD64, settings(tmp_path, DOWN)) == path


def test_a_wheel_without_the_program_is_reported_and_leaves_no_file(
    tmp_path: Path, files: Path, using: Settings
) -> None:
    wheel(files, "uv", "0.13.8")
    write_pages(files, tmp_path / "www")
    with pytest.raises(SetupError) as caught:
        unpackers.program(unpackers.newest(using), Platform.AMD64, using)
    assert code_of(caught.value) == "unpacker-broken"
    assert not list((using.cache / "unpackers").rglob("uv"))


def test_another_uv_on_this_machine_changes_no_lock_no_build_key_and_no_build_context(
    tmp_path: Path, using: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(name: str) -> tuple[str, bytes]:
        lock = renewed(EMPTY, using)
        contexts = Contexts(
            folder=tmp_path / name,
            templates=(ROOT / "templates",),
            unpackers=lock.unpackers,
            settings=using,
        )
        builder = contexts.write_builder(
            "builder", base_image(planned().cell.flavor.base, Platform.AMD64)
        )
        return store.dumps(lock), (builder / "uv").read_bytes()

    before = made("before")
    another_uv(tmp_path / "bin", monkeypatch)
    assert metadata.version("uv") == "9.9.9"
    assert made("after") == before


def test_a_context_with_another_program_gets_the_locked_one(
    tmp_path: Path, using: Settings
) -> None:
    lock = renewed(EMPTY, using)
    contexts = Contexts(
        folder=tmp_path / "contexts",
        templates=(ROOT / "templates",),
        unpackers=lock.unpackers,
        settings=using,
    )
    base = base_image(planned().cell.flavor.base, Platform.AMD64)
    path = contexts.write_builder("builder", base) / "uv"
    right = path.read_bytes()
    path.write_bytes(b"x" * len(right))
    contexts.write_builder("builder", base)
    assert path.read_bytes() == right


def test_a_lock_without_it_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _ = inputs_with(EMPTY, settings(tmp_path)).uv_version
    (problem,) = caught.value.problems
    assert (problem.code, problem.fix) == ("lock-uncovered", "imagefactory lock")
    assert "uv" in problem.what
    with pytest.raises(InputError):
        unpackers.program((), Platform.AMD64, settings(tmp_path))
    checked = locking.check(EMPTY, [], settings(tmp_path))
    assert [one.code for one in checked] == ["lock-uncovered"]
