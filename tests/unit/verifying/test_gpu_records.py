"""Recorded runs on GPUs, with the logs of their servers: all is judged as it should be."""

from __future__ import annotations

import pytest
from gpu import records
from gpu.records import Record
from support import ROOT
from support.verify_fakes import CPU, Good, server_run

from imagefactory.verifying import check_registry, log_rules
from imagefactory.verifying.checks.gpu.test_gpu import reported
from imagefactory.verifying.checks.models.test_models import served
from imagefactory.verifying.gpu import running
from imagefactory.verifying.gpu.judging import FAIL
from imagefactory.verifying.gpu.probes import e2m1
from imagefactory.verifying.receipt import Level, Outcome

RECORDS = records.load_all()
MTP_LOG = (ROOT / "tests/data/logs/vllm-0.32.0-cpu-mtp.log").read_text()
CPU_LOG = (ROOT / "tests/data/logs/vllm-0.32.0-cpu-unknown-variable.log").read_text()


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_recorded_run_is_judged_right_and_every_planted_fault_is_found(record: Record) -> None:
    rows = list(records.rows(record))
    assert [row.name for row in rows if not row.good] == []
    found = {row.name for row in rows if row.planted and row.judged.outcome == FAIL}
    assert {"e2m1-software:ties-away", "nvfp4:swapped-nibbles", "moe:rotated-experts"} <= found


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_the_logs_of_servers_that_answered_right_keep_the_rules(record: Record) -> None:
    for name, seen in record["servers"]["servers"].items():
        if not seen["spoil"]:
            rules, wrong = _broken("\n".join(seen["log"]), record, name)
            assert wrong == []
            assert rules


def test_a_log_without_the_line_of_the_kernel_breaks_the_rules() -> None:
    record = RECORDS["nvidia-h200-2026-11-23"]
    log = record["servers"]["servers"]["moe-nvfp4"]["log"]
    without = "\n".join(line for line in log if "NvFp4 MoE backend" not in line)
    assert len(_broken(without, record, "moe-nvfp4")[1]) == 2
    head = [line for line in record["servers"]["servers"]["mtp"]["log"] if "MTP" not in line]
    assert "the head for speculation" in _broken("\n".join(head), record, "mtp")[1][0]


def test_the_cpu_backend_s_real_log_says_that_the_head_was_found() -> None:
    where = {"vllm": "0.32.0", "device": "cpu", "capability": ""}
    rules, wrong = log_rules.broken(MTP_LOG, model="mtp", **where)
    assert len(rules) == 2
    assert wrong == []
    without = "\n".join(line for line in MTP_LOG.splitlines() if "Detected MTP" not in line)
    (said,) = log_rules.broken(without, model="mtp", **where)[1]
    assert "the head for speculation" in said


def test_a_spark_that_chose_cutlass_for_experts_breaks_the_rules() -> None:
    log = "Using 'VLLM_CUTLASS' NvFp4 MoE backend out of potential backends\n"
    log += "[FP4 gemm Runner cutlass] Failed to run\nMarlin is not there, falling back to emulation"
    _, wrong = log_rules.broken(log, vllm="0.22.1", model="dense", device="cuda", capability="12.1")
    assert [text.partition(":")[0] for text in wrong] == [
        "\"Using 'VLLM_CUTLASS' NvFp4 MoE backend\"",
        "'[FP4 gemm Runner cutlass] Failed'",
        "'Marlin is not there, falling back'",
    ]


def test_a_real_log_of_the_cpu_backend_shows_a_variable_that_it_does_not_know() -> None:
    image = Good(torch=CPU)
    image.server = server_run(log=CPU_LOG)
    assert "a variable that this release ignores" in image.results()["server-log"].detail
    others = [line for line in CPU_LOG.splitlines() if "VLLM_BOGUS_VARIABLE" not in line]
    image.server = server_run(log="\n".join(others))
    assert image.results()["server-log"].outcome is Outcome.PASS


def test_an_image_that_serves_and_computes_on_a_gpu_reaches_that_level() -> None:
    image = Good()
    served(image)
    results = image.results()
    assert check_registry.reached(tuple(results.values())) is Level.GPU
    reported(image, lambda probes: probes["flashinfer"].update(facts={"missing": "no nvcc"}))
    assert check_registry.reached(tuple(image.results().values())) is Level.SERVE


def test_the_conversion_that_is_tried_is_that_of_the_patch() -> None:
    diff = (ROOT / "patches/vllm/e2m1-software/0.20.diff").read_text()
    added = "\n".join(line[1:] for line in diff.splitlines() if line.startswith("+"))
    assert e2m1.SOFTWARE.strip() in added


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"probes": {"memory": 1}}', '{"probes": NaN}', "[" * 100_000],
    ids=["nothing", "list", "shape", "number", "depth"],
)
def test_a_report_of_another_shape_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="report of the probes"):
        running.read(text)


def test_the_page_shows_the_records() -> None:
    assert records.page() == (ROOT / "docs/gpu.md").read_text(), "run make gpu-page"


def _broken(log: str, record: Record, model: str) -> tuple[list[log_rules.Rule], list[str]]:
    major, minor = record["capability"].removeprefix("sm_")[:-1], record["capability"][-1]
    return log_rules.broken(
        log,
        vllm=record["versions"]["vllm"],
        model=model,
        device="cuda",
        capability=f"{major}.{minor}",
    )
