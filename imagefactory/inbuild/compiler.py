"""Compiles parts of vLLM with its own CMake files, in the builder, on the target platform.

    python compiler.py JOB OUT

JOB is a JSON file with ``source``, ``cuda`` (a CUDA_HOME; torch is on the path), ``archs``
(TORCH_CUDA_ARCH_LIST), ``sources`` (..._SRC_DIR -> folder) and either of:

``extensions``
    CMake targets to build and install below OUT.
``units``
    Patterns of source files to compile one by one, for each of ``targets`` (such as sm_121a; if
    there are none, for CMake's own). OUT/report.json gets the result of each, with the number of
    instructions of its machine code that match the regular expression ``count``.

Standard library only.
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

#: Memory to reserve for one unit, bytes: vLLM 0.22.1's nvfp4_scaled_mm_sm120_kernels.cu took
#: 6.9 GB.
UNIT_MEMORY = 7 << 30
_SRC_DIR = re.compile(r"ENV\{(\w+_SRC_DIR)\}")
_GENCODE = re.compile(r"(?:-gencode|--generate-code)[= ]\"?arch=\S+")
_ARCH = re.compile(r"^arch = (\w+)", re.MULTILINE)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that may be used now: free memory, or the control group's limit if that is less."""
    meminfo = (root / "proc/meminfo").read_text(encoding="utf-8")
    free = int(re.findall(r"MemAvailable:\s+(\d+) kB", meminfo)[0]) * 1024
    file = root / "sys/fs/cgroup/memory.max"
    limit = file.read_text(encoding="utf-8").strip() if file.is_file() else "max"
    return free if limit == "max" else min(free, int(limit))


