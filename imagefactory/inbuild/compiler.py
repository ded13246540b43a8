"""Compiles parts of vLLM with its own CMake files. Standard library only: it runs in the builder,
on the target.

    python compiler.py JOB OUT

JOB is a JSON file: ``source``, ``cuda`` (a CUDA_HOME; torch is on the path), ``archs``
(TORCH_CUDA_ARCH_LIST) and ``sources`` (..._SRC_DIR -> folder); then either ``extensions``, CMake
targets to build and to install below OUT, or ``units``, patterns of source files to compile one by
one for ``targets`` (such as sm_121a; as CMake says for none), of which OUT/report.json tells what
became of each. ``count`` is a regular expression: how often it occurs in the machine code of a unit
is told too.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

#: What one unit may take, bytes: nvfp4_scaled_mm_sm120_kernels.cu of vLLM 0.22.1 took 6.9 GB.
UNIT_MEMORY = 7 << 30
_SRC_DIR = re.compile(r"ENV\{(\w+_SRC_DIR)\}")
_GENCODE = re.compile(r"(?:-gencode|--generate-code)[= ]\"?arch=\S+")
_ARCH = re.compile(r"^arch = (\w+)", re.MULTILINE)


def memory(root: Path = Path("/")) -> int:
    """Bytes that may be used now.

    What is free, or what the control group leaves, whichever is less.
    """
    told = (root / "proc/meminfo").read_text(encoding="utf-8")
    free = int(re.findall(r"MemAvailable:\s+(\d+) kB", told)[0]) * 1024
    limit = root / "sys/fs/cgroup/memory.max"
    bound = limit.read_text(encoding="utf-8").strip() if limit.is_file() else "max"
    return free if bound == "max" else min(free, int(bound))


def jobs(cores: int, free: int) -> int:
    """How many units to compile at once: one a core, as far as the memory goes."""
    return max(1, min(cores, free // UNIT_MEMORY))


def leave_out(source: Path, given: Sequence[str]) -> list[str]:
    """Empty the CMake file of every external project whose sources are not ``given``; their names.

    What they make comes from the official wheel. Nothing is fetched here: it would not be locked.
    Raises SystemExit if vLLM itself needs sources that are not given.
    """
    main = set(_SRC_DIR.findall((source / "CMakeLists.txt").read_text(encoding="utf-8"))) - set(
        given
    )
    if main:
        sys.exit(
            f"E: vLLM's CMakeLists.txt needs {', '.join(sorted(main))}: name it in "
            "the flavor's build.sources"
        )
    left = []
    for file in sorted((source / "cmake/external_projects").glob("*.cmake")):
        if not set(_SRC_DIR.findall(file.read_text(encoding="utf-8"))) & set(given):
            file.write_text("", encoding="utf-8")
            left.append(file.stem)
    return left


def stub_driver(cuda: Path) -> None:
    """Give CUDA_HOME an empty libcuda to link against.

    The driver's is on the machine that runs the kernels.
    """
    stub = cuda / "lib/stubs/libcuda.so"
    stub.parent.mkdir(exist_ok=True)
    argv = ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", str(stub)]
    subprocess.run(argv, input=b"", check=True)


def headers_of_cutlass(given: dict[str, str]) -> list[str]:
    """What CUTLASS's own CMake file would say of its headers.

    For a tree without that file (FlashInfer's).
    """
    tree = Path(given.get("VLLM_CUTLASS_SRC_DIR", "/nothing"))
    if not (tree / "include/cutlass").is_dir() or (tree / "CMakeLists.txt").is_file():
        return []
    places = {
        "CUTLASS_DIR": "",
        "CUTLASS_INCLUDE_DIR": "/include",
        "CUTLASS_TOOLS_UTIL_INCLUDE_DIR": "/tools/util/include",
    }
    return [f"-D{name}={tree}{folder}" for name, folder in places.items()]


def configure(job: dict[str, Any], build: Path) -> None:
    """Run vLLM's CMake as its setup does, Release and with ccache.

    Raises SystemExit if that fails.
    """
    launchers = [
        f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX", "CUDA")
    ]
    argv = [
        *(
            "cmake",
            "-S",
            job["source"],
            "-B",
            str(build),
            "-G",
            "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
        ),
        *(
            "-DVLLM_TARGET_DEVICE=cuda",
            f"-DVLLM_PYTHON_EXECUTABLE={sys.executable}",
            "-DNVCC_THREADS=1",
        ),
        *(
            f"-DVLLM_PYTHON_PATH={os.environ['PYTHONPATH']}",
            f"-DCMAKE_CUDA_COMPILER={job['cuda']}/bin/nvcc",
        ),
        *("-DFETCHCONTENT_FULLY_DISCONNECTED=ON", f"-DFETCHCONTENT_BASE_DIR={build}/deps"),
        *("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *launchers, *headers_of_cutlass(job["sources"])),
    ]
    if subprocess.run(argv, check=False).returncode:
        sys.exit("E: vLLM's CMake files do not configure")


def compile_extensions(names: Sequence[str], build: Path, out: Path) -> None:
    """Build CMake targets and install them below ``out``. Raises SystemExit if one fails."""
    at_once = jobs(len(os.sched_getaffinity(0)), memory())
    print(f"compiling {', '.join(names)}, {at_once} units at once")
    for name in names:
        for argv in (
            ["cmake", "--build", str(build), "-j", str(at_once), "--target", name],
            # nvcc leaves the names of its temporary files in the symbols: stripped, two runs give
            # the same bytes
            [
                "cmake",
                "--install",
                str(build),
                "--prefix",
                str(out),
                "--component",
                name,
                "--strip",
            ],
        ):
            if subprocess.run(argv, check=False).returncode:
                sys.exit(f"E: the extension {name} was not compiled")
        if not list(out.glob(f"vllm/**/{name}*.so")):
            sys.exit(f"E: CMake's target {name} installs no library of that name")
    argv = ["ccache", "--show-stats"]
    subprocess.run(argv, check=False)


def compile_units(job: dict[str, Any], build: Path, work: Path) -> list[dict[str, Any]]:
    """Compile every unit that a pattern names, for every target; what became of each.

    Raises SystemExit for none.
    """
    source = Path(job["source"])
    known = {
        str(Path(entry["file"]).relative_to(source)): entry
        for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
        if Path(entry["file"]).is_relative_to(source)
    }
    chosen = [
        name
        for name in sorted(known)
        if any(fnmatch.fnmatch(name, pattern) for pattern in job["units"])
    ]
    if not chosen:
        sys.exit(
            f"E: no unit is named {' or '.join(job['units'])}; there are: {' '.join(sorted(known))}"
        )
    tasks = [(name, target) for name in chosen for target in job["targets"] or [""]]
    told = 0

    def one(task: tuple[str, str]) -> dict[str, Any]:
        nonlocal told
        row = compile_unit(known[task[0]], task[0], task[1], job["count"], work)
        told += 1
        print(
            (
                f"[{told}/{len(tasks)}] {row['unit']} for {row['target']}: "
                f"{row['error'] or 'compiled'}"
            ),
            flush=True,
        )
        return row

    with ThreadPoolExecutor(jobs(len(os.sched_getaffinity(0)), memory())) as pool:
        return list(pool.map(one, tasks))


def compile_unit(
    entry: dict[str, str], name: str, target: str, count: str, work: Path
) -> dict[str, Any]:
    """Compile one unit as CMake would, or for ``target`` in the place of its own ones."""
    command, own = (
        entry["command"],
        sorted(set(re.findall(r"code=\[?\"?(sm_\w+)", entry["command"]))),
    )
    if target:
        command = (
            _GENCODE.sub("", command)
            + f" -gencode arch=compute_{target.removeprefix('sm_')},code={target}"
        )
    output = work / f"{name.replace('/', '.')}.{target or 'own'}.o"
    argv = shlex.split(command)
    argv[argv.index("-o") + 1] = str(output)
    if Path(argv[0]).name != "ccache":
        argv.insert(0, "ccache")
    began = time.monotonic()
    told = output.with_suffix(".ccache")
    told.unlink(missing_ok=True)
    with subprocess.Popen(
        argv,
        cwd=entry["directory"],
        env={**os.environ, "CCACHE_STATSLOG": str(told)},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
    ) as process:
        said = process.stdout.read().decode(errors="replace") if process.stdout else ""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    failed = process.returncode != 0
    wrong = [
        line for line in said.splitlines() if re.search(r"\berror\b|not supported", line)
    ] or said.splitlines()
    return {
        "unit": name,
        "target": target or " ".join(own) or "host",
        "seconds": round(time.monotonic() - began, 1),
        "memory": used.ru_maxrss * 1024,
        "cached": told.is_file() and "cache_hit" in told.read_text(encoding="utf-8"),
        "error": (wrong or [f"exit {process.returncode}"])[0] if failed else "",
        "code": {} if failed else machine_code(output, count, _disassemble),
    }


def _disassemble(file: Path) -> str:
    """The machine code of an object file as text. Raises SystemExit if nothing here can tell."""
    argv = ["cuobjdump", "-sass", str(file)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit(
            "E: no cuobjdump: the flavor's build.tools need nvidia-cuda-cuobjdump "
            "and nvidia-cuda-nvdisasm"
        )
    if done.returncode or "fatal" in done.stderr:
        sys.exit(f"E: cuobjdump does not read {file.name}: {done.stderr.strip()}")
    return done.stdout


def machine_code(
    file: Path, count: str, disassemble: Callable[[Path], str]
) -> dict[str, dict[str, int]]:
    """For every GPU that ``file`` has code for.

    How many instructions, and how many of those match ``count``.
    """
    found: dict[str, dict[str, int]] = {}
    parts = _ARCH.split(disassemble(file))
    for arch, text in zip(parts[1::2], parts[2::2], strict=True):
        lines = [
            line for line in text.splitlines() if re.search(r"/\*[0-9a-f]{4,}\*/\s+\S.*;", line)
        ]
        row = found.setdefault(arch, {"instructions": 0, "matching": 0})
        row["instructions"] += len(lines)
        row["matching"] += sum(bool(re.search(count, line)) for line in lines) if count else 0
    return found


def main(file: Path, out: Path) -> int:
    """Do the job."""
    job = json.loads(file.read_text(encoding="utf-8"))
    os.environ |= {"TORCH_CUDA_ARCH_LIST": job["archs"], "CUDA_HOME": job["cuda"], **job["sources"]}
    left = leave_out(Path(job["source"]), list(job["sources"]))
    if left:
        print(f"from the official wheel, for their sources are not given: {', '.join(left)}")
    stub_driver(Path(job["cuda"]))
    build = Path(job["source"]) / "build-cmake"
    configure(job, build)
    out.mkdir(parents=True, exist_ok=True)
    if job.get("extensions"):
        compile_extensions(job["extensions"], build, out)
    else:
        report = compile_units(job, build, build)
        (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
