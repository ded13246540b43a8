"""How the probes of a GPU are run, and where the verdicts on what they report begin."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu.records import load_all
from support.verify_fakes import image_info

from imagefactory.errors import SetupError, fail
from imagefactory.system.engine import Limits
from imagefactory.system.shell import Completed
from imagefactory.verifying.gpu import judging, probe_runner, running
from imagefactory.verifying.gpu.judging import FAIL, PASS, SKIP

REPORT = load_all()["nvidia-h200-2026-11-23"]["probes"]
TORCH = SimpleNamespace(__version__="2.11.0")


def says(torch: Any, plant: str) -> dict[str, Any]:
    os.write(1, b"into the report")  # as libraries in C do
    return {"torch": torch.__version__, "plant": plant}


def fails(_: Any, plant: str) -> dict[str, Any]:
    raise ValueError(plant)


def ends(_: Any, plant: str) -> dict[str, Any]:
    os._exit(7)


def hangs(_: Any, plant: str) -> dict[str, Any]:
    time.sleep(60)
    return {}


def test_a_probe_has_a_process_of_its_own_that_may_fail_end_or_hang(
    capfd: pytest.CaptureFixture[str],
) -> None:
    right = probe_runner.run_one(TORCH, says, "x", 30)
    assert 0 <= right.pop("seconds") < 30
    assert right == {"facts": {"torch": "2.11.0", "plant": "x"}, "error": ""}
    assert capfd.readouterr() == ("", "into the report")
    wrong = probe_runner.run_one(TORCH, fails, "x", 30)
    assert wrong["facts"] == {}
    assert wrong["error"].startswith("ValueError: x\n")
    assert "raise ValueError(plant)" in wrong["error"]
    gone = probe_runner.run_one(TORCH, ends, "x", 30)
    assert (gone["facts"], gone["error"]) == ({}, "its process ended with 7")
    late = probe_runner.run_one(TORCH, hangs, "x", 0.1)
    assert (late["facts"], late["error"]) == ({}, "no end after 0.1 s")
    assert late["seconds"] >= 0.1


def test_every_probe_is_found_with_its_faults() -> None:
    found = probe_runner.all_probes()
    assert [*found] == [*REPORT["probes"]]
    planted = [f"{name}:{fault}" for name, (_, faults) in found.items() for fault in faults]
    assert planted == [*REPORT["planted"]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Probes that report at once what they did on a real GPU; which ran, with their limits."""
    ran, known = list[tuple[str, float]](), probe_runner.all_probes()
    names = {function: name for name, (function, _) in known.items()}
    monkeypatch.setattr(probe_runner, "all_probes", lambda: known)
    monkeypatch.setitem(sys.modules, "torch", TORCH)

    def run_one(torch: Any, function: Any, plant: str, timeout: float) -> Any:
        assert torch is TORCH
        name = names[function]
        ran.append((f"{name}:{plant}" if plant else name, timeout))
        return REPORT["planted"][f"{name}:{plant}"] if plant else REPORT["probes"][name]

    monkeypatch.setattr(probe_runner, "run_one", run_one)
    return ran


