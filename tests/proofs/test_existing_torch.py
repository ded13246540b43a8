"""The proof of vllm/existing-torch, on sdists that are small enough to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import proofs

PROJECT = """\
[build-system]
requires = [
    "cmake>=3.26.1",
    "torch == 2.11.0",
    "jinja2",
]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
dynamic = ["version", "dependencies"]
[tool.uv]
no-build-isolation-package = ["torch"]
"""
SETUP = """\
import torch


def get_requirements() -> list[str]:
    def _read_requirements(filename: str) -> list[str]:
        found = []
        for line in (ROOT_DIR / "requirements" / filename).read_text().splitlines():
            if line.startswith("-r "):
                found += _read_requirements(line.split()[1])
            elif line and not line.startswith(("#", "--")):
                found.append(line)
        return found

    if _no_device():
        return _read_requirements("common.txt")
    if _is_cuda():
        return [r for r in _read_requirements("cuda.txt") if "cu12" not in r or torch.version.cuda.startswith("12")]
    raise ValueError("Unsupported platform")


setup(install_requires=get_requirements())
"""
COMMON = (
    "numpy\nprotobuf >= 5.29.6, !=6.30.*; platform_machine != "
    "'s390x'\nray[cgraph]>=2.48.0 # see the notes\n"
)
CUDA = """\
# Common dependencies
-r common.txt
--extra-index-url https://download.pytorch.org/whl/cu130
numba == 0.61.2 # Required for N-gram speculative decoding
torch==2.11.0
# These must be updated alongside torch
torchvision==0.26.0 # Required for phi3v processor. See https://github.com/pytorch/vision
torchcodec >= 0.14
"""
BUILD = "cmake>=3.26.1\ntorch==2.11.0\njinja2\n"
SCRIPT = """\
import glob
import sys

PREFIXES = ("torch=", "torchvision=", "torchcodec=", '"torch =')
for file in (*glob.glob("requirements/**/*.txt", recursive=True), "pyproject.toml"):
    with open(file) as f:
        lines = f.readlines()
    with open(file, "w") as f:
        for line in lines:
            taken = line.strip().startswith(PREFIXES) if "--prefix" in sys.argv else "torch" in line
            if not taken:
                f.write(line)
"""
OLD = {"build": "requirements/build.txt", "script": "use_existing_torch.py"}
NEW = {"build": "requirements/build/cuda.txt", "script": "tools/use_existing_torch.py"}


def sdist(folder: Path, layout: dict[str, str], script: str = SCRIPT, cuda: str = CUDA) -> Path:
    texts = {
        "pyproject.toml": PROJECT,
        "setup.py": SETUP,
        "requirements/common.txt": COMMON,
        layout["build"]: BUILD,
    }
    for name, text in {**texts, "requirements/cuda.txt": cuda, layout["script"]: script}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def judged(folder: Path) -> tuple[int, str]:
    return proofs.judged("vllm/existing-torch", folder)


@pytest.mark.parametrize("layout", [OLD, NEW])
def test_a_script_that_takes_out_torch_and_nothing_else_is_all_that_is_needed(
    tmp_path: Path, layout: dict[str, str]
) -> None:
    code, said = judged(sdist(tmp_path, layout))
    assert code == 0, said
    assert "takes torch==2.11.0, torchcodec >= 0.14, torchvision==0.26.0 out of all" in said
    assert said.endswith("with --prefix it would leave torchcodec >= 0.14")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (', "pyproject.toml"', ", *[]", "pyproject.toml would bring torch == 2.11.0"),
        ("**/*.txt", "*.txt", "requirements/build/cuda.txt would bring torch==2.11.0"),
        (
            "requirements/**/*.txt",
            "requirements/build/*.txt",
            "the wheel would bring torch==2.11.0, torchcodec >= 0.14",
        ),
        (
            '"torch" in line',
            '"torch=" in line',
            "the wheel would bring torchcodec >= 0.14, torchvision==0.26.0",
        ),
        ('"torch" in line', '"a" in line and "=" in line', "pyproject.toml cannot be read"),
        ('"torch" in line', '"torch" in line or "numba" in line', "the wheel lost numba == 0.61.2"),
        ('"torch" in line', '"torch" in line or "jinja" in line', "pyproject.toml lost jinja2"),
        ('"torch" in line', '"torch" in line or "-r" in line', "the wheel lost numpy"),
    ],
)
def test_a_script_that_takes_too_little_or_too_much_is_a_symptom(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert old in SCRIPT
    code, said = judged(sdist(tmp_path, NEW, SCRIPT.replace(old, new)))
    assert code == 1, said
    assert says in said


def test_an_sdist_without_the_script_brings_its_own_torch(tmp_path: Path) -> None:
    folder = sdist(tmp_path, OLD)
    (folder / OLD["script"]).unlink()
    code, said = judged(folder)
    assert code == 1
    assert "no use_existing_torch.py: the wheel would bring torch==2.11.0" in said


def test_an_sdist_that_pins_nothing_needs_no_script(tmp_path: Path) -> None:
    folder = sdist(tmp_path, OLD, cuda="-r common.txt\n")
    (folder / OLD["script"]).unlink()
    (folder / "pyproject.toml").write_text(PROJECT.replace('    "torch == 2.11.0",\n', ""))
    (folder / OLD["build"]).write_text("cmake\n")
    code, said = judged(folder)
    assert code == 0, said


def test_a_pin_of_triton_that_the_script_overlooks_is_a_symptom(tmp_path: Path) -> None:
    code, said = judged(sdist(tmp_path, NEW, cuda=CUDA + "triton==3.6.0\n"))
    assert code == 1
    assert "the wheel would bring triton==3.6.0" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("setup.py", "setup()\n"),
        ("requirements/cuda.txt", "git+https://example.org/torch.git !!\ntorch==1\n"),
        ("pyproject.toml", PROJECT.replace(', "dependencies"', "")),
        ("tools/use_existing_torch.py", "raise SystemExit(2)\n"),
    ],
)
def test_a_layout_that_the_proof_does_not_know_is_not_judged(
    tmp_path: Path, name: str, text: str
) -> None:
    folder = sdist(tmp_path, NEW)
    (folder / name).write_text(text)
    code, said = judged(folder)
    assert code == 3, said


def test_the_proof_leaves_the_tree_as_it_was(tmp_path: Path) -> None:
    folder = sdist(tmp_path, NEW)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    judged(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
