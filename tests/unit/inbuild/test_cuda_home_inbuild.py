"""A toolchain in an image: one CUDA_HOME that links to libraries which the image already has."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.matrices import GOOD

from imagefactory.errors import InputError
from imagefactory.inbuild import cuda_home
from imagefactory.matrix import matrix

INSIDE = Path("/site/nvidia/cu13")


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def made(tmp_path: Path) -> Path:
    write(
        tmp_path / "unpacked/nvidia/cu13",
        "bin/nvcc",
        "include/cuda.h",
        "include/crt/host.h",
        "lib/libcudart.so.13",
    )
    layers = [tmp_path / "layers/nvidia-cublas", tmp_path / "layers/cuda-torch"]
    write(
        layers[0],
        "include/cublasLt.h",
        "include/nv/blas.h",
        "lib/libcublasLt.so.13",
        "lib/libx_static.a",
    )
    write(
        layers[1],
        "include/cuda.h",
        "include/crt/other.h",
        "include/nv/target",
        "lib/libcudart.so.13",
    )
    assert (
        cuda_home.main(
            tmp_path / "unpacked", tmp_path / "cuda", INSIDE, [*layers, tmp_path / "no-cuda"]
        )
        == 0
    )
    return tmp_path / "cuda"


def test_only_files_that_the_toolchain_lacks_become_links_to_those_of_any_layer(
    tmp_path: Path,
) -> None:
    home = made(tmp_path)
    assert not (home / "include/cuda.h").is_symlink()
    assert (home / "include/cublasLt.h").readlink() == INSIDE / "include/cublasLt.h"
    assert (home / "include/nv").readlink() == INSIDE / "include/nv"
    # a folder of the toolchain is never mixed with one of another version
    assert not (home / "include/crt").is_symlink()
    assert not (home / "include/crt/other.h").exists()


def test_libraries_get_the_name_that_linkers_look_for(tmp_path: Path) -> None:
    home = made(tmp_path)
    assert (home / "lib/libcublasLt.so").readlink() == INSIDE / "lib/libcublasLt.so.13"
    assert (home / "lib/libcudart.so").readlink() == INSIDE / "lib/libcudart.so.13"
    assert not (home / "lib/libcudart.so.13").is_symlink()
    assert not (home / "lib/libx_static.a").exists()
    assert (home / "lib64").readlink() == Path("lib")


def test_wheels_without_nvcc_are_rejected(tmp_path: Path) -> None:
    write(tmp_path / "unpacked/nvidia/cu13", "bin/ptxas")
    assert cuda_home.main(tmp_path / "unpacked", tmp_path / "cuda", INSIDE) == 1


def test_a_flavor_with_an_undeclared_toolchain_is_reported_with_its_line(tmp_path: Path) -> None:
    text = GOOD.replace("    env: {A: b}\n", "    env: {A: b}\n    toolchain: cuda99\n")
    (tmp_path / "matrix.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        matrix.load(tmp_path / "matrix.yaml")
    (problem,) = caught.value.problems
    line = text[: text.index("toolchain:")].count("\n") + 1
    assert (problem.code, problem.where) == (
        "matrix-unknown-toolchain",
        f"{tmp_path / 'matrix.yaml'}:{line}",
    )
