"""Every check: green on a good image, red for its fault.

And a skip that is never counted as a success.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.verify_fakes import CPU, CUDA, FILE, METADATA, PATCH, Good, answer, server_run

from imagefactory.verifying import tiny_model
from imagefactory.verifying.receipt import Outcome, Receipt
from imagefactory.verifying.registry import all_checks, check, passed
from imagefactory.verifying.subject import Ran

SERVER_CHECKS = {
    "server-starts",
    "server-models",
    "server-completions",
    "server-chat",
    "server-stream",
    "server-stops",
}


def receipt(image: Good) -> Receipt:
    return Receipt(
        digest="sha256:0",
        tag="t",
        cell="c",
        build_key="k",
        verified_at="now",
        checks=tuple(image.results().values()),
    )


def test_a_good_cpu_image_passes_every_check() -> None:
    results = Good(torch=CPU).results()
    assert {name for name, result in results.items() if result.outcome is not Outcome.PASS} == set()
    assert receipt(Good(torch=CPU)).passed


def test_a_good_cuda_image_passes_every_check_but_those_that_need_a_gpu() -> None:
    results = Good().results()
    assert {
        name for name, result in results.items() if result.outcome is not Outcome.PASS
    } == SERVER_CHECKS
    assert all(results[name].outcome is Outcome.SKIP for name in SERVER_CHECKS)
    assert all(
        "needs a GPU" in results[name].detail and not results[name].required
        for name in SERVER_CHECKS
    )
    assert receipt(Good()).passed


def set_torch(image: Good, **changes: object) -> None:
    image.inside["torch"].update(changes)


def layer_torch(image: Good, number: int, torch: dict[str, str | None] | None) -> None:
    image.manifest["layers"][number]["torch"] = torch


def answers_with(image: Good, kind: str, *, text: str, status: int | None = 200) -> None:
    questions = tiny_model.COMPLETIONS if kind == "completion" else tiny_model.CHATS
    others = tuple(entry for entry in server_run().answers if entry.kind != kind)
    wrong = tuple(answer(kind, question, text=text, status=status) for question in questions)
    image.server = server_run(answers=(*others, *wrong), log_tail="Illegal instruction")


FAULTS: list[tuple[str, str, Callable[[Good], object], str]] = [
    (
        "files-complete",
        "a file that a RECORD names is not there",
        lambda image: image.inside["contents"].update(missing=["numpy/core.py"]),
        "numpy/core.py is missing",
    ),
    (
        "files-complete",
        "a link to a compiler that is not there",
        lambda image: image.inside["contents"].update(dangling=["/site/triton/ptxas"]),
        "/site/triton/ptxas leads nowhere",
    ),
    (
        "nothing-unused",
        "an installer's cache",
        lambda image: image.inside["contents"].update(unused=["/root/.cache/pip/http"]),
        "1 files that nobody uses: /root/.cache/pip/http",
    ),
    ("probe", "python does not run", lambda i: setattr(i, "facts", None), "no Python at all"),
    (
        "torch-identity",
        "a CPU torch in a CUDA image",
        lambda i: set_torch(i, version="2.11.0+cpu", cuda=None),
        "2.11.0+cpu (no CUDA), locked is 2.11.0+cu130 (CUDA 13.0): a CPU build took its place",
    ),
    ("torch-identity", "another CUDA", lambda i: set_torch(i, cuda="12.8"), "CUDA 12.8"),
    (
        "torch-identity",
        "no architectures",
        lambda i: set_torch(i, arch_flags=[]),
        "no GPU architecture",
    ),
    (
        "torch-identity",
        "an import that fails",
        lambda i: set_torch(i, version=None, error="OSError: libtorch_cuda.so: cannot open"),
        "libtorch_cuda.so",
    ),
    (
        "torch-identity",
        "another lock",
        lambda i: setattr(i, "resolution", None),
        "made from another lock",
    ),
    (
        "torch-files",
        "a damaged file",
        lambda i: set_torch(i, damaged=["torch/_C.so: missing"]),
        "torch/_C.so: missing",
    ),
    (
        "torch-layers",
        "a CPU torch for the length of one layer",
        lambda i: layer_torch(i, 1, {"version": "2.11.0+cpu", "cuda": None}),
        "after layer cuda-torch: torch is 2.11.0+cpu",
    ),
    (
        "torch-layers",
        "torch is gone after a layer",
        lambda i: layer_torch(i, 2, None),
        "layer vllm: torch is gone",
    ),
    ("torch-layers", "no record of layers", lambda i: i.manifest.pop("layers"), "names no layer"),
    (
        "extensions-load",
        "an undefined symbol",
        lambda i: i.inside["extensions"]["loaded"][1].update(error="undefined symbol: _ZN3c10"),
        "vllm/_moe_C.abi3.so: undefined symbol: _ZN3c10",
    ),
    (
        "extensions-load",
        "no extension",
        lambda i: i.inside["extensions"].update(loaded=[]),
        "no compiled extension",
    ),
    (
        "extensions-load",
        "no driver and no compiler",
        lambda i: i.inside["extensions"].update(
            stub_error="no GPU driver, and no gcc",
            loaded=[{"path": "vllm/_C.so", "error": "libcuda.so.1: cannot open"}],
        ),
        "no GPU driver, and no gcc",
    ),
    (
        "toolchain",
        "a variable that names nothing",
        lambda i: i.inside["toolchain"].update(missing=["CUDA_HOME=/opt/cuda"]),
        "CUDA_HOME=/opt/cuda is not there",
    ),
    (
        "toolchain",
        "an nvcc that fails",
        lambda i: i.inside["toolchain"]["nvcc"].update(
            code=1, output="k.cu:1\nfatal error: nvrtc.h: No such file"
        ),
        "nvcc for sm_121a exits 1: fatal error: nvrtc.h",
    ),
    (
        "toolchain",
        "a ptxas that is not there",
        lambda i: i.inside["toolchain"]["ptxas"].update(
            code=None, output="No such file or directory"
        ),
        "ptxas for sm_121a exits None",
    ),
    (
        "toolchain",
        "FP4 in software",
        lambda i: i.inside["toolchain"].update(architecture="sm_121", hardware_conversions=0),
        "nvcc for sm_121 makes no FP4 instruction",
    ),
    (
        "wheels-installed",
        "a missing wheel",
        lambda i: i.inside["distributions"].pop(0),
        "numpy 2.0 is missing",
    ),
    (
        "wheels-installed",
        "an extra wheel",
        lambda i: i.inside["distributions"].append({"name": "pip", "version": "25.0"}),
        "pip 25.0 is not in the lock",
    ),
    (
        "wheels-installed",
        "another version",
        lambda i: i.inside["distributions"][0].update(version="1.9"),
        "numpy is 1.9, locked is 2.0",
    ),
    (
        "wheels-installed",
        "two versions at once",
        lambda i: i.inside["distributions"].append({"name": "numpy", "version": "2.0"}),
        "numpy is there twice",
    ),
    (
        "wheels-hashes",
        "another file of the same version",
        lambda i: i.manifest["wheels"][0].update(sha256="00" * 32),
        "other wheels than the lock names for numpy",
    ),
    (
        "patches-present",
        "an overwritten file",
        lambda i: i.inside["files"].update({FILE: "22" * 32}),
        "is not as patched",
    ),
    (
        "patches-present",
        "a file is gone",
        lambda i: i.inside["files"].update({FILE: None}),
        f"{FILE} is missing",
    ),
    (
        "patches-present",
        "a patch was left out",
        lambda i: i.manifest.update(patches=[]),
        f"{PATCH} is claimed",
    ),
    (
        "patches-present",
        "a created file is gone",
        lambda i: i.manifest["patches"][0].update(created=[METADATA]),
        f"{METADATA} is missing",
    ),
    (
        "patches-effective",
        "the symptom is still there",
        lambda i: i.inside["proofs"][0].update(code=1, output="starting\nmtp.fc is quantized"),
        f"{PATCH}: mtp.fc is quantized (the fault is still there)",
    ),
    (
        "patches-effective",
        "a proof crashes",
        lambda i: i.inside["proofs"][0].update(code=2),
        "its proof exits 2",
    ),
    (
        "patches-effective",
        "a proof was not run",
        lambda i: i.inside["proofs"].clear(),
        "its proof was not run",
    ),
    (
        "entrypoint-serve",
        "quotes get lost",
        lambda i: i.runs.update(
            {"serve": Ran(code=0, out=i.runs["serve"].out.replace("it's", "its"), err="")}
        ),
        "does not arrive intact",
    ),
    (
        "entrypoint-serve",
        "the default beats the user",
        lambda i: i.runs.update({"serve-arguments": i.runs["serve"]}),
        "should replace the default",
    ),
    (
        "entrypoint-serve",
        "it does not run",
        lambda i: i.runs.update({"serve": Ran(code=127, out="", err="no python")}),
        "no python",
    ),
    (
        "entrypoint-serve",
        "a mistake goes through",
        lambda i: i.runs.update({"serve-unbalanced": Ran(code=0, out="[]", err="")}),
        "serve-unbalanced should exit 2",
    ),
    (
        "entrypoint-modes",
        "no shell",
        lambda i: i.runs.update({"bash": Ran(code=127, out="", err="no bash")}),
        "bash: exit 127: no bash",
    ),
    (
        "entrypoint-modes",
        "no word about the missing Ray",
        lambda i: i.runs.update({"ray-head": Ran(code=127, out="", err="not found")}),
        "ray-head without Ray",
    ),
    (
        "entrypoint-modes",
        "Ray is there and not started",
        lambda i: i.inside["distributions"].append({"name": "ray", "version": "2"}),
        "ray-head: exit 3",
    ),
    (
        "labels-complete",
        "no creation date",
        lambda i: i.labels.pop("org.opencontainers.image.created"),
        "image.created",
    ),
    (
        "labels-complete",
        "a pin without a label",
        lambda i: i.labels.pop("io.imagefactory.pin.cuda"),
        "pin.cuda",
    ),
    (
        "labels-complete",
        "a patch without a label",
        lambda i: i.labels.pop("io.imagefactory.patch.vllm.mtp-exclusion"),
        "patch.vllm",
    ),
    (
        "labels-true",
        "a label that lies",
        lambda i: i.labels.update({"io.imagefactory.pin.vllm": "9"}),
        "pin.vllm is 9",
    ),
    (
        "labels-true",
        "another build key",
        lambda i: i.labels.update({"io.imagefactory.build-key": "old"}),
        "build-key is old",
    ),
    (
        "labels-true",
        "another lock",
        lambda i: i.labels.update({"io.imagefactory.lock-digest": "x"}),
        "the cell has lock",
    ),
    (
        "labels-true",
        "another platform",
        lambda i: setattr(i, "platform", "linux/amd64"),
        "the image is for linux/amd64",
    ),
]


@pytest.mark.parametrize(
    ("name", "fault", "break_it", "said"), FAULTS, ids=[f"{n}: {f}" for n, f, _, _ in FAULTS]
)
def test_a_check_goes_red_for_its_fault_and_says_why(
    name: str, fault: str, break_it: Callable[[Good], object], said: str
) -> None:
    image = Good(torch=CUDA)
    break_it(image)
    result = image.results()[name]
    assert result.outcome is Outcome.FAIL
    assert said in result.detail
    assert result.required
    assert not receipt(image).passed


SERVER_FAULTS: list[tuple[str, str, Callable[[Good], object], str]] = [
    (
        "server-starts",
        "it dies at start",
        lambda i: setattr(
            i,
            "server",
            server_run(fault="the container ended after 3 s", log_tail="PackageNotFoundError"),
        ),
        "PackageNotFoundError",
    ),
    (
        "server-models",
        "another model",
        lambda i: setattr(i, "server", server_run(models=("gpt",))),
        "gpt",
    ),
    (
        "server-models",
        "no list",
        lambda i: setattr(i, "server", server_run(models=(), models_error="HTTP 500")),
        "HTTP 500",
    ),
    (
        "server-completions",
        "garbage",
        lambda i: answers_with(i, "completion", text="!!!!!"),
        "'!!!!!' and not 'Paris .'",
    ),
    (
        "server-completions",
        "HTTP 500",
        lambda i: answers_with(i, "completion", text="dead", status=500),
        "HTTP 500, 'dead'",
    ),
    (
        "server-completions",
        "nothing was asked",
        lambda i: setattr(i, "server", server_run(answers=())),
        "no completion",
    ),
    (
        "server-chat",
        "garbage",
        lambda i: answers_with(i, "chat", text="Paris ."),
        "'Paris .' and not 'Tokyo .'",
    ),
    (
        "server-stream",
        "silence",
        lambda i: answers_with(i, "stream", text="timed out", status=None),
        "no response",
    ),
    (
        "server-stops",
        "it was killed",
        lambda i: setattr(i, "server", server_run(exit_code=137)),
        "killed",
    ),
    (
        "server-stops",
        "an error at the end",
        lambda i: setattr(i, "server", server_run(exit_code=1)),
        "exit 1 after SIGTERM",
    ),
]


@pytest.mark.parametrize(
    ("name", "fault", "break_it", "said"),
    SERVER_FAULTS,
    ids=[f"{n}: {f}" for n, f, _, _ in SERVER_FAULTS],
)
def test_a_check_of_the_server_goes_red_for_its_fault_and_says_why(
    name: str, fault: str, break_it: Callable[[Good], object], said: str
) -> None:
    image = Good(torch=CPU)
    break_it(image)
    result = image.results()[name]
    assert result.outcome is Outcome.FAIL
    assert said in result.detail
    assert not receipt(image).passed


def test_every_check_has_a_fault_that_turns_it_red() -> None:
    assert {name for name, *_ in (*FAULTS, *SERVER_FAULTS)} == {
        entry.name for entry in all_checks()
    }


def test_a_wrong_answer_comes_with_the_last_lines_of_the_log() -> None:
    image = Good(torch=CPU)
    answers_with(image, "completion", text="", status=500)
    assert "Illegal instruction" in image.results()["server-completions"].detail


def test_a_proof_that_cannot_be_made_here_is_a_skip_and_not_a_success() -> None:
    image = Good()
    image.inside["proofs"][0].update(code=3, output="needs a GPU of capability 12.1")
    result = image.results()["patches-effective"]
    assert result.outcome is Outcome.SKIP
    assert not result.required
    assert "cannot be proven here" in result.detail
    assert "needs a GPU of capability 12.1" in result.detail


def test_what_could_not_be_looked_at_holds_the_image_back() -> None:
    image = Good()
    image.facts = None
    results = image.results()
    assert results["extensions-load"].outcome is Outcome.SKIP
    assert results["extensions-load"].required
    assert not receipt(image).passed


def test_checks_of_a_server_that_did_not_start_are_skips_that_hold_the_image_back() -> None:
    image = Good(torch=CPU)
    image.server = server_run(fault="not healthy after 600 s", answers=())
    results = image.results()
    assert results["server-starts"].outcome is Outcome.FAIL
    assert all(
        results[name].outcome is Outcome.SKIP and results[name].required
        for name in SERVER_CHECKS - {"server-starts"}
    )


def test_a_distribution_that_a_patch_adds_is_allowed_and_named() -> None:
    image = Good(torch=CPU)
    image.inside["distributions"].append({"name": "vllm-extra", "version": "1"})
    assert image.results()["wheels-installed"].outcome is Outcome.FAIL
    image.manifest["patches"][0]["created"] = ["vllm_extra-1.dist-info/METADATA"]
    result = image.results()["wheels-installed"]
    assert result.outcome is Outcome.PASS
    assert "vllm-extra by a patch" in result.detail


def test_a_file_that_a_patch_deletes_must_stay_away() -> None:
    image = Good()
    image.manifest["patches"][0]["files"][FILE] = ""
    assert image.results()["patches-present"].outcome is Outcome.FAIL
    image.inside["files"][FILE] = None
    assert image.results()["patches-present"].outcome is Outcome.PASS


def test_a_cuda_cell_whose_lock_says_cpu_by_mistake_is_not_saved_by_agreeing_labels() -> None:
    image = Good(torch=CUDA)
    image.manifest["torch"] = {"version": "2.11.0+cpu", "cuda": None}
    set_torch(image, version="2.11.0+cpu", cuda=None)
    assert image.results()["torch-identity"].outcome is Outcome.FAIL


def test_ray_modes_pass_where_ray_is_installed_and_started() -> None:
    image = Good()
    image.inside["distributions"].append({"name": "ray", "version": "2"})
    started = Ran(code=0, out='["ray", "start", "--block"]', err="")
    image.runs.update({"ray-head": started, "ray-worker": started})
    assert image.results()["entrypoint-modes"].outcome is Outcome.PASS


def test_without_expectations_the_labels_are_held_against_the_manifest() -> None:
    image = Good()
    image.expected = None
    assert image.results()["labels-true"].outcome is Outcome.PASS
    image.manifest["build_key"] = "other"
    assert image.results()["labels-true"].outcome is Outcome.FAIL


def test_two_checks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two checks are named probe"):
        check("probe")(lambda _: passed(""))


def test_results_come_in_the_order_of_the_themes() -> None:
    names = [entry.name for entry in all_checks()]
    assert names[0] == "probe"
    assert [name for name in names if name.startswith("server-")] == names[-6:]
