"""Toolchains: declared in the matrix, locked by hash for each platform, installed by hash."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.index import serve, wheel
from support.machine import DOWN, settings
from support.matrices import GOOD

from imagefactory.errors import SetupError
from imagefactory.locking import locking, store, toolchains
from imagefactory.locking.lock import Lock, LockedToolchain
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Toolchain
from imagefactory.patching import cuda_home
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location

HERE = Location(file="matrix.yaml", line=7)
WANTED = Toolchain(
    name="cuda", requirements=("nvcc==1",), platforms=(Platform.AMD64,), location=HERE
)


def lock(*made: LockedToolchain) -> Lock:
    return Lock(created="2026-01-01", tools=(), resolutions=(), toolchains=made)


def test_a_toolchain_knows_its_line_in_the_matrix(tmp_path: Path) -> None:
    text = GOOD + '\ntoolchains:\n  cuda: {requirements: ["nvcc==1"], platforms: [linux/amd64]}\n'
    (tmp_path / "matrix.yaml").write_text(text)
    (found,) = matrix.load(tmp_path / "matrix.yaml").toolchains
    assert (found.name, found.requirements, found.platforms) == (
        "cuda",
        ("nvcc==1",),
        ("linux/amd64",),
    )
    assert found.location.line == len(text.splitlines())


def test_an_unchanged_toolchain_stays_locked_without_network_access(tmp_path: Path) -> None:
    old = LockedToolchain(
        name="cuda", platform=Platform.AMD64, requirements=("nvcc==1",), wheels=()
    )
    renewed = locking.renew(lock(old), [], settings(tmp_path, DOWN), toolchains=[WANTED])
    assert renewed.lock.toolchains == (old,)


@pytest.mark.programs
@pytest.mark.usefixtures("own_uv_cache")
def test_a_toolchain_is_locked_read_back_and_installed_by_hash(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheel(wheels, "nvcc", "1", files={"nvidia/cu13/bin/nvcc": "", "nvidia/cu13/lib/x": ""})
    with serve(wheels, tmp_path / "www") as url:
        using = settings(tmp_path, url)
        made = (toolchains.lock_toolchain(WANTED, Platform.AMD64, using, refresh=False),)
        store.write(tmp_path / "wheels.lock", lock(*made), guards=tmp_path)
        again = store.read(tmp_path / "wheels.lock")
        home = cuda_home.prepare(again.toolchains[0], using)
    assert again.toolchains == made
    assert [w.name for w in again.all_wheels()] == ["nvcc"]
    assert (home / "bin/nvcc").is_file()
    assert (home / "lib64/x").is_file()
    assert cuda_home.prepare(made[0], settings(tmp_path, DOWN)) == home


@pytest.mark.programs
@pytest.mark.usefixtures("own_uv_cache")
def test_a_toolchain_whose_wheel_is_gone_is_a_setup_error_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    wheels = tmp_path / "wheels"
    wheel(wheels, "nvcc", "1", files={"nvidia/cu13/bin/nvcc": ""})
    with serve(wheels, tmp_path / "www") as url:
        using = settings(tmp_path, url)
        made = toolchains.lock_toolchain(WANTED, Platform.AMD64, using, refresh=False)
    with pytest.raises(SetupError) as caught:
        cuda_home.prepare(made, settings(tmp_path, DOWN))
    assert caught.value.problems[0].code == "toolchain-install"
    assert not list((tmp_path / "cache/toolchains").glob("cuda-*/*"))


def test_toolchains_that_are_not_locked_or_not_declared_are_reported() -> None:
    dead = LockedToolchain(name="old", platform=Platform.ARM64, requirements=(), wheels=())
    found = [(p.code, p.where) for p in toolchains.uncovered(lock(dead), [WANTED])]
    assert found == [("lock-uncovered", "matrix.yaml:7"), ("lock-dead", "wheels.lock")]


def test_a_toolchain_without_a_compiler_is_refused_and_the_first_of_two_is_taken(
    tmp_path: Path,
) -> None:
    for name in ("cu13/bin/ptxas", "cu12/lib/nvcc"):
        (tmp_path / "nvidia" / name).mkdir(parents=True)
    with pytest.raises(SetupError, match="contains no nvcc"):
        cuda_home._cuda_home(tmp_path)
    for name in ("cu13/bin/nvcc", "cu12/bin/nvcc"):
        (tmp_path / "nvidia" / name).mkdir(parents=True)
    assert cuda_home._cuda_home(tmp_path) == tmp_path / "nvidia/cu12"
