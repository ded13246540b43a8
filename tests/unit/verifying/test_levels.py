"""How far a verification goes, and which level it reaches."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from gpu.records import load_all
from support.verify_fake_server import QUICK
from support.verify_fakes import Good
from support.verify_faults import receipt
from support.verify_station import StationEngine, of_probes, outcomes, verify

from imagefactory.errors import SetupError, fail
from imagefactory.settings import Settings
from imagefactory.system.shell import Completed
from imagefactory.verifying import server
from imagefactory.verifying.models.models import family
from imagefactory.verifying.receipt import Level, Outcome, below

pytestmark = pytest.mark.programs

#: Models whose logs say which kernel they took; the fake server's log says nothing.
QUIET = {"model-moe-nvfp4", "model-mtp", "model-mtp-nvfp4", "model-nvfp4-modelopt"}
PROBES = load_all()["nvidia-h200-2026-11-23"]["probes"]


def says(out: str = "", err: str = "", code: int = 0) -> Completed:
    return Completed(argv=(), code=code, out=out, err=err)


def test_nothing_of_an_image_runs_for_the_level_static(
    cuda: StationEngine, settings: Settings
) -> None:
    made = verify(cuda, settings, level=Level.STATIC)
    assert (cuda.calls, cuda.started) == ([], {})
    assert {one.name.partition("-")[0] for one in made.checks} == {"image"}
    assert (made.passed, made.level) == (True, Level.STATIC)


def test_no_server_is_started_for_the_level_import(cpu: StationEngine, settings: Settings) -> None:
    made = verify(cpu, settings, level=Level.IMPORT)
    assert cpu.started == {}
    assert (made.passed, made.level) == (True, Level.IMPORT)
    assert not [one.name for one in made.checks if one.name.startswith("server-")]


def test_a_cuda_image_computes_and_serves_on_the_gpu(
    cuda: StationEngine, settings: Settings
) -> None:
    cuda.gpu_says = says(json.dumps(PROBES))
    made = verify(cuda, settings, level=Level.GPU)
    first, *_, probes = [call for call in of_probes(cuda) if call.get("gpus")]
    assert (first["argv"], cuda.calls.index(first)) == (("-c", ""), 0)
    assert probes["network"] == "none"
    assert len(cuda.starts) == len(family())
    assert {started["gpus"] for started in cuda.starts} == {True}
    # FlashAttention is compiled by the driver: once for all of them, not by each
    shared = {(*s["volumes"], s["env"]["CUDA_CACHE_PATH"]) for s in cuda.starts}
    assert shared == {(("compiled", server.COMPILED), server.COMPILED)}
    assert all("--kv-cache-memory-bytes" in s["env"]["VLLM_EXTRA_ARGS"] for s in cuda.starts)
    routed = [s for s in cuda.starts if "--moe-backend" in s["argv"]]
    assert len(routed) == 2
    assert not any("--dtype" in s["env"]["VLLM_EXTRA_ARGS"] for s in routed)
    excused = {"gpu-gemm-fp4", "gpu-e2m1-hardware"}
    assert outcomes(made, Outcome.SKIP) == excused
    assert outcomes(made, Outcome.FAIL) == QUIET
    assert made.level is Level.SERVE
    assert any("tokens/s" in one.detail for one in made.checks)


def test_nobody_waits_for_servers_once_the_engine_has_failed(
    cuda: StationEngine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda.gpu_says = says(json.dumps(PROBES))
    cuda.behaviour.health = 503
    start = cuda.start

    def start_one(*args: Any, **options: Any) -> Any:
        if cuda.starts:
            time.sleep(0.1)
            raise fail(SetupError, "engine-failed", "no daemon")
        return start(*args, **options)

    monkeypatch.setattr(cuda, "start", start_one)
    began = time.monotonic()
    with pytest.raises(SetupError, match="no daemon"):
        verify(cuda, settings, level=Level.GPU, patience=replace(QUICK, start=60))
    assert time.monotonic() - began < 30


def test_probes_that_report_nothing_fail_the_image(cuda: StationEngine, settings: Settings) -> None:
    cuda.gpu_says = says(err="no torch in /opt/venv/bin/python", code=3)
    made = verify(cuda, settings, level=Level.GPU)
    details = {one.detail for one in made.checks if one.name.startswith("gpu-")}
    assert len(details) == 1
    assert "exit 3: no torch in /opt/venv/bin/python" in details.pop()
    assert not made.passed


def test_a_machine_without_a_gpu_is_no_fault_of_the_image(
    cuda: StationEngine, settings: Settings
) -> None:
    said = 'docker: Error response from daemon: could not select device driver "" with\n'
    cuda.gpu_says = says(err=said, code=125)
    with pytest.raises(SetupError) as raised:
        verify(cuda, settings, level=Level.GPU)
    assert raised.value.problems[0].code == "gpu-missing"
    assert len(cuda.calls) == 1


def test_an_image_that_does_not_reach_the_level_is_a_problem() -> None:
    made = receipt(Good())
    assert below([made], Level.IMPORT) == []
    assert below([made], Level.GPU)[0].what == "it was verified up to import, not up to gpu"
