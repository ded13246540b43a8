"""The programs that a proof runs: compilers, and itself."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from .verdicts import Inconclusive

#: Names the CUDA toolchain: a folder with ``bin/nvcc`` and ``include``.
CUDA = "IMAGEFACTORY_CUDA"
#: A program that traces a proof sets it to its own file.
TRACER = "IMAGEFACTORY_TRACER"
#: What a proof may need beyond Python, as ``needs`` of its patch.yaml says.
Need = Literal["cmake", "g++", "numpy", "nvcc"]


def missing(needs: Iterable[Need], env: Mapping[str, str]) -> str:
    """Which of ``needs`` this machine lacks, in words; empty if none."""
    lacking = [need for need in needs if not _has(need, env)]
    text = f"needs {' and '.join(lacking)}" if lacking else ""
    return text.replace("nvcc", f"a CUDA toolchain in {CUDA}")


def _has(need: Need, env: Mapping[str, str]) -> bool:
    if need == "nvcc":
        return os.access(Path(env.get(CUDA) or "/nonexistent", "bin/nvcc"), os.X_OK)
    if need == "numpy":
        return importlib.util.find_spec(need) is not None
    return shutil.which(need, path=env.get("PATH")) is not None


def require(*needs: Need) -> None:
    """Raises Inconclusive if this machine lacks one of ``needs``."""
    if lacking := missing(needs, os.environ):
        raise Inconclusive(lacking)


def cuda_home() -> Path:
    """The CUDA toolchain. Raises Inconclusive without one."""
    require("nvcc")
    return Path(os.environ[CUDA]).resolve()


def command(argv: Sequence[str | Path], folder: Path | None = None) -> tuple[int, str]:
    """Run a program to its end in ``folder``; its exit code, and all that it wrote."""
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )
    return done.returncode, done.stdout + done.stderr


def again(*words: str) -> tuple[int, str]:
    """Run this proof in another Python with these arguments; as ``command``."""
    script = os.environ.get(TRACER) or os.path.abspath(sys.argv[0])  # noqa: PTH100 - no stat
    return command([sys.executable, "-B", "-W", "ignore", script, *words])


def nvcc(source: Path, target: str, *flags: str) -> tuple[int, str, str]:
    """Compile a CUDA source for ``sm_<target>``; exit code, output, and the PTX that was made."""
    kept = source.with_name(f"{source.stem}-{target}")
    kept.mkdir()
    argv: list[str | Path] = [cuda_home() / "bin/nvcc", "-std=c++17", "-w", "-cubin", *flags]
    argv += [f"-gencode=arch=compute_{target},code=sm_{target}", "--keep", "--keep-dir", kept]
    code, said = command([*argv, "-o", kept / "probe.cubin", source.name], source.parent)
    return code, said, "".join(path.read_text(errors="replace") for path in kept.glob("*.ptx"))


def first_error(output: str) -> str:
    """The line of a compiler's output that says most, without the file that it names."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search("error|not supported", line, re.IGNORECASE)]
    return re.sub(r".*\berror *: *", "", (errors or lines or ["no message"])[0])
