"""Looks at an image from the inside and prints what it finds as one JSON object, on the last line
of standard output.

It runs in the image, fed to its Python on standard input, so it knows the standard library only and
works on Python
3.11 and later. It judges nothing: a torch that cannot be imported is a finding, not an error.
"""

from __future__ import annotations

import csv
import ctypes
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

SITE = Path(sysconfig.get_path("purelib"))
HOME = Path("/opt/imagefactory")
#: Much of a proof's time is Python starting, which takes minutes where the image's platform is
#: emulated.
PROOF_TIMEOUT = 600
OUTPUT_TAIL = 2000
#: What names the image's compilers.
COMPILERS = ("CUDA_HOME", "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
PTX = ".version 8.8\n.target %s\n.address_size 64\n.visible .entry k()\n{\n\tret;\n}\n"
#: Includes what kernels that are compiled at run time include, and converts to FP4, which a target
#: without its suffix (plain sm_121) has no instruction for.
KERNEL = """\
#include <cublasLt.h>
#include <cuda_fp4.h>
#include <curand_kernel.h>
#include <nvrtc.h>
__global__ void k(const float2* in, __nv_fp4x2_storage_t* out) {
  out[threadIdx.x] = __nv_cvt_float2_to_fp4x2(in[threadIdx.x], __NV_E2M1, cudaRoundNearest);
}
"""
#: Files without a use at run time, wherever they lie in site-packages, but for libraries that
#: kernels are linked with.
UNUSED = (".pyc", ".pyo", ".whl", ".a")
LINKED = ("libnvshmem_device.a", "libcudadevrt.a", "libcudart_static.a")
#: What installers leave behind.
CACHES = ("/root/.cache/pip", "/root/.cache/uv", "/var/lib/apt/lists")
#: Functions of the CUDA driver, as opposed to those of the CUDA runtime (`cudaMalloc`) and of
#: cuBLAS (`cublasCreate`).
DRIVER_SYMBOL = re.compile(r"\bU (cu[A-Z]\w*)")


def probe(home: Path, site: Path) -> Facts:
    """All facts about this image."""
    # Before torch: its import may change what is on the module path, and leaves compiled Python for
    # the next one.
    distributions, contents = (
        installed(),
        contents_facts(site, Path(os.environ.get("CUDA_HOME") or site)),
    )
    sys.dont_write_bytecode = False
    manifest = read_manifest(home / "manifest.json")
    torch = torch_facts(site)
    shared = shared_objects(site)
    patches = manifest.get("patches", []) if manifest else []
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "distributions": distributions,
        "contents": contents,
        "manifest": manifest,
        "torch": torch,
        "extensions": extension_facts(site, shared, cuda=bool(torch.get("cuda"))),
        "files": file_hashes(site, patches),
        "proofs": [proof_facts(home / "proofs", site, str(patch["name"])) for patch in patches],
        "toolchain": toolchain_facts(os.environ)
        if manifest and manifest.get("toolchain")
        else None,
    }


def installed() -> list[Facts]:
    """Every distribution on the module path, by normalized name."""
    found = [
        {
            "name": re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower(),
            "version": distribution.version,
        }
        for distribution in importlib.metadata.distributions()
    ]
    return sorted(found, key=lambda fact: (fact["name"], fact["version"]))


def contents_facts(site: Path, cuda_home: Path) -> Facts:
    """What is in the image and should not be, and what is not in it and should be."""
    began = time.monotonic()
    unused, dangling = [], []
    for root in dict.fromkeys((site, cuda_home)):
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)  # noqa: PTH118 - a path object for each of 60,000 files takes seconds
                if name.endswith(UNUSED) and root == site and name not in LINKED:
                    unused.append(path)
                elif os.path.islink(path) and not os.path.exists(path):  # noqa: PTH110, PTH114
                    dangling.append(path)
    unused += [str(path) for cache in CACHES for path in Path(cache).glob("*")]
    missing = [
        file
        for distribution in importlib.metadata.distributions()
        for file in recorded(distribution)
        if not os.path.lexists(site / file)
    ]
    seconds = round(time.monotonic() - began, 1)
    return {
        "unused": sorted(unused),
        "dangling": sorted(dangling),
        "missing": sorted(missing),
        "seconds": seconds,
    }


