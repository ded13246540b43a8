"""Models: the faults that turn their checks red, planted in what an NVIDIA H200 really served."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gpu.records import answers_of, load_all, refusals_of
from support.verify_fakes import CPU, Good, server_run
from support.verify_faults import Fault, red

from imagefactory.verifying import check_registry
from imagefactory.verifying.checks.gpu.test_gpu import reported
from imagefactory.verifying.checks.models.check import CHECKS
from imagefactory.verifying.receipt import Level, Outcome
from imagefactory.verifying.server import LOG_FLOOD, ServerRun

SERVERS = load_all()["nvidia-h200-2026-11-23"]["servers"]["servers"]
#: The hybrid was not among them; it is asked what the dense one is.
RECORD = {"hybrid": SERVERS["dense"], **SERVERS}
NAMES = [entry.model for entry in CHECKS]


def ran(name: str, **changes: Any) -> ServerRun:
    """One server of the record; after a colon, what is wrong with its weights."""
    seen = RECORD[name]
    run = ServerRun(
        fault=seen["fault"],
        start_seconds=seen["start_seconds"],
        answers=answers_of(seen),
        refusals=refusals_of(seen),
        log="\n".join(seen["log"] or RECORD[name.partition(":")[0]]["log"]),
        metrics=seen.get("metrics", {}),
        tokens_per_second=seen.get("tokens_per_second", 0.0),
    )
    return replace(run, **changes)


def served(image: Good, **broken: ServerRun) -> None:
    """The image has served every model on the GPU, all of them right but those in ``broken``."""
    reported(image)
    image.server = server_run()
    image.models = {name: broken.get(name.replace("-", "_"), ran(name)) for name in NAMES}


def breaks(name: str, run: ServerRun) -> Any:
    return lambda image: served(image, **{name.replace("-", "_"): run})


def without(name: str, text: str) -> ServerRun:
    run = ran(name)
    return replace(run, log="\n".join(row for row in run.log.splitlines() if text not in row))


def doubtful(name: str) -> ServerRun:
    first, *others = ran(name).answers
    return replace(ran(name), answers=(replace(first, logprobs=(-4.0,)), *others))


DRAFTS = "vllm:spec_decode_num_accepted_tokens_total"
GONE = ran("dense", fault="the container ended after 3 s", log_tail="Marlin FP4 not available")
FAULTS = (
    *(
        Fault(check=f"model-{name}", name="weights", breaks=breaks(name, ran(spoilt)), says=says)
        for name, spoilt, says in (
            ("fp8", "fp8:negated-weights", "'Paris Paris Paris"),
            ("moe", "moe:rotated-experts", "'Paris user Paris"),
            ("moe-nvfp4", "moe-nvfp4:rotated-experts", "'Paris user Paris"),
            ("mtp-nvfp4", "mtp-nvfp4:swapped-nibbles", "only '!'"),
            ("nvfp4", "nvfp4:shifted-scales", "only '!'"),
            ("nvfp4-modelopt", "nvfp4-modelopt:swapped-nibbles", "only '!'"),
        )
    ),
    *(
        Fault(check=f"model-{name}", name=what, breaks=breaks(name, run), says=says)
        for name, what, run, says in (
            ("dense", "does not start", GONE, "Marlin FP4 not available"),
            ("dense", "nothing asked", ran("dense", answers=()), "nothing was asked"),
            ("dense", "flood", ran("dense", log_bytes=LOG_FLOOD), "4 MiB of log"),
            ("dense", "memory", ran("dense", out_of_memory=True), "4 GiB of memory"),
            ("dense-bf16", "by luck", doubtful("dense-bf16"), "a chance of 0.02 only"),
            ("hybrid", "garbage", ran("fp8:negated-weights"), "'Paris Paris"),
            ("mtp", "no drafts", ran("mtp", metrics={DRAFTS: 0.0}), f"{DRAFTS} is 0"),
            ("mtp", "not counted", ran("mtp", metrics={}), f"{DRAFTS} is 0"),
            ("mtp-nvfp4", "log", without("mtp-nvfp4", "MTP"), "the head for speculation"),
            ("moe-nvfp4", "log", without("moe-nvfp4", "NvFp4 MoE"), "no line with"),
        )
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


def test_an_image_that_serves_every_model_reaches_the_level_gpu_and_no_other_does() -> None:
    image = Good()
    served(image)
    results = image.results()
    assert {results[f"model-{name}"].outcome for name in NAMES} == {Outcome.PASS}
    assert "accepted_tokens_total 18" in results["model-mtp"].detail
    assert "tokens/s" in results["model-fp8"].detail
    assert check_registry.reached(tuple(results.values())) is Level.GPU
    del image.models["nvfp4"]
    lacking = image.results()
    assert (lacking["model-nvfp4"].outcome, lacking["model-nvfp4"].required) == (Outcome.SKIP, True)
    assert check_registry.reached(tuple(lacking.values())) is Level.SERVE


def test_a_model_that_an_image_cannot_serve_is_not_applicable_and_never_passed() -> None:
    image = Good(torch=CPU)
    image.models = {"dense": ran("dense"), "fp8": "vLLM's cpu backend has no kernels for it"}
    results = {one.name: one for one in check_registry.judge(image.subject(), Level.SERVE)}
    assert [name for name in results if name.startswith("model-")] == ["model-dense", "model-fp8"]
    assert results["model-dense"].outcome is Outcome.PASS
    fp8 = results["model-fp8"]
    assert (fp8.outcome, fp8.required) == (Outcome.SKIP, False)
    assert fp8.detail == "not applicable: vLLM's cpu backend has no kernels for it"
    assert check_registry.reached(tuple(results.values())) is Level.SERVE
