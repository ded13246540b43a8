"""Builds the wheel of an extra, in the builder, on the target platform; nothing is downloaded.

    python -m factory.extra prepare    installs the build tools and compilers
    python -m factory.extra build      installs torch, builds the wheel, and removes torch again

``/files`` has the sources, ``/wheels`` a folder for each list in ``/requirements``. ``/job`` has
``sources.json``, the user's ``setup.py`` if there is one, and ``job.json`` with the ``folder`` of
the sources to build, the variables ``env``, those of further ``sources``, and ``cuda``, a
CUDA_HOME or nothing. Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import compiler, cuda_home, install, sources

FILES, JOB = Path("/files"), Path("/job")
WHEELS, REQUIREMENTS = Path("/wheels"), Path("/requirements")
SOURCE, OTHERS, OUT = Path("/src"), Path("/sources"), Path("/out")
TOOLS, TORCH, CUDA = Path("/tools"), Path("/torch"), Path("/opt/cuda")
#: 1980-01-01, the earliest date that files in a wheel can have.
EPOCH = "315532800"
#: Symbols contain the names of nvcc's temporary files: without them, builds are reproducible.
STRIP = "-Wl,--strip-all"
#: Newer releases of torch compile with it; its folder is a cache mount of the builder.
CCACHE = {"CCACHE_DIR": "/root/.cache/ccache", "CCACHE_COMPILERCHECK": "content"}


def unpack(kind: str, target: Path) -> None:
    """Install the wheels of a list, if there is one."""
    listing = REQUIREMENTS / f"{kind}.txt"
    if listing.is_file():
        install.install(listing, "--target", str(target), mounted=WHEELS / kind)


def prepare() -> None:
    """Install the build tools, and the compilers as one CUDA_HOME if there are any."""
    unpack("tools", TOOLS)
    unpacked = Path("/unpacked")
    unpack("toolchain", unpacked)
    if unpacked.is_dir():
        if cuda_home.main(unpacked, CUDA, Path("/nothing")):
            sys.exit("E: the flavor's toolchain has no nvcc")
        shutil.rmtree(unpacked)
        compiler.stub_driver(CUDA)


def variables(job: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the build; what the user sets wins, but for what is found here."""
    path = [str(TOOLS / "bin"), environ["PATH"]]
    fixed = {"PYTHONPATH": f"{TORCH}:{TOOLS}", "SOURCE_DATE_EPOCH": EPOCH, **CCACHE}
    if job["cuda"]:
        path.insert(0, f"{job['cuda']}/bin")
        fixed["CUDA_HOME"] = job["cuda"]
    parallel = compiler.jobs(len(os.sched_getaffinity(0)), compiler.available_memory())
    return {
        **environ,
        "MAX_JOBS": str(parallel),
        "LDFLAGS": STRIP,
        **job["env"],
        **{name: str(OTHERS / name) for name in job["sources"]},
        **fixed,
        "PATH": ":".join(path),
    }


def build() -> None:
    """Build the wheel into OUT. Raises SystemExit if that fails."""
    job = json.loads((JOB / "job.json").read_text(encoding="utf-8"))
    sources.main(JOB / "sources.json", FILES, SOURCE, OTHERS)
    project = SOURCE / job["folder"]
    if not project.is_dir():
        sys.exit(f"E: the source contains no folder {job['folder']}")
    if (JOB / "setup.py").is_file():
        shutil.copyfile(JOB / "setup.py", project / "setup.py")
    unpack("torch", TORCH)
    runtimes = sorted(TORCH.glob("nvidia/cu[0-9]*"))
    if job["cuda"] and runtimes:
        cuda_home.main(Path("/nothing"), Path(job["cuda"]), runtimes[-1], runtimes[-1:])
    OUT.mkdir()
    argv = [sys.executable, str(Path(__file__).with_name("backend.py")), str(OUT)]
    done = subprocess.run(argv, cwd=project, env=variables(job, os.environ), check=False)
    if done.returncode:
        sys.exit(done.returncode)
    shutil.rmtree(TORCH)


if __name__ == "__main__":
    {"prepare": prepare, "build": build}[sys.argv[1]]()
