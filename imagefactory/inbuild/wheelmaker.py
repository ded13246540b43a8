"""Builds a wheel of vLLM from its (patched) sources, with the compiled parts of an official wheel.

    python wheelmaker.py SOURCES OFFICIAL TORCH CUDA VERSION OUT [COMPILED]

Libraries below COMPILED replace those with the same names in OFFICIAL. This runs in the builder,
whatever platform OFFICIAL is for; setuptools and the other build tools are on its path. Without
anything to compile, vLLM's setup.py uses torch only for its versions, so a stub module that has
the locked ones (TORCH and CUDA) is enough.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

#: A stub of torch: relative path -> text.
STUB = {
    "torch/__init__.py": (
        "__version__ = {torch!r}\n\n\nclass version:\n    cuda, hip, xpu = {cuda!r}, None, None\n"
    ),
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": "CUDA_HOME = ROCM_HOME = None\n",
}
#: 1980-01-01, the earliest date that files in a wheel can have.
EPOCH = "315532800"


def tags_of(wheel: str) -> tuple[str, str, str]:
    """Python, ABI and platform tag of a wheel's file name."""
    python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    return python, abi, platform


def build(sources: Path, official: Path, version: str, out: Path) -> Path:
    """Run vLLM's own build without compiling; changes the working directory to ``sources``.

    It names the platform and the stable ABI of the official wheel, so that the wheel need not be
    compressed again for its tags.
    """
    python, abi, platform = tags_of(official.name)
    machine = platform.rpartition("_")[2]
    machine = "x86_64" if machine == "64" else machine
    os.environ |= {
        "VLLM_TARGET_DEVICE": "cuda",
        "VLLM_PRECOMPILED_WHEEL_LOCATION": str(official.resolve()),
        "VLLM_VERSION_OVERRIDE": version,
        "SETUPTOOLS_SCM_PRETEND_VERSION": version,
        "SOURCE_DATE_EPOCH": EPOCH,
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
    }
    os.chdir(sources)
    sys.path.insert(0, str(sources))
    words = ["--plat-name", platform]
    words += ["--py-limited-api", python] if abi == "abi3" else []
    backend = importlib.import_module("setuptools.build_meta")
    name = backend.build_wheel(str(out), {"--build-option": words})
    return out / str(name)


def with_compiled(official: Path, compiled: Path, folder: Path) -> Path:
    """Write a copy of the official wheel with the libraries below ``compiled`` to ``folder``.

    Only vLLM's build reads it, so its RECORD is not updated, and nothing is compressed. Raises
    SystemExit if there are no libraries, or if the official wheel lacks one of these names: vLLM
    would not load it.
    """
    ours = {path.relative_to(compiled).as_posix(): path for path in sorted(compiled.rglob("*.so"))}
    folder.mkdir(parents=True)
    with (
        zipfile.ZipFile(official) as old,
        zipfile.ZipFile(folder / official.name, "w", zipfile.ZIP_STORED) as new,
    ):
        unknown = sorted(ours.keys() - set(old.namelist()))
        if not ours:
            sys.exit(f"E: {compiled} contains no library")
        if unknown:
            sys.exit(f"E: {official.name} contains no {', '.join(unknown)}")
        for member in old.infolist():
            path = ours.get(member.filename)
            if member.filename.endswith(".so"):
                print(f"{'compiled' if path else 'official'}: {member.filename}")
            data = path.read_bytes() if path else old.read(member)
            new.writestr(member, data, zipfile.ZIP_STORED)  # else as the member was compressed
    return folder / official.name


def main(
    sources: Path,
    official: Path,
    torch: str,
    cuda: str,
    version: str,
    out: Path,
    compiled: Path | None = None,
) -> int:
    """Build the wheel, then give it the tags of the official one, whose compiled parts it has."""
    if compiled:
        official = with_compiled(official, compiled, out.parent / "mixed")
    stub = out.parent / "stub"
    for name, text in STUB.items():
        (stub / name).parent.mkdir(parents=True, exist_ok=True)
        (stub / name).write_text(text.format(torch=torch, cuda=cuda), encoding="utf-8")
    sys.path.insert(0, str(stub))
    out.mkdir(parents=True, exist_ok=True)
    made = build(sources, official, version, out)
    python, abi, platform = tags_of(official.name)
    retag = [
        "--remove",
        "--python-tag",
        python,
        "--abi-tag",
        abi,
        "--platform-tag",
        platform,
        str(made),
    ]
    return subprocess.run([sys.executable, "-m", "wheel", "tags", *retag], check=False).returncode


if __name__ == "__main__":
    source, wheel, torch_version, cuda_version, release, target, *more = sys.argv[1:]
    extra = Path(more[0]) if more else None
    sys.exit(
        main(Path(source), Path(wheel), torch_version, cuda_version, release, Path(target), extra)
    )
