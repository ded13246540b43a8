"""The layer of compilers: the toolchain's files, and links to the libraries of the image."""

from __future__ import annotations

import pytest

from imagefactory.building.stack import compilers
from imagefactory.building.tree import Kind, Tree
from imagefactory.errors import SetupError

SITE, HOME = "opt/venv/lib/python3.13/site-packages", "/opt/cuda"
CUDA = f"{SITE}/nvidia/cu13"


def tree(*names: str) -> Tree:
    made = Tree()
    for name in names:
        made.file(f"{SITE}/nvidia/{name}", name)
    return made


def test_compilers_are_kept_apart_and_linked_to_the_cuda_of_the_image() -> None:
    own = tree("cu13/bin/nvcc", "cu13/include/cuda.h", "cu13/lib/libcudart.so.13", "other.txt")
    image = tree("cu13/include/cublas.h", "cu13/include/cuda.h", "cu13/lib/libcublas.so.13")
    more = tree("cu13/lib/libcudart.so.13", "cu13/lib/notes.txt", "cu12/include/old.h")
    made = compilers.make(own, SITE, HOME, [image, more])
    files = {path for path, one in made if one.kind is Kind.FILE}
    assert files == {f"opt/cuda/{n}" for n in ("bin/nvcc", "include/cuda.h", "lib/libcudart.so.13")}
    links = {path: one.target for path, one in made if one.kind is Kind.SYMLINK}
    assert links == {
        "opt/cuda/lib64": "lib",
        "opt/cuda/include/cublas.h": f"/{CUDA}/include/cublas.h",
        "opt/cuda/lib/libcublas.so.13": f"/{CUDA}/lib/libcublas.so.13",
        "opt/cuda/lib/libcublas.so": f"/{CUDA}/lib/libcublas.so.13",
        "opt/cuda/lib/libcudart.so": f"/{CUDA}/lib/libcudart.so.13",
    }


def test_a_toolchain_without_a_compiler_ends_the_build() -> None:
    with pytest.raises(SetupError, match="no nvcc"):
        compilers.make(tree("cu13/bin/ptxas"), SITE, HOME, [])