def jobs(cores: int, free: int) -> int:
    """How many units to compile in parallel: one per core, if memory allows."""
    return max(1, min(cores, free // UNIT_MEMORY))


def disable_projects(source: Path, given: Sequence[str]) -> list[str]:
    """Empty the CMake files of external projects whose sources are not ``given``; their names.

    CMake would download those sources, which are not locked; what these projects build is taken
    from the official wheel. Raises SystemExit if vLLM itself needs sources that are not given.
    """
    main = set(_SRC_DIR.findall((source / "CMakeLists.txt").read_text(encoding="utf-8"))) - set(
        given
    )
    if main:
        sys.exit(
            f"E: vLLM's CMakeLists.txt needs {', '.join(sorted(main))}: add it to the "
            "flavor's build.sources"
        )
    disabled = []
    for file in sorted((source / "cmake/external_projects").glob("*.cmake")):
        if not set(_SRC_DIR.findall(file.read_text(encoding="utf-8"))) & set(given):
            file.write_text("", encoding="utf-8")
            disabled.append(file.stem)
    return disabled


def stub_driver(cuda: Path) -> None:
    """Add an empty libcuda to link against; the real one comes with the driver at run time."""
    stub = cuda / "lib/stubs/libcuda.so"
    stub.parent.mkdir(exist_ok=True)
    argv = ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", str(stub)]
    subprocess.run(argv, input=b"", check=True)


def cutlass_options(given: dict[str, str]) -> list[str]:
    """CMake options for the headers of a CUTLASS tree without a CMake file, such as FlashInfer's.

    They are the variables that CUTLASS's CMake file would set.
    """
    tree = Path(given.get("VLLM_CUTLASS_SRC_DIR", "/nothing"))
    if not (tree / "include/cutlass").is_dir() or (tree / "CMakeLists.txt").is_file():
        return []
    folders = {
        "CUTLASS_DIR": "",
        "CUTLASS_INCLUDE_DIR": "/include",
        "CUTLASS_TOOLS_UTIL_INCLUDE_DIR": "/tools/util/include",
    }
    return [f"-D{name}={tree}{folder}" for name, folder in folders.items()]


def configure(job: dict[str, Any], build: Path) -> None:
    """Run CMake as vLLM's setup.py does, for a release build with ccache.

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
        *("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *launchers, *cutlass_options(job["sources"])),
    ]
    if subprocess.run(argv, check=False).returncode:
        sys.exit("E: configuring vLLM with CMake failed")


def compile_extensions(names: Sequence[str], build: Path, out: Path) -> None:
    """Build CMake targets and install them below ``out``. Raises SystemExit if one fails."""
    parallel = jobs(len(os.sched_getaffinity(0)), available_memory())
    print(f"compiling {', '.join(names)}, {parallel} units in parallel")
    for name in names:
        for argv in (
            ["cmake", "--build", str(build), "-j", str(parallel), "--target", name],
            # symbols contain the names of nvcc's temporary files: stripped, builds are reproducible
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
                sys.exit(f"E: compiling the extension {name} failed")
        if not list(out.glob(f"vllm/**/{name}*.so")):
            sys.exit(f"E: the CMake target {name} installs no library with that name")
    argv = ["ccache", "--show-stats"]
    subprocess.run(argv, check=False)


def compile_units(job: dict[str, Any], build: Path, work: Path) -> list[dict[str, Any]]:
    """Compile each unit that matches a pattern, for each target; the results.

    Raises SystemExit if no unit matches.
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
            f"E: no unit matches {' or '.join(job['units'])}; available: {' '.join(sorted(known))}"
        )
    tasks = [(name, target) for name in chosen for target in job["targets"] or [""]]
    finished = 0

    def one(task: tuple[str, str]) -> dict[str, Any]:
        nonlocal finished
        row = compile_unit(known[task[0]], task[0], task[1], job["count"], work)
        finished += 1
        result = row["error"] or "compiled"
        print(f"[{finished}/{len(tasks)}] {row['unit']} for {row['target']}: {result}", flush=True)
        return row

    with ThreadPoolExecutor(jobs(len(os.sched_getaffinity(0)), available_memory())) as pool:
        return list(pool.map(one, tasks))


def compile_unit(
    entry: dict[str, str], name: str, target: str, count: str, work: Path
) -> dict[str, Any]:
    """Compile one unit as CMake would, or for ``target`` instead of CMake's own targets."""
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
    statistics = output.with_suffix(".ccache")
    statistics.unlink(missing_ok=True)
    with subprocess.Popen(
        argv,
        cwd=entry["directory"],
        env={**os.environ, "CCACHE_STATSLOG": str(statistics)},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
    ) as process:
        log = process.stdout.read().decode(errors="replace") if process.stdout else ""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    failed = process.returncode != 0
    errors = [
        line for line in log.splitlines() if re.search(r"\berror\b|not supported", line)
    ] or log.splitlines()
    return {
        "unit": name,
        "target": target or " ".join(own) or "host",
        "seconds": round(time.monotonic() - began, 1),
        "memory": used.ru_maxrss * 1024,
        "cached": statistics.is_file() and "cache_hit" in statistics.read_text(encoding="utf-8"),
        "error": (errors or [f"exit {process.returncode}"])[0] if failed else "",
        "code": {} if failed else machine_code(output, count, _disassemble),
    }


def _disassemble(file: Path) -> str:
    """The machine code of an object file as text. Raises SystemExit if it cannot be read."""
    argv = ["cuobjdump", "-sass", str(file)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit(
            "E: no cuobjdump: the toolchain in the flavor's build.tools needs "
            "nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm"
        )
    if done.returncode or "fatal" in done.stderr:
        sys.exit(f"E: cuobjdump cannot read {file.name}: {done.stderr.strip()}")
    return done.stdout


def machine_code(
    file: Path, count: str, disassemble: Callable[[Path], str]
) -> dict[str, dict[str, int]]:
    """For each GPU target in ``file``: how many instructions it has, and how many match."""
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
    """Compile what the job ``file`` asks for into ``out``; the exit status."""
    job = json.loads(file.read_text(encoding="utf-8"))
    os.environ |= {"TORCH_CUDA_ARCH_LIST": job["archs"], "CUDA_HOME": job["cuda"], **job["sources"]}
    disabled = disable_projects(Path(job["source"]), list(job["sources"]))
    if disabled:
        print(f"taken from the official wheel (no sources given): {', '.join(disabled)}")
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
