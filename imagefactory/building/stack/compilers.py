"""Makes the layer of compilers from a toolchain's wheels. Pure but for reading them.

They become one CUDA_HOME. Headers and libraries that it lacks (cuBLAS, cuRAND, NVRTC: kernels
compiled at run time need them) become links to those of the install layers, so that no file is in
the image twice. The wheels are kept apart from the image's packages because CUDA wheels share the
folder site-packages/nvidia, where different versions would make a toolkit that does not work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from imagefactory.building.tree import Kind, Tree
from imagefactory.errors import SetupError, fail


def make(installed: Tree, site: str, home: str, layers: Sequence[Tree]) -> Tree:
    """The layer with the compilers at ``home``, from what their wheels install in ``site``.

    ``layers`` are the install layers of the image, with the same ``site``. Raises SetupError if
    the wheels have no nvcc.
    """
    homes = sorted(
        path.removesuffix("/bin/nvcc")
        for path in installed.entries
        if path.startswith(f"{site}/nvidia/cu") and path.endswith("/bin/nvcc")
    )
    if not homes:
        what, fix = "the wheels of the toolchain have no nvcc", "add nvidia-cuda-nvcc to it"
        raise fail(SetupError, "toolchain-no-compiler", what, fix=fix)
    cuda, tree, home = homes[0], Tree(), home.strip("/")
    for path, entry in installed.below(f"{cuda}/"):
        if entry.kind is not Kind.FOLDER:
            tree.put(f"{home}{path.removeprefix(cuda)}", entry)
    tree.symlink(f"{home}/lib64", "lib")  # where nvcc 13 looks for its runtime
    _link_headers(tree, home, cuda, layers)
    _link_libraries(tree, home, cuda, layers)
    return tree


def _link_headers(tree: Tree, home: str, cuda: str, layers: Sequence[Tree]) -> None:
    there = _names(tree, f"{home}/include")
    for name in sorted(_all_names(layers, f"{cuda}/include") - there):
        tree.symlink(f"{home}/include/{name}", f"/{cuda}/include/{name}")


def _link_libraries(tree: Tree, home: str, cuda: str, layers: Sequence[Tree]) -> None:
    """Link each shared library by its own name and by the ``.so`` name that linkers look for."""
    for name in sorted(_all_names(layers, f"{cuda}/lib")):
        if not name.startswith("lib") or ".so" not in name:
            continue
        for link in (name, f"{name.partition('.so')[0]}.so"):
            if f"{home}/lib/{link}" not in tree:
                tree.symlink(f"{home}/lib/{link}", f"/{cuda}/lib/{name}")


def _all_names(layers: Iterable[Tree], folder: str) -> set[str]:
    return {name for tree in layers for name in _names(tree, folder)}


def _names(tree: Tree, folder: str) -> set[str]:
    """The names directly in ``folder``."""
    start = f"{folder}/"
    return {path[len(start) :].partition("/")[0] for path in tree.entries if path.startswith(start)}
