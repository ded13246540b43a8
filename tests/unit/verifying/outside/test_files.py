"""Files that were changed, removed or added in an image are named from outside."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from support.whole_images import LIBRARY, SITE, Node, WholeImage, names


def put(path: str, data: bytes = b"x", mode: int = 0o644) -> Callable[[WholeImage], None]:
    return lambda image: image.tree.update({path: Node(data=data, mode=mode)})


def link(path: str, target: str) -> Callable[[WholeImage], None]:
    return lambda image: image.tree.update({path: Node(link=target)})


def edit(path: str, change: Callable[[bytes], bytes]) -> Callable[[WholeImage], None]:
    return lambda image: image.edit(path, change(image.data(path)))


def chmod(path: str, mode: int) -> Callable[[WholeImage], None]:
    return lambda image: image.tree.update({path: replace(image.tree[path], mode=mode)})


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def cut(data: bytes) -> bytes:
    return data[: len(data) * 6 // 10]


def more(data: bytes) -> bytes:
    return data + b"\nimport os\n"


def same(before: bytes, after: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert before in data
        return data.replace(before, after)

    return change


def without(pattern: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert re.search(pattern, data)
        return re.sub(pattern, b"", data)

    return change


@dataclass(frozen=True, kw_only=True)
class Spoilt:
    """A way to spoil an image, and what has to be said about it."""

    name: str
    spoil: Callable[[WholeImage], object]
    says: str

    def __str__(self) -> str:
        return self.name


MANIFEST, SCRIPT = "opt/imagefactory/manifest.json", "opt/venv/bin/vllm"
CHANGED = (
    Spoilt(
        name="a module of a dependency was edited at the same size",
        spoil=edit(f"{SITE}/numpy/__init__.py", same(b"core", b"evil")),
        says=f"/{SITE}/numpy/__init__.py has other content (sha256",
    ),
    Spoilt(
        name="a bit was flipped in vLLM's library",
        spoil=edit(f"{SITE}/vllm/_C.abi3.so", flip),
        says="vllm/_C.abi3.so has other content",
    ),
    Spoilt(
        name="a bit was flipped in torch's library",
        spoil=edit(f"{SITE}/torch/lib/libtorch.so.2", flip),
        says="(wheel torch)",
    ),
    Spoilt(
        name="a library that this machine would not load was cut",
        spoil=edit(f"{SITE}/vllm/_C_AVX2.abi3.so", cut),
        says="vllm/_C_AVX2.abi3.so has other content: 1231 bytes, not 2052 (wheel vllm)",
    ),
    Spoilt(
        name="code was appended",
        spoil=edit(f"{SITE}/vllm/entrypoints/cli/main.py", more),
        says="vllm/entrypoints/cli/main.py has other content: 27 bytes, not 16",
    ),
    Spoilt(
        name="a file of a wheel was removed",
        spoil=lambda image: image.tree.pop(f"{SITE}/vllm/_C.abi3.so"),
        says="vllm/_C.abi3.so is missing (wheel vllm)",
    ),
    Spoilt(
        name="a file of a wheel was whited out by a layer above",
        spoil=put("etc/.wh.passwd", b""),
        says="/etc/passwd is missing (the base)",
    ),
    Spoilt(
        name="a folder of a wheel became a link to another one",
        spoil=lambda image: (
            [image.tree.pop(path) for path in list(image.tree) if f"{SITE}/numpy/" in path],
            image.tree.update({f"{SITE}/numpy": Node(link="/srv/numpy")}),
        ),
        says="numpy/core.so is missing",
    ),
    Spoilt(
        name="a patch was undone",
        spoil=put(f"{SITE}/vllm/modelopt.py", b"one\ntwo\n"),
        says="vllm/modelopt.py has other content: 8 bytes, not 9 (a patch)",
    ),
    Spoilt(
        name="a patched file was edited",
        spoil=put(f"{SITE}/vllm/modelopt.py", b"one\nzwai\n"),
        says="vllm/modelopt.py has other content",
    ),
    Spoilt(
        name="what a patch creates is missing",
        spoil=lambda image: image.tree.pop(f"{SITE}/vllm-0.22.1+cpu.dist-info/METADATA"),
        says="vllm-0.22.1+cpu.dist-info/METADATA is missing",
    ),
    Spoilt(
        name="a program of the base was replaced",
        spoil=put("usr/bin/python3.13", LIBRARY[::-1], 0o755),
        says="/usr/bin/python3.13 has other content (the base)",
    ),
    Spoilt(
        name="a program of the base lost its mode",
        spoil=put("usr/bin/su", LIBRARY, 0o755),
        says="/usr/bin/su mode is 755, not 4755",
    ),
    Spoilt(
        name="a program of the base became a link",
        spoil=link("usr/bin/python3", "/opt/evil"),
        says="/usr/bin/python3 link is /opt/evil, not python3.13",
    ),
    Spoilt(
        name="the environment's Python is another one",
        spoil=link("opt/venv/bin/python3", "/opt/evil"),
        says="/opt/venv/bin/python3 is a link to /opt/evil, not to /usr/bin/python3",
    ),
    Spoilt(
        name="a file that Python's venv module writes says something else",
        spoil=edit("opt/venv/.gitignore", same(b"*", b"x")),
        says="/opt/venv/.gitignore has other content",
    ),
    Spoilt(
        name="the environment sees the system's packages",
        spoil=edit("opt/venv/pyvenv.cfg", same(b"= false", b"= true")),
        says="/opt/venv/pyvenv.cfg is not that of a plain virtual environment",
    ),
    Spoilt(
        name="a library is linked elsewhere",
        spoil=link(f"{SITE}/torch/lib/libtorch.so", "/srv/libtorch.so"),
        says="libtorch.so is a link to /srv/libtorch.so, not to libtorch.so.2",
    ),
    Spoilt(
        name="a library is setuid",
        spoil=chmod(f"{SITE}/numpy/core.so", 0o4755),
        says="numpy/core.so has the mode 4755, not 755",
    ),
    Spoilt(
        name="a module belongs to somebody else",
        spoil=lambda image: image.tree.update(
            {f"{SITE}/vllm/__init__.py": Node(data=b"", owner=1000)}
        ),
        says="vllm/__init__.py belongs to 1000:0",
    ),
    Spoilt(
        name="a console script does more",
        spoil=edit(SCRIPT, same(b"import sys", b"import sys, evil")),
        says="/opt/venv/bin/vllm has other content",
    ),
    Spoilt(
        name="a wheel's script does more",
        spoil=edit("opt/venv/bin/np", more),
        says="/opt/venv/bin/np has other content (wheel numpy)",
    ),
    Spoilt(
        name="a script cannot be run",
        spoil=chmod(SCRIPT, 0o644),
        says="/opt/venv/bin/vllm has the mode 644, not 755",
    ),
    Spoilt(
        name="RECORD agrees with an edited file",
        spoil=edit(f"{SITE}/numpy-2.0.dist-info/RECORD", same(b"2000", b"2001")),
        says="RECORD has a wrong hash or size for numpy/core.so",
    ),
    Spoilt(
        name="RECORD lists a file more",
        spoil=edit(f"{SITE}/numpy-2.0.dist-info/RECORD", lambda data: data + b"numpy/evil.py,,\n"),
        says="RECORD and the files of the wheel differ: " + f"{SITE}/numpy/evil.py",
    ),
    Spoilt(
        name="RECORD lacks a file that is there",
        spoil=edit(f"{SITE}/numpy-2.0.dist-info/RECORD", without(rb"numpy/core\.so,.*\n")),
        says="RECORD and the files of the wheel differ: " + f"{SITE}/numpy/core.so",
    ),
    Spoilt(
        name="RECORD has another hash",
        spoil=edit(
            f"{SITE}/numpy-2.0.dist-info/RECORD", same(b"core.so,sha256=", b"core.so,sha256=A")
        ),
        says="RECORD has a wrong hash or size for numpy/core.so",
    ),
    Spoilt(
        name="RECORD is wrong in another way than the wheel's own",
        spoil=edit(f"{SITE}/numpy-2.0.dist-info/RECORD", same(b",1600", b",1601")),
        says="RECORD has a wrong hash or size for numpy/stripped.so",
    ),
    Spoilt(
        name="RECORD has no hash",
        spoil=edit(f"{SITE}/numpy-2.0.dist-info/RECORD", without(rb"(?<=core\.so,)[^,\n]+")),
        says="RECORD has a wrong hash or size for numpy/core.so",
    ),
    Spoilt(
        name="RECORD is written in another way",
        spoil=edit(f"{SITE}/numpy-2.0.dist-info/RECORD", same(b"\n", b"\r\n")),
        says="RECORD is not written as the build writes it",
    ),
    Spoilt(
        name="RECORD has a column less",
        spoil=edit(f"{SITE}/numpy-2.0.dist-info/RECORD", same(b"RECORD,,", b"RECORD,")),
        says="RECORD is not written as the build writes it",
    ),
    Spoilt(
        name="RECORD is no text",
        spoil=put(f"{SITE}/numpy-2.0.dist-info/RECORD", b"\xff"),
        says="RECORD cannot be read",
    ),
    Spoilt(
        name="RECORD has a field that no reader takes",
        spoil=put(f"{SITE}/numpy-2.0.dist-info/RECORD", b"x" * 200_000),
        says="RECORD cannot be read",
    ),
    Spoilt(
        name="the entrypoint does more",
        spoil=edit("opt/imagefactory/entrypoint", more),
        says="/opt/imagefactory/entrypoint has other content",
    ),
    Spoilt(
        name="a proof always passes",
        spoil=put("opt/imagefactory/proofs/vllm/one/proof.py", b"\n"),
        says="proofs/vllm/one/proof.py has other content",
    ),
    Spoilt(
        name="the manifest is of another cell",
        spoil=edit(MANIFEST, same(b'"a-cell"', b'"b-cell"')),
        says="manifest.json says something else about cell than the plan",
    ),
    Spoilt(
        name="the manifest says that a patch is obsolete",
        spoil=edit(MANIFEST, same(b'"needed"', b'"obsolete"')),
        says="modelopt.py has other content",
    ),
    Spoilt(
        name="the manifest has other hashes for a patch",
        spoil=edit(MANIFEST, same(b'"vllm/modelopt.py": "', b'"vllm/modelopt.py": "0')),
        says="manifest.json has other hashes for the files of vllm/one",
    ),
    Spoilt(
        name="the list of what was left out names a file that is there",
        spoil=edit(
            "opt/imagefactory/dropped.json", same(b"torch/test/test_torch.py", b"vllm/_C.abi3.so")
        ),
        says="dropped.json lists vllm/_C.abi3.so, which is in the image",
    ),
)
EXTRA = (
    Spoilt(
        name="a .pth file",
        spoil=put(f"{SITE}/evil.pth"),
        says="evil.pth is explained by nothing, and runs whenever Python starts",
    ),
    Spoilt(
        name="a sitecustomize",
        spoil=put(f"{SITE}/sitecustomize.py"),
        says="sitecustomize.py is explained by nothing, and runs whenever Python starts",
    ),
    Spoilt(
        name="a module without a wheel",
        spoil=put(f"{SITE}/evil/__init__.py"),
        says=f"/{SITE}/evil is explained by nothing",
    ),
    Spoilt(
        name="a module in the folder of a wheel",
        spoil=put(f"{SITE}/numpy/evil.py"),
        says="numpy/evil.py is explained by nothing",
    ),
    Spoilt(
        name="a module beside the virtual environment's own",
        spoil=put("usr/lib/python3/dist-packages/evil.py"),
        says="/usr/lib/python3 is explained by nothing",
    ),
    Spoilt(
        name="a preloaded library",
        spoil=put("etc/ld.so.preload"),
        says="/etc/ld.so.preload is explained by nothing, and is loaded into every program",
    ),
    Spoilt(
        name="an entrypoint behind which the real one is hidden",
        spoil=put("opt/imagefactory/real-entrypoint"),
        says="/opt/imagefactory/real-entrypoint is explained by nothing",
    ),
    Spoilt(
        name="compiled Python that replaces a module",
        spoil=put(f"{SITE}/vllm/__pycache__/__init__.cpython-313.pyc"),
        says="vllm/__pycache__ is explained by nothing",
    ),
    Spoilt(
        name="a static library that the build leaves out",
        spoil=put(f"{SITE}/torch/lib/libstatic.a"),
        says="libstatic.a is never used, and is left out by the build",
    ),
    Spoilt(
        name="a folder that everybody may write to",
        spoil=lambda image: image.tree.update({f"{SITE}/torch": Node(mode=0o777)}),
        says=f"/{SITE}/torch has the mode 777 and belongs to 0:0",
    ),
)


@pytest.mark.programs
@pytest.mark.parametrize("spoilt", CHANGED, ids=str)
def test_a_file_that_differs_from_its_source_is_named(image: WholeImage, spoilt: Spoilt) -> None:
    spoilt.spoil(image)
    assert spoilt.says in names(image.judged().changed)


@pytest.mark.programs
@pytest.mark.parametrize("spoilt", EXTRA, ids=str)
def test_a_file_that_nothing_explains_is_named(image: WholeImage, spoilt: Spoilt) -> None:
    spoilt.spoil(image)
    assert spoilt.says in names(image.judged().extra)
