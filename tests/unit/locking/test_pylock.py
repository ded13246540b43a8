"""A resolution as pylock.toml: valid, complete, and installed by uv to the same wheels."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uv
from packaging.pylock import Pylock
from support.index import serve, wheel, write_pages
from support.machine import DOWN, settings

from imagefactory.errors import SetupError
from imagefactory.locking import pylock, wheelhouse
from imagefactory.locking.lock import (
    FIND_LINKS,
    WHEELHOUSE,
    LockedOverride,
    Resolution,
    TorchBuild,
    Wheel,
)
from imagefactory.settings import Settings
from imagefactory.system import platforms, shell
from imagefactory.system.platforms import Platform

HERE = platforms.here() or Platform.AMD64


@pytest.fixture
def using(tmp_path: Path) -> Iterator[Settings]:
    for name in ("torch", "by-address"):
        wheel(tmp_path / "files", name, "1.0")
    wheel(tmp_path / "links", "local", "1.0")
    with serve(tmp_path / "files", tmp_path / "www") as url:
        yield settings(tmp_path, url, links=(tmp_path / "links",))


def locked(file: Path, index: str) -> Wheel:
    name, version, *_ = file.name.split("-")
    return Wheel(
        name=name.replace("_", "-"),
        version=version,
        filename=file.name,
        sha256=wheelhouse.sha_of(file),
        size=file.stat().st_size,
        index=index,
    )


@pytest.fixture
def resolution(tmp_path: Path, using: Settings) -> Resolution:
    """A wheel of each kind: from an index, a folder, a URL, and built by imagefactory."""
    (index,) = using.indexes
    (by_address,) = (tmp_path / "files").glob("by_address-*")
    (on_index,) = (tmp_path / "files").glob("torch-*")
    built = wheel(tmp_path / "made", "vllm", "1.0")
    wheelhouse.store(wheelhouse.path_of(wheelhouse.sha_of(built), built.name, using), built)
    return Resolution(
        name="r",
        created="2026-01-01",
        platform=HERE,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        glibc="2.36",
        channel="cpu",
        requirements=("vllm==1.0",),
        overrides=(LockedOverride(requirement="triton", drop=True, reason="not used"),),
        torch=TorchBuild(version="1.0+cpu", cuda=None),
        wheels=(
            locked(by_address, index.removesuffix("/simple") + f"/files/{by_address.name}"),
            locked(next((tmp_path / "links").iterdir()), FIND_LINKS),
            locked(on_index, index),
            locked(built, WHEELHOUSE),
        ),
    )


def text_of(resolution: Resolution, using: Settings, folder: Path) -> str:
    return pylock.dumps(resolution, pylock.locate(resolution, using), folder, cell="cell")


def packages(text: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in tomllib.loads(text)["packages"]}


def test_each_kind_of_wheel_is_written_as_the_format_wants_it(
    tmp_path: Path, using: Settings, resolution: Resolution
) -> None:
    text = text_of(resolution, using, tmp_path)
    Pylock.from_dict(tomllib.loads(text)).validate()
    rows = packages(text)
    assert rows.keys() == {wheel.name for wheel in resolution.wheels}
    on_index = rows["torch"]["wheels"][0]
    assert rows["torch"]["index"] == using.indexes[0]
    assert on_index["url"].startswith(using.indexes[0].removesuffix("/simple"))
    assert on_index["hashes"]["sha256"] == resolution.wheels[2].sha256
    assert rows["local"]["wheels"][0]["path"] == "links/local-1.0-py3-none-any.whl"
    assert rows["by-address"]["archive"]["url"] == resolution.wheels[0].index
    assert rows["vllm"]["wheels"][0]["path"].startswith("cache/wheelhouse/")


def test_a_file_outside_the_folder_has_an_absolute_path(
    tmp_path: Path, using: Settings, resolution: Resolution
) -> None:
    rows = packages(text_of(resolution, using, tmp_path / "elsewhere"))
    assert rows["local"]["wheels"][0]["path"] == f"{tmp_path}/links/local-1.0-py3-none-any.whl"


def test_it_is_for_the_python_and_platform_of_the_cell_and_records_overrides(
    tmp_path: Path, using: Settings, resolution: Resolution
) -> None:
    arm = replace(resolution, platform=Platform.ARM64, python="3.13")
    found = tomllib.loads(text_of(arm, using, tmp_path))
    assert found["requires-python"] == "==3.13.*"
    (environment,) = found["environments"]
    assert 'platform_machine == "aarch64"' in environment
    assert found["tool"]["imagefactory"]["overrides"][0]["reason"] == "not used"


@pytest.mark.programs
def test_uv_installs_exactly_the_locked_wheels_from_it(
    tmp_path: Path, using: Settings, resolution: Resolution
) -> None:
    path, target = tmp_path / "pylock.toml", tmp_path / "target"
    path.write_text(text_of(resolution, using, tmp_path))
    command = [uv.find_uv_bin(), "pip", "install", "--preview-features", "pylock", "--no-config"]
    command += ["--python", sys.executable, "--target", str(target), "-r", str(path)]
    done = shell.run(command, env={"UV_CACHE_DIR": str(tmp_path / "uv")}, quiet=True)
    assert done.ok, done.err
    installed = {one.name for one in target.glob("*.dist-info")}
    assert installed == {f"{w.name.replace('-', '_')}-1.0.dist-info" for w in resolution.wheels}


def test_a_wheel_that_is_nowhere_is_reported(
    tmp_path: Path, using: Settings, resolution: Resolution
) -> None:
    wheel(tmp_path / "files", "torch", "1.0", files={"other.py": ""})
    write_pages(tmp_path / "files", tmp_path / "www")
    with pytest.raises(SetupError) as caught:
        pylock.locate(resolution, using)
    assert [one.code for one in caught.value.problems] == ["wheel-gone"]
    with pytest.raises(SetupError) as down:
        pylock.locate(resolution, settings(tmp_path, DOWN, links=using.find_links))
    assert [one.code for one in down.value.problems] == ["wheel-unreachable"]