def test_without_options_every_probe_runs_once_and_is_judged(
    ran: list[tuple[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe_runner.main([]) == 0
    assert ran == [(name, probe_runner.TIMEOUT) for name in REPORT["probes"]]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [name, judging.judge(name, REPORT).outcome] for name in REPORT["probes"]
    ]


def test_the_report_has_what_was_asked_for_and_the_faults_after_it(
    ran: list[tuple[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--json", "--plants", "--timeout", "9", "--only", "memory", "--only", "triton"]
    assert probe_runner.main(words) == 0
    made = json.loads(capsys.readouterr().out)
    faults = ["memory:lost-write", "memory:no-figures", "triton:no-mask", "triton:wrong-arch"]
    assert ran == [(name, 9.0) for name in ("memory", "triton", *faults)]
    assert made.keys() == REPORT.keys()
    assert made["schema"] == REPORT["schema"] == 1
    assert made["versions"]["torch"] == "2.11.0"
    assert {*made["versions"], *REPORT["versions"]} <= {*probe_runner.PACKAGES}
    assert (made["python"], made["machine"]) == (
        f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
        os.uname().machine,
    )
    assert [*made["probes"]] == ["memory", "triton"]
    assert [*made["planted"]] == faults
    assert made["probes"]["memory"] == REPORT["probes"]["memory"]


def test_the_exit_code_is_1_for_what_is_wrong_missing_or_not_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def code(**changes: Any) -> int:
        made = copy.deepcopy(REPORT)
        for part, name, key, value in changes.values():
            made[part][name][key] = value
        return probe_runner.show(made)

    assert code() == 0
    assert code(a=("probes", "triton", "error", "gone")) == 1
    assert code(a=("probes", "triton", "facts", {"missing": "no triton"})) == 1
    assert code(a=("probes", "gemm-fp4", "facts", {"unsupported": "by this GPU"})) == 0
    right = REPORT["probes"]["memory"]["facts"]
    assert "NOT FOUND" not in capsys.readouterr().out
    assert code(a=("planted", "memory:lost-write", "facts", right)) == 1
    assert "planted memory:lost-write: NOT FOUND" in capsys.readouterr().out
    assert code(a=("planted", "memory:lost-write", "error", "it crashed")) == 1


def test_without_torch_there_is_nothing_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert probe_runner.main([]) == 3
    assert capsys.readouterr().err.startswith(f"no torch in {sys.executable}: ")


class Engine:
    """An engine that notes what it runs."""

    def __init__(self, *, code: int = 0, out: str = "", err: str = "") -> None:
        self.done = Completed(argv=(), code=code, out=out, err=err)
        self.ran: tuple[Any, Any] = ((), {})

    def run(self, *words: Any, **options: Any) -> Completed:
        self.ran = words, options
        return self.done


def test_the_probes_run_in_a_container_with_gpus_and_without_a_network() -> None:
    engine, image = Engine(out=json.dumps(REPORT)), image_info()
    found = running.observe(engine, image)  # type: ignore[arg-type]
    assert found.report == REPORT
    program = "/opt/imagefactory-gpu/probe_runner.py"
    assert engine.ran[0] == (image.digest, ("-I", "-B", program, "--json"))
    assert engine.ran[1] == {
        "platform": image.platform,
        "entrypoint": "/opt/venv/bin/python",
        "env": {"HOME": "/tmp", "TRITON_CACHE_DIR": "/tmp/triton"},
        "mounts": [(Path(running.__file__).parent, "/opt/imagefactory-gpu")],
        "network": "none",
        "timeout": running.TIMEOUT,
        "limits": Limits(memory=32 << 30),
        "most": running.MOST,
        "gpus": True,
    }


def test_a_report_that_is_none_is_an_error_with_what_was_said_last() -> None:
    for err, last in (("one\ntwo\n", "two"), ("", "no output")):
        found = running.observe(Engine(code=3, out="x", err=err), image_info())  # type: ignore[arg-type]
        assert found.report is None
        assert found.error.endswith(f"; exit 3: {last}")


def test_probes_that_do_not_end_are_an_error_of_the_image_and_no_gpu_is_the_machines() -> None:
    class Raising(Engine):
        def run(self, *_: Any, **__: Any) -> Completed:
            raise fail(SetupError, self.done.err, "no end")

    late: Any = Raising(err="command-timeout")
    running.check(late, image_info())
    found = running.observe(late, image_info())
    assert (found.report, found.error) == (None, "the probes are still running after 600 s")
    without: Any = Raising(err="gpu-missing")
    for ask in (running.check, running.observe):
        with pytest.raises(SetupError):
            ask(without, image_info())


def judged(name: str, **changes: Any) -> str:
    facts = {**REPORT["probes"][name]["facts"], **changes}
    probes = {**REPORT["probes"], name: {"facts": facts, "error": ""}}
    return judging.judge(name, {"probes": probes}).outcome


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_90", (9, 0), True),
        ("sm_80", (9, 0), False),
        ("sm_100", (9, 0), False),
        ("sm_120", (12, 1), True),
        ("sm_121", (12, 0), False),
        ("sm_120f", (12, 1), True),
        ("sm_120a", (12, 1), False),
        ("sm_121a", (12, 1), True),
        ("sm_90a", (9, 0), True),
        ("compute_90", (12, 1), True),
        ("compute_121", (12, 1), True),
        ("compute_121", (12, 0), False),
        ("compute_90a", (12, 1), False),
    ],
)
def test_code_runs_on_its_architecture_and_ptx_on_later_ones(
    arch: str, capability: tuple[int, int], *, runs: bool
) -> None:
    changes = {"archs": [arch], "capability": [*capability]}
    assert judged("identity", **changes) == (PASS if runs else FAIL)


@pytest.mark.parametrize(
    ("driver", "runtime", "compatible", "outcome"),
    [
        ([13, 0], [13, 0], False, PASS),
        ([13, 1], [13, 0], False, PASS),
        ([13, 0], [13, 2], False, PASS),  # compatible within a major version
        ([12, 9], [13, 0], False, FAIL),
        ([12, 9], [13, 0], True, PASS),
        ([13, 0], [12, 8], False, PASS),
    ],
)
def test_a_driver_is_for_the_runtime_or_newer_or_forward_compatible(
    driver: list[int], runtime: list[int], *, compatible: bool, outcome: str
) -> None:
    changes = {"driver_cuda": driver, "runtime_cuda": runtime, "forward_compatible": compatible}
    assert judged("identity", **changes) == outcome


GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "changes", "outcome"),
    [
        ("identity", {"sum": 1999.0}, FAIL),
        ("gemm-bf16", {"error": 0.004}, PASS),
        ("gemm-bf16", {"error": 0.0041}, FAIL),
        ("gemm-fp8", {"error": 0.01}, PASS),
        ("gemm-fp8", {"error": 0.011}, FAIL),
        ("flashinfer", {"error": 0.01}, PASS),
        ("flashinfer", {"error": 0.011}, FAIL),
        ("flashinfer", {"error": float("nan")}, FAIL),
        ("flashinfer", {"missing": "no nvcc"}, SKIP),
        ("triton", {"elements": 0}, FAIL),
        ("triton", {"arch": 89}, FAIL),
        ("e2m1-software", {"inputs": (1 << 32) - 1}, FAIL),
        ("memory", {"meminfo_total": 0}, FAIL),
        ("memory", {"cuda_total": 0}, FAIL),
        # figures of unified memory are those of one memory
        ("memory", {"integrated": True, "meminfo_total": 100, "cuda_total": 125}, PASS),
        ("memory", {"integrated": True, "meminfo_total": 100, "cuda_total": 75}, PASS),
        ("memory", {"integrated": True, "meminfo_total": 100, "cuda_total": 126}, FAIL),
        ("memory", {"integrated": True, "meminfo_total": 100, "cuda_total": 74}, FAIL),
        ("memory", {"integrated": False, "meminfo_total": 100, "cuda_total": 1}, PASS),
    ],
)
def test_each_verdict_begins_where_it_should(
    name: str, changes: Mapping[str, Any], outcome: str
) -> None:
    assert judged(name, **changes) == outcome


@pytest.mark.parametrize(
    ("name", "capability", "outcome", "excused"),
    [
        ("gemm-fp8", (8, 6), SKIP, True),
        ("gemm-fp8", (8, 9), FAIL, False),
        ("gemm-fp4", (9, 0), SKIP, True),
        ("gemm-fp4", (10, 0), FAIL, False),
        ("e2m1-hardware", (9, 0), SKIP, True),
        ("e2m1-hardware", (10, 0), FAIL, False),
        ("triton", (7, 0), FAIL, False),
        ("gemm-bf16", (7, 0), FAIL, False),
    ],
)
def test_only_what_a_gpu_is_known_to_lack_is_excused(
    name: str, capability: tuple[int, int], outcome: str, *, excused: bool
) -> None:
    probes = {
        "identity": {"facts": {"capability": [*capability]}, "error": ""},
        name: {"facts": {"unsupported": "says the probe"}, "error": ""},
    }
    found = judging.judge(name, {"probes": probes})
    assert (found.outcome, found.excused) == (outcome, excused)
    assert "says the probe" in found.detail


def test_a_figure_that_nobody_has_is_said_and_so_is_who_says_another() -> None:
    facts: dict[str, object] = {
        "integrated": True,
        "meminfo_total": 128 * GIB,
        "meminfo_available": 100 * GIB,
    }
    facts |= {"cuda_total": 120 * GIB, "cuda_free": 90 * GIB, "smi_total": "[N/A]"}
    report = {"probes": {"memory": {"error": "", "facts": {"wrong": 0, "bytes": GIB, **facts}}}}
    said = "CUDA 90.0 GiB free of 120.0 GiB; unified: /proc/meminfo has 100.0 GiB available of "
    assert judging.judge("memory", report).detail == f"{said}128.0 GiB, nvidia-smi says [N/A]"
    facts |= {"integrated": False, "smi_total": ""}
    report = {"probes": {"memory": {"error": "", "facts": {"wrong": 0, "bytes": GIB, **facts}}}}
    said = "CUDA 90.0 GiB free of 120.0 GiB; nvidia-smi says nothing"
    assert judging.judge("memory", report).detail == said