def read_manifest(path: Path) -> Facts | None:
    """What the build wrote down about the image."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def torch_facts(site: Path) -> Facts:
    """What torch says about itself, and whether its files are those that were installed."""
    began = time.monotonic()
    facts: Facts = {
        "version": None,
        "cuda": None,
        "arch_flags": [],
        "error": None,
        "damaged": damaged("torch", site),
    }
    try:
        import torch  # type: ignore[import-not-found]  # noqa: PLC0415

        facts["version"] = str(torch.__version__)
        facts["cuda"] = torch.version.cuda
        flags = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001
        facts["arch_flags"] = (flags() or "").split() if flags else []
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        facts["error"] = f"{type(error).__name__}: {error}"
    return {**facts, "seconds": round(time.monotonic() - began, 1)}


def recorded(distribution: importlib.metadata.Distribution) -> dict[str, int | None]:
    """The files that were installed, with their sizes.

    `distribution.files` hides missing ones from Python 3.12 on.
    """
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    return {row[0]: int(row[2]) if row[2] else None for row in rows if len(row) == 3}


def damaged(name: str, site: Path) -> list[str]:
    """Files of the distribution that are missing or of another size than its RECORD says (hashing
    takes too long).
    """
    try:
        files = recorded(importlib.metadata.distribution(name))
    except importlib.metadata.PackageNotFoundError:
        return []
    faults = []
    for file, size in files.items():
        # Console scripts lie outside and get the interpreter's path written into them.
        if file.startswith("../"):
            continue
        path = site / file
        if not path.is_file():
            faults.append(f"{file}: missing")
        elif size is not None and path.stat().st_size != size:
            faults.append(f"{file}: {path.stat().st_size} bytes, not {size}")
    return faults


def shared_objects(site: Path) -> list[str]:
    """vLLM's compiled extensions: those its RECORD names, whether they are there or not, and those
    that are there.

    Their names differ between versions, so they are read from the wheel and not known here. A wheel
    may bring one file for each Python (vLLM's DeepGEMM does); those that name another one are never
    imported by this one.
    """
    names = {path.relative_to(site).as_posix() for path in (site / "vllm").rglob("*.so")}
    for distribution in importlib.metadata.distributions():
        names |= {
            file
            for file in recorded(distribution)
            if file.startswith("vllm/") and file.endswith(".so")
        }
    return sorted(name for name in names if not for_another_python(name))


def for_another_python(name: str) -> bool:
    """Whether a file name such as ``_C.cpython-310-aarch64-linux-gnu.so`` is tagged for another
    CPython than this.
    """
    tag = re.search(r"\.cpython-(\d+)", name)
    return tag is not None and tag[1] != f"{sys.version_info.major}{sys.version_info.minor}"


def extension_facts(site: Path, names: list[str], *, cuda: bool) -> Facts:
    """Whether each extension loads beside torch.

    With a stand-in for the CUDA driver where there is none.
    """
    began = time.monotonic()
    facts: Facts = {"stubbed": False, "stub_error": None}
    with tempfile.TemporaryDirectory() as folder:
        if cuda and not loads("libcuda.so.1"):
            facts["stub_error"] = load_stub_driver([site / name for name in names], Path(folder))
            facts["stubbed"] = facts["stub_error"] is None
        facts["loaded"] = [{"path": name, "error": load_in_child(site / name)} for name in names]
    return {**facts, "seconds": round(time.monotonic() - began, 1)}


def loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def load_stub_driver(extensions: list[Path], folder: Path) -> str | None:
    """Compile a libcuda.so.1 with every driver function that `extensions` ask for, and load it; the
    reason if not.

    Its functions are never called here. It is found again by its soname, so nothing is left in the
    image or its paths.
    """
    compiler, nm = (shutil.which(name) for name in ("gcc", "nm"))
    if compiler is None or nm is None:
        return "no GPU driver, and no gcc to make a stand-in for it"
    present = [str(path) for path in extensions if path.is_file()]
    listing = subprocess.run(
        [nm, "-D", "--undefined-only", *present],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    ).stdout
    symbols = sorted(set(DRIVER_SYMBOL.findall(listing)))
    source, library = folder / "stub.c", folder / "libcuda.so.1"
    # 100 is CUDA_ERROR_NO_DEVICE.
    source.write_text(
        "".join(f"int {symbol}(void) {{ return 100; }}\n" for symbol in symbols), encoding="ascii"
    )
    made = subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-Wl,-soname,libcuda.so.1",
            "-o",
            str(library),
            str(source),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if made.returncode != 0:
        return f"gcc could not make a stand-in for the GPU driver: {made.stderr[-OUTPUT_TAIL:]}"
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return None


def load_in_child(path: Path) -> str | None:
    """Load the library in a child process; the reason if it does not load.

    A child, because extensions register the same names (an image has one for each instruction set)
    and a broken one may end the process. A forked one, because importing torch again for each takes
    minutes where it is emulated.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            ctypes.CDLL(
                str(path)
            )  # resolves every symbol, unlike an import that stops at the first one
            message = b"loaded"
        except BaseException as error:  # noqa: BLE001 - the child must not come back
            message = str(error).encode()
        os.write(writer, message[-OUTPUT_TAIL:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if text == "loaded":
        return None
    return text or f"loading it ended the process (exit {os.waitstatus_to_exitcode(status)})"


def file_hashes(site: Path, patches: list[Facts]) -> dict[str, str | None]:
    """sha256 of every file that a patch touched; None for one that is not there."""
    names = {
        name for patch in patches for name in (*patch.get("files", {}), *patch.get("created", []))
    }
    hashes: dict[str, str | None] = {}
    for name in sorted(names):
        path = site / name
        hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    return hashes


def toolchain_facts(environ: Mapping[str, str]) -> Facts:
    """Whether the compilers that the environment names are there.

    And compile for the GPU of this image.
    """
    began = time.monotonic()
    named = {name: environ.get(name, "") for name in COMPILERS}
    architecture = "sm_" + environ.get("TORCH_CUDA_ARCH_LIST", "12.1a").split()[0].split(";")[
        0
    ].replace(".", "")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty.ptx").write_text(PTX % architecture, encoding="ascii")
        (folder / "k.cu").write_text(KERNEL, encoding="ascii")
        nvcc = str(Path(named["CUDA_HOME"], "bin", "nvcc"))
        virtual = architecture.replace("sm_", "compute_")
        compiled = ended(
            [
                nvcc,
                "-c",
                "k.cu",
                "-o",
                "k.o",
                "--keep",
                f"-gencode=arch={virtual},code={architecture}",
            ],
            folder,
        )
        made = "".join(path.read_text(errors="replace") for path in folder.glob("k*.ptx"))
        return {
            "architecture": architecture,
            "missing": [
                f"{key}={value}"
                for key, value in named.items()
                if not value or not Path(value).exists()
            ],
            "ptxas": ended(
                [
                    named["TRITON_PTXAS_PATH"],
                    f"-arch={architecture}",
                    "empty.ptx",
                    "-o",
                    "empty.cubin",
                ],
                folder,
            ),
            "nvcc": compiled,
            "hardware_conversions": len(re.findall(r"cvt\.[a-z.]*e2m1x2", made)),
            "seconds": round(time.monotonic() - began, 1),
        }


def ended(argv: list[str], folder: Path) -> Facts:
    """How a compiler ended; exit code None if it could not be started or did not end."""
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROOF_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"code": None, "output": str(error)}
    return {"code": done.returncode, "output": (done.stdout + done.stderr)[-OUTPUT_TAIL:].strip()}


def proof_facts(proofs: Path, site: Path, name: str) -> Facts:
    """How the proof of one patch ends; exit code None if there is no proof or it does not end."""
    began = time.monotonic()
    script = proofs / name / "proof.py"
    code: int | None = None
    if not script.is_file():
        output = f"there is no {script}"
    else:
        try:
            done = subprocess.run(
                [sys.executable, "-B", str(script), str(site)],
                env={**os.environ, "PYTHONPATH": str(proofs)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=PROOF_TIMEOUT,
                check=False,
            )
            code, output = done.returncode, done.stdout[-OUTPUT_TAIL:].strip()
        except subprocess.TimeoutExpired:
            output = f"no end after {PROOF_TIMEOUT} s"
    return {
        "patch": name,
        "code": code,
        "output": output,
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    print(json.dumps(probe(HOME, SITE)))  # noqa: T201
