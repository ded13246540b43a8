"""Makes a wheel of vLLM from its (patched) sources, with the compiled parts of an official wheel.

    python wheelmaker.py SOURCES OFFICIAL TORCH CUDA VERSION OUT [COMPILED]

Libraries below COMPILED take the place of the official ones of the same names.
It runs in the builder, whatever platform OFFICIAL is for; setuptools and the other build tools are
on its path. vLLM's setup asks torch for nothing but its versions here, so a stand-in that tells the
locked ones (TORCH and CUDA) is enough.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

STAND_IN = {
    "torch/__init__.py": (
        "__version__ = {torch!r}\n\n\nclass version:\n    cuda, hip, xpu = {cuda!r}, None, None\n"
    ),
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": "CUDA_HOME = ROCM_HOME = None\n",
}
#: 1980, the first date that a wheel's files can have.
EPOCH = "315532800"


def tags_of(wheel: str) -> tuple[str, str, str]:
    """Python, ABI and platform tag of a wheel's file name."""
    python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    return python, abi, platform


def build(sources: Path, official: Path, version: str, out: Path) -> Path:
    """Run the project's own build; nothing is compiled.

    The working directory becomes ``sources``.
    """
    machine = official.name.removesuffix(".whl").rpartition("_")[2]
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
    name = importlib.import_module("setuptools.build_meta").build_wheel(str(out))
    return out / str(name)


def with_compiled(official: Path, compiled: Path, folder: Path) -> Path:
    """A copy of the official wheel in ``folder`` with what was compiled in it; nobody reads its
    RECORD.

    Raises SystemExit if it has no file of that name: nothing would load ours.
    """
    ours = {path.relative_to(compiled).as_posix(): path for path in sorted(compiled.rglob("*.so"))}
    folder.mkdir(parents=True)
    with (
        zipfile.ZipFile(official) as old,
        zipfile.ZipFile(folder / official.name, "w", zipfile.ZIP_STORED) as new,
    ):
        strange = sorted(ours.keys() - set(old.namelist()))
        if strange or not ours:
            sys.exit(f"E: {official.name} has no {', '.join(strange) or 'library of ours'}")
        for member in old.infolist():
            path = ours.get(member.filename)
            if member.filename.endswith(".so"):
                print(f"{'compiled' if path else 'official'}: {member.filename}")
            new.writestr(member, path.read_bytes() if path else old.read(member))
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
    """Build, then give the wheel the tags of the official one, whose compiled parts it has."""
    if compiled:
        official = with_compiled(official, compiled, out.parent / "mixed")
    stand_in = out.parent / "stand-in"
    for name, text in STAND_IN.items():
        (stand_in / name).parent.mkdir(parents=True, exist_ok=True)
        (stand_in / name).write_text(text.format(torch=torch, cuda=cuda), encoding="utf-8")
    sys.path.insert(0, str(stand_in))
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
