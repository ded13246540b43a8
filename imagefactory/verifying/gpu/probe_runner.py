"""Runs the probes on the GPU of this machine, in any Python with torch, and judges them.

``python probe_runner.py`` prints a line for each probe, ``--json`` what they observed. Exit codes:
0 if all are right or the GPU itself lacks what they need, 1 if not, 3 if there is no torch.

Each probe has a process and a time limit of its own, so that one that crashes or hangs harms no
other: it is forked after torch was imported, and before CUDA was.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

SCHEMA = 1
HERE = Path(__file__).parent
PACKAGES = ("torch", "triton", "flashinfer-python", "vllm", "transformers")
#: Seconds for one probe: the slowest compiles with nvcc.
TIMEOUT = 120.0
ENDINGS = {"pass": 0, "fail": 1, "skip": 1}


def load(path: Path) -> ModuleType:
    """The module in ``path``, which need not be in a package."""
    spec = importlib.util.spec_from_file_location(f"gpu_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def all_probes() -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Every probe with the faults that may be planted in it, by name."""
    found: dict[str, tuple[Any, tuple[str, ...]]] = {}
    for path in sorted(HERE.glob("probes/[!_]*.py")):
        module = load(path)
        for name, function in module.PROBES.items():
            found[name] = function, module.FAULTS[name]
    return found


def run_one(torch: Any, function: Any, plant: str, timeout: float) -> dict[str, Any]:
    """What a probe reports, in a process of its own."""
    began = time.monotonic()
    receiving, sending = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_child, args=(torch, function, plant, sending))
    process.start()
    sending.close()
    said: dict[str, Any] = {"facts": {}, "error": f"no end after {timeout:g} s"}
    try:
        if receiving.poll(timeout):
            said = receiving.recv()
    except EOFError:
        process.join(5)
        said["error"] = f"its process ended with {process.exitcode}"
    process.kill()
    process.join()
    return {**said, "seconds": round(time.monotonic() - began, 2)}


def _child(torch: Any, function: Any, plant: str, sending: Connection) -> None:
    os.dup2(2, 1)  # standard output is the report's
    try:
        said = {"facts": function(torch, plant), "error": ""}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        where = "".join(traceback.format_exception(error)[-2:])
        said = {"facts": {}, "error": f"{type(error).__name__}: {error}\n{where}"[:4000]}
    sending.send(said)


def versions() -> dict[str, str]:
    """The versions of those of PACKAGES that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def report(torch: Any, names: Sequence[str], plants: Sequence[str], timeout: float) -> Any:
    """Run the probes ``names``, and again with each of ``plants`` (``probe:fault``)."""
    known = all_probes()
    planted = {}
    began = time.monotonic()
    ran = {name: run_one(torch, known[name][0], "", timeout) for name in names}
    seconds = round(time.monotonic() - began, 2)
    for plant in plants:
        name, _, fault = plant.partition(":")
        planted[plant] = run_one(torch, known[name][0], fault, timeout)
    return {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {**versions(), "torch": torch.__version__},
        "seconds": seconds,
        "probes": ran,
        "planted": planted,
    }


def show(made: Any) -> int:
    """Print a line for each probe and planted fault; returns the exit code."""
    judging = load(HERE / "judging.py")
    code = 0
    for name, ran in made["probes"].items():
        judged = judging.judge(name, made)
        code |= 0 if judged.excused else ENDINGS[judged.outcome]
        print(f"{name:14} {judged.outcome:4} {ran['seconds']:6.1f} s  {judged.detail}")  # noqa: T201
    for plant, ran in made["planted"].items():
        name = plant.partition(":")[0]
        judged = judging.judge(name, {**made, "probes": {**made["probes"], name: ran}})
        caught = judged.excused or (judged.outcome == "fail" and not ran["error"])
        code |= not caught
        verdict = judged.outcome if caught else "NOT FOUND"
        print(f"planted {plant}: {verdict}: {judged.detail}")  # noqa: T201
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    known = all_probes()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print what was observed, as JSON")
    parser.add_argument("--only", action="append", choices=known, help="run this probe; repeatable")
    parser.add_argument("--plants", action="store_true", help="plant every fault afterwards")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for one probe")
    options = parser.parse_args(argv)
    try:
        import torch  # noqa: PLC0415 - says what is missing
    except ImportError as error:
        print(f"no torch in {sys.executable}: {error}", file=sys.stderr)  # noqa: T201
        return 3
    names = options.only or list(known)
    plants = [f"{name}:{fault}" for name in names for fault in known[name][1]]
    made = report(torch, names, plants if options.plants else (), options.timeout)
    if options.json:
        print(json.dumps(made, indent=1))  # noqa: T201
        return 0
    return show(made)


if __name__ == "__main__":
    sys.exit(main())
