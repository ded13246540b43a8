"""The station from image reference to receipt, with a fake engine that runs the real entrypoint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.verify_fakes import CONTENT, CUDA, expectation, image_info, resolution
from support.verify_station import StationEngine, of_probe, of_probes, outcomes, verify

from imagefactory.building import disk
from imagefactory.errors import CheckFailedError, SetupError
from imagefactory.locking.lock import Lock
from imagefactory.locking.store import digest as lock_digest
from imagefactory.settings import Settings
from imagefactory.system import platforms
from imagefactory.verifying import probe, verifying
from imagefactory.verifying.outside.judged import Finding, Judged
from imagefactory.verifying.receipt import CheckResult, Level, Outcome
from imagefactory.verifying.receipt_store import ReceiptStore

pytestmark = pytest.mark.programs

BRIEF: dict[str, Any] = {"files_judged": True, "proofs": ()}
REST = tuple(theme for theme in probe.sources() if theme != "compilers")


def test_a_good_cpu_image_gets_a_receipt_that_passes(
    cpu: StationEngine, settings: Settings
) -> None:
    receipt = verify(cpu, settings)
    assert outcomes(receipt, Outcome.FAIL) == set()
    assert all(name.startswith("gpu-") for name in outcomes(receipt, Outcome.SKIP))
    assert receipt.level is Level.SERVE
    assert receipt.passed
    assert (receipt.digest, receipt.cell, receipt.build_key) == (
        "sha256:" + "ab" * 32,
        "a-cell",
        "key",
    )
    assert receipt.verified_at == "2026-11-20T12:00:00+00:00"
    assert receipt.level is Level.SERVE


def test_a_receipt_says_what_the_image_was_made_from_and_what_verified_it(
    cuda: StationEngine, settings: Settings
) -> None:
    made = verify(cuda, settings)
    assert made.level is Level.IMPORT
    assert made.lock_digest == cuda.good.labels["io.imagefactory.lock-digest"]
    assert (made.inputs["channel"], made.inputs["platform"]) == ("cu130", "linux/arm64")
    assert not {"cell", "build-key", "lock-digest"} & made.inputs.keys()
    (patch,) = made.patches
    assert (patch.name, patch.variant, patch.proof) == ("vllm/mtp-exclusion", "0.22.diff", "pass")
    assert (made.tools["engine"], made.tools["imagefactory"]) == ("27.5.1", made.version)
    assert made.machine["platform"].startswith("linux/")


@pytest.mark.parametrize("proofs", [None, 5, [1, {}, {"patch": 2}], [{"patch": "x", "code": "y"}]])
def test_proofs_that_an_image_reports_in_another_shape_are_none(
    cuda: StationEngine, settings: Settings, proofs: object
) -> None:
    assert cuda.good.report
    cuda.good.report["facts"]["patches"]["proofs"] = proofs
    (patch,) = verify(cuda, settings).patches
    assert patch.proof == ""


def test_a_cuda_image_is_not_served_here(cuda: StationEngine, settings: Settings) -> None:
    receipt = verify(cuda, settings)
    assert cuda.started == {}
    skipped = outcomes(receipt, Outcome.SKIP)
    assert all(name.startswith(("server-", "gpu-")) for name in skipped)
    assert receipt.level is Level.IMPORT
    assert receipt.passed


def test_the_probe_runs_without_a_network_and_on_the_image_s_platform(
    cuda: StationEngine, settings: Settings
) -> None:
    verify(cuda, settings)
    probe_call = of_probe(cuda)
    assert probe_call["network"] == "none"
    assert probe_call["platform"] == "linux/arm64"
    assert probe_call["argv"] == ("-I", "-S", "-B", "-")
    assert {call["network"] for call in cuda.calls} == {"none"}


@pytest.mark.parametrize(
    ("native", "content", "programs"),
    [
        (True, CONTENT, [{}]),
        (False, CONTENT, [{**BRIEF, "themes": REST}, {**BRIEF, "themes": ("compilers",)}]),
        (False, None, [{}]),
    ],
)
def test_files_are_looked_at_inside_unless_they_are_judged_outside_and_the_image_is_emulated(
    cuda: StationEngine,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    native: bool,
    content: Judged | None,
    programs: list[dict[str, Any]],
) -> None:
    monkeypatch.setattr(platforms, "is_native", lambda _: native)
    verify(cuda, settings, content=(lambda _: content) if content else None)
    ran = {call["stdin"] for call in of_probes(cuda)}
    assert ran == {probe.program(**options) for options in programs}


@pytest.mark.parametrize("reports", [True, False])
def test_proofs_that_cannot_run_here_run_in_the_image_and_only_those(
    cuda: StationEngine, settings: Settings, monkeypatch: pytest.MonkeyPatch, reports: bool
) -> None:
    monkeypatch.setattr(platforms, "is_native", lambda _: False)
    if not reports:
        cuda.good.facts["patches"]["proofs"] = []
    receipt = verify(cuda, settings, content=lambda _: replace(CONTENT, to_prove=("vllm/x",)))
    programs = [call["stdin"] for call in of_probes(cuda)]
    assert programs[2:] == [
        probe.program(themes=("patches",), files_judged=True, proofs=("vllm/x",))
    ]
    assert ("patches-effective" in outcomes(receipt, Outcome.PASS)) is reports


def test_a_server_that_answers_garbage_fails_the_image(
    cpu: StationEngine, settings: Settings
) -> None:
    cpu.behaviour.text = "!!!!!"
    receipt = verify(cpu, settings)
    assert not receipt.passed
    texts = ("completions", "chat", "stream", "reasoning", "calls")
    assert outcomes(receipt, Outcome.FAIL) == {f"server-{name}" for name in texts}


def reported(**changes: object) -> str:
    shape: dict[str, object] = {
        "python": "3",
        "machine": "x",
        "manifest": None,
        "facts": {},
        "errors": {},
    }
    return json.dumps({**shape, **changes})


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("", "the probe reported nothing"),
        (" \n", "the probe reported nothing"),
        ("no JSON", "not JSON"),
        ("3", "JSON int"),
        ("[1,2]", "JSON list"),
        ("{}", "lacks python, machine, manifest, facts, errors"),
        ('{"python": NaN}', "NaN is not a number"),
        ("9" * 5000, "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("\x1b[31mpassed\x1b[0m", "not JSON"),
        (reported(facts={"torch": []}), "lacks facts"),
        (reported(facts=[]), "lacks facts"),
        (reported(errors={"torch": 3}), "lacks errors"),
        (reported(manifest=[]), "lacks manifest"),
        (reported(python=3), "lacks python"),
        (reported() + "\n" + reported(), "not JSON"),
    ],
)
def test_an_image_whose_python_does_not_report_fails(
    cuda: StationEngine, settings: Settings, out: str, says: str
) -> None:
    cuda.probe_out = out
    receipt = verify(cuda, settings)
    assert outcomes(receipt, Outcome.FAIL) == {"probe"}
    assert says in receipt.checks[0].detail
    assert "a warning of torch" in receipt.checks[0].detail
    assert not receipt.passed


def test_what_is_reported_in_another_shape_is_a_failed_check_and_no_traceback(
    cuda: StationEngine, settings: Settings
) -> None:
    report = {**cuda.good.reported, "manifest": {"axes": [1], "patches": 3, "wheels": None}}
    report["facts"] = {theme: {"seconds": "x"} for theme in report["facts"]}
    cuda.probe_out = json.dumps(report)
    receipt = verify(cuda, settings)
    assert not receipt.passed
    assert any("cannot be judged" in check.detail for check in receipt.checks)


def test_an_image_whose_python_floods_its_output_fails(
    cuda: StationEngine, settings: Settings
) -> None:
    cuda.probe_floods = True
    assert "wrote more than 16 MiB" in verify(cuda, settings).checks[0].detail
    assert {call["most"] for call in cuda.calls} == {16 << 20, 1 << 20}


def test_details_from_an_image_have_a_length_that_can_be_kept(
    cuda: StationEngine, settings: Settings
) -> None:
    cuda.good.facts["contents"]["missing"] = ["x" * 1_000_000]
    details = {check.name: check.detail for check in verify(cuda, settings).checks}
    assert len(details["files-complete"]) < 21_000
    assert details["files-complete"].endswith(" more characters)")


def test_a_receipt_can_be_read_whatever_an_image_says(
    cuda: StationEngine, settings: Settings, tmp_path: Path
) -> None:
    cuda.good.facts["contents"]["missing"] = ["a lone surrogate: \ud800"]
    made, store = verify(cuda, settings), ReceiptStore(folder=tmp_path)
    assert outcomes(made, Outcome.FAIL) == {"files-complete"}
    store.save(made)
    assert store.load(made.digest) == made


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (135, "exit 135 (SIGBUS: a file that is mapped is shorter than its headers say"),
        (139, "exit 139 (SIGSEGV: a library that is damaged"),
        (137, "exit 137 (SIGKILL: the memory limit"),
        (1, "exit 1: a warning"),
    ],
)
def test_a_python_that_a_signal_ends_is_explained(
    cuda: StationEngine, settings: Settings, code: int, says: str
) -> None:
    cuda.probe_out, cuda.probe_code = "", code
    assert says in verify(cuda, settings).checks[0].detail


def test_the_image_s_environment_does_not_bend_the_probe(
    cuda: StationEngine, settings: Settings
) -> None:
    bending = ("LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "GCONV_PATH")
    cuda.env = {**dict.fromkeys(bending, "/evil"), "PATH": "/bin", "LD_LIBRARY_PATH": "/cuda"}
    verify(cuda, settings)
    assert of_probe(cuda)["env"] == dict.fromkeys(bending, "")


def test_containers_are_run_by_digest_however_the_tag_moves(
    cpu: StationEngine, settings: Settings
) -> None:
    first = "sha256:" + "ab" * 32
    verify(cpu, settings)
    assert {call["image"] for call in (*cpu.calls, cpu.started)} == {first}


def test_an_entrypoint_that_does_not_end_is_the_image_s_fault(
    cuda: StationEngine, settings: Settings
) -> None:
    cuda.modes_end = "command-timeout"
    receipt = verify(cuda, settings)
    assert outcomes(receipt, Outcome.FAIL) == {"entrypoint-serve", "entrypoint-modes"}
    details = [check.detail for check in receipt.checks if check.name == "entrypoint-modes"]
    assert "exit 124: still running after" in details[0]


def test_an_engine_that_fails_is_neither_a_verdict_nor_a_receipt(
    cuda: StationEngine, settings: Settings
) -> None:
    cuda.modes_end = "engine-failed"
    with pytest.raises(SetupError) as caught:
        verify(cuda, settings)
    assert [problem.code for problem in caught.value.problems] == ["engine-failed"]


def test_a_disk_that_cannot_hold_the_unpacked_image_stops_before_anything_runs(
    cuda: StationEngine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free", lambda _: disk.GIB + 2)
    assert verify(cuda, settings).passed
    cuda.calls.clear()
    cuda.unpacked = False  # an image of one byte takes three
    with pytest.raises(SetupError) as caught:
        verify(cuda, settings)
    assert [problem.code for problem in caught.value.problems] == ["disk-full"]
    assert cuda.calls == []


def test_a_disk_that_fills_up_meanwhile_is_not_the_image_s_fault(
    cuda: StationEngine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([2 * disk.GIB, 0])
    monkeypatch.setattr(disk, "free", lambda _: next(left))
    cuda.good.reported["errors"]["torch"] = "OSError: [Errno 28] No space left on device"
    with pytest.raises(SetupError, match="the disk was full"):
        verify(cuda, settings)


def test_an_image_that_says_the_disk_is_full_although_it_is_not_fails(
    cuda: StationEngine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free", lambda _: 100 * disk.GIB)
    cuda.good.reported["errors"]["torch"] = "OSError: [Errno 28] No space left on device"
    assert not verify(cuda, settings).passed


def test_a_probe_that_hangs_is_the_image_s_fault(cuda: StationEngine, settings: Settings) -> None:
    cuda.probe_hangs = True
    receipt = verify(cuda, settings)
    assert "still running after 3600 s" in receipt.checks[0].detail
    assert not receipt.passed


def test_an_image_made_from_another_lock_fails(cuda: StationEngine, settings: Settings) -> None:
    older = replace(resolution(CUDA), wheels=resolution(CUDA).wheels[1:])
    receipt = verify(cuda, settings, Lock(created="", tools=(), resolutions=(older,)))
    assert {"torch-identity", "wheels-installed"} <= outcomes(receipt, Outcome.FAIL)


def test_without_a_lock_nothing_is_verified(cuda: StationEngine, settings: Settings) -> None:
    assert not verify(cuda, settings, None).passed


def test_what_the_caller_knows_is_compared_with_the_labels(
    cuda: StationEngine, settings: Settings
) -> None:
    known = replace(expectation(resolution(CUDA)), lock_digest=lock_digest(resolution(CUDA)))
    assert verify(cuda, settings, None, expected=known).passed
    receipt = verify(cuda, settings, None, expected=replace(known, build_key="newer"))
    assert outcomes(receipt, Outcome.FAIL) == {"labels-true"}


def test_the_content_of_the_very_digest_is_judged(cuda: StationEngine, settings: Settings) -> None:
    asked: list[str] = []

    def content(digest: str) -> Judged:
        asked.append(digest)
        return replace(CONTENT, extra=(Finding(path="evil.pth", what="is explained by nothing"),))

    receipt = verify(cuda, settings, content=content)
    assert asked == [receipt.digest]
    assert outcomes(receipt, Outcome.FAIL) == {"image-unexplained"}
    assert not receipt.passed


def test_without_a_cell_of_the_matrix_the_content_is_unknown_and_nothing_passes(
    cuda: StationEngine, settings: Settings
) -> None:
    receipt = verify(cuda, settings, content=None)
    assert not receipt.passed
    assert {"image-config", "image-files", "image-unexplained"} <= outcomes(receipt, Outcome.SKIP)


def test_an_image_that_no_build_of_this_machine_gave_is_foreign(
    cuda: StationEngine, settings: Settings
) -> None:
    cuda.digests = ["sha256:" + "cd" * 32]
    receipt = verify(cuda, settings)
    assert outcomes(receipt, Outcome.FAIL) == {"image-origin"}
    assert "foreign: " in next(c.detail for c in receipt.checks if c.name == "image-origin")


def test_an_image_that_changes_while_it_is_verified_gets_no_receipt(
    cuda: StationEngine, settings: Settings
) -> None:
    cuda.digests = ["sha256:1", "sha256:2"]
    with pytest.raises(CheckFailedError, match="became sha256:2"):
        verify(cuda, settings)


def test_the_model_is_gone_from_the_machine_afterwards(
    cpu: StationEngine, settings: Settings
) -> None:
    verify(cpu, settings)
    assert list(settings.cache.iterdir()) == []


@pytest.mark.parametrize("free", [None, verifying.SCRATCH - 1, verifying.SCRATCH])
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize(
    "said", ["OSError: No space left on device", "Disk quota exceeded", "another fault"]
)
def test_only_a_failure_for_want_of_room_on_a_full_disk_is_the_machine_s(
    cuda: StationEngine,
    monkeypatch: pytest.MonkeyPatch,
    free: int | None,
    outcome: Outcome,
    said: str,
) -> None:
    monkeypatch.setattr(disk, "free", lambda _: free)
    failed = CheckResult(name="one", outcome=outcome, required=True, detail=said, seconds=1)
    is_full = free is None or free < verifying.SCRATCH
    if is_full and outcome is Outcome.FAIL and said != "another fault":
        with pytest.raises(SetupError, match=r"the disk was full .*one"):
            verifying._mind_the_machine(cuda, image_info(), [failed])
    else:
        verifying._mind_the_machine(cuda, image_info(), [failed])
