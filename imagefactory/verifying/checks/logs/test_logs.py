"""Logs: the faults that turn the check of the server's log red."""

from __future__ import annotations

import pytest
from support.verify_fakes import CPU, Good, server_run
from support.verify_faults import Fault, red

from imagefactory.planning.cell_plan import LABEL
from imagefactory.verifying import log_rules
from imagefactory.verifying.checks.logs import check
from imagefactory.verifying.gpu.running import GpuRun
from imagefactory.verifying.receipt import Outcome

UNKNOWN = "WARNING [envs.py:2057] Unknown vLLM environment variable detected: VLLM_MXFP4_BACKEND"
FAULTS = (
    Fault(
        check="server-log",
        name="a variable that vLLM does not know",
        breaks=lambda image: setattr(image, "server", server_run(log=UNKNOWN)),
        says="Unknown vLLM environment variable",
        torch=CPU,
    ),
)


def test_the_check_goes_red_for_a_line_that_must_not_be_there() -> None:
    assert FAULTS[0].says in red(FAULTS[0])


@pytest.mark.parametrize(
    ("run", "capability"),
    [
        (None, ""),
        (GpuRun(report=None, error="no report"), ""),
        (GpuRun(report={"probes": {}}), ""),
        (GpuRun(report={"probes": {"identity": {}}}), ""),
        (GpuRun(report={"probes": {"identity": {"facts": {}}}}), ""),
        (GpuRun(report={"probes": {"identity": {"facts": {"capability": [12, 1]}}}}), "12.1"),
    ],
)
def test_the_rules_are_those_of_the_release_the_model_and_the_device_that_probes_saw(
    monkeypatch: pytest.MonkeyPatch, run: GpuRun | None, capability: str
) -> None:
    asked = dict[str, str]()

    def broken(log: str, **how: str) -> tuple[list[str], list[str]]:
        asked.update(how, log=log)
        return ["rule"], []

    monkeypatch.setattr(log_rules, "broken", broken)
    for channel, device, label in (("cpu", "cpu", "0.33.0"), ("cu130", "cuda", "")):
        image = Good()
        image.gpu, image.server = run, server_run(log="said")
        image.labels |= {f"{LABEL}.channel": channel, f"{LABEL}.pin.vllm": label}
        subject = image.subject()
        assert check.says.function(subject).outcome is Outcome.PASS
        assert asked == {
            "log": "said",
            "vllm": label or "0",
            "model": "dialog",
            "device": device,
            "capability": capability,
        }
