"""Patches: what their probe finds in a tree, and the faults that turn their checks red."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.image_tree import ImageTree
from support.verify_fakes import CONTENT, FILE, METADATA, PATCH, Good
from support.verify_faults import Fault, red

from imagefactory.locking.lock import Resolution
from imagefactory.verifying.checks.patches import probe
from imagefactory.verifying.outside.judged import Finding, Proven
from imagefactory.verifying.probe_core import Context
from imagefactory.verifying.receipt import Outcome


def good(_: Resolution) -> dict[str, Any]:
    """The facts of a good image."""
    return {
        "files": {FILE: "11" * 32},
        "proofs": [{"patch": PATCH, "code": 0, "output": "mtp.fc is excluded"}],
        "seconds": 1.0,
    }


def proof(image: Good, **changes: object) -> None:
    image.facts["patches"]["proofs"][0].update(changes)


def cell_with(image: Good, *patches: str) -> None:
    """Expect these patches of the image."""
    assert image.expected is not None
    cell = image.expected.cell
    flavor = replace(cell.flavor, patches=patches)
    image.expected = replace(image.expected, cell=replace(cell, flavor=flavor))


def without_patches(image: Good) -> None:
    """An image that admits to having no patch, in its manifest and its labels."""
    image.manifest.update(patches=[])
    image.labels.pop("io.imagefactory.patch.vllm.mtp-exclusion")


def unproven(image: Good, label: str = PATCH, cell: tuple[str, ...] = (PATCH,)) -> None:
    """An image whose manifest says that its patch is unproven; it has no proof."""
    image.manifest["patches"][0].update(state="unproven")
    image.facts["patches"]["proofs"].clear()
    image.labels["io.imagefactory.unproven"] = label
    assert image.expected is not None
    image.expected = replace(image.expected, unproven=cell)


FAULTS = (
    Fault(
        check="patches-present",
        name="an overwritten file",
        breaks=lambda image: image.facts["patches"]["files"].update({FILE: "22" * 32}),
        says="is not as patched",
    ),
    Fault(
        check="patches-present",
        name="a file is gone",
        breaks=lambda image: image.facts["patches"]["files"].update({FILE: None}),
        says=f"{FILE} is missing",
    ),
    Fault(
        check="patches-present",
        name="a label without its patch",
        breaks=lambda image: image.manifest.update(patches=[]),
        says=f"{PATCH} has a label and is not in the manifest",
    ),
    Fault(
        check="patches-present",
        name="a patch of the cell is missing, and no label or manifest has it",
        breaks=without_patches,
        says=f"{PATCH} is missing, the cell has it",
    ),
    Fault(
        check="patches-present",
        name="one of several patches of the cell is missing",
        breaks=lambda image: cell_with(image, PATCH, "vllm/other"),
        says="vllm/other is missing, the cell has it",
    ),
    Fault(
        check="patches-present",
        name="a patch that the cell does not have",
        breaks=cell_with,
        says=f"{PATCH} is in the image, the cell does not have it",
    ),
    Fault(
        check="patches-present",
        name="a created file is gone",
        breaks=lambda image: image.manifest["patches"][0].update(created=[METADATA]),
        says=f"{METADATA} is missing",
    ),
    Fault(
        check="patches-present",
        name="a patch is called unproven, and the label does not say so",
        breaks=lambda image: unproven(image, label=""),
        says=f"unproven are {PATCH}, the label says none",
    ),
    Fault(
        check="patches-present",
        name="a patch of the cell has a proof, and the image calls it unproven",
        breaks=lambda image: unproven(image, cell=()),
        says=f"unproven are {PATCH}, the cell says none",
    ),
    Fault(
        check="patches-effective",
        name="the symptom is still there",
        breaks=lambda image: proof(image, code=1, output="starting\nmtp.fc is quantized"),
        says=f"{PATCH}: mtp.fc is quantized (the fault is still there)",
    ),
    Fault(
        check="patches-effective",
        name="a proof crashes",
        breaks=lambda image: proof(image, code=2),
        says="its proof exits 2",
    ),
    Fault(
        check="patches-effective",
        name="a proof that does not end",
        breaks=lambda image: proof(image, code=None, output="still running after 600 s"),
        says=f"{PATCH}: still running after 600 s",
    ),
    Fault(
        check="patches-effective",
        name="a proof was not run",
        breaks=lambda image: image.facts["patches"]["proofs"].clear(),
        says="its proof was not run",
    ),
)


@pytest.mark.parametrize(
    ("code", "outcome", "says"),
    [
        (0, Outcome.PASS, "1 proof passed, 1 of them run on this machine, on the image's files"),
        (1, Outcome.FAIL, f"{PATCH}: seen here (the fault is still there)"),
    ],
)
def test_a_proof_that_ran_on_this_machine_counts_and_the_image_cannot_overrule_it(
    code: int, outcome: Outcome, says: str
) -> None:
    image = Good()
    proven = Proven(patch=PATCH, code=code, output="seen here")
    image.content = replace(CONTENT, proofs=(proven,), proof_seconds=3.0)
    for inside in ([], [{"patch": PATCH, "code": 1 - code, "output": "of the image"}]):
        image.facts["patches"]["proofs"] = inside
        result = image.results()["patches-effective"]
        assert (result.outcome, result.detail, result.seconds) == (outcome, says, 3.0)


def test_a_patch_that_was_proven_nowhere_fails() -> None:
    image = Good()
    image.facts["patches"]["proofs"] = []
    image.content = replace(CONTENT, extra=(Finding(path="evil.pth", what="is extra"),))
    assert image.results()["patches-effective"].outcome is Outcome.FAIL


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


def test_an_inconclusive_proof_is_a_skip_and_not_a_success() -> None:
    image = Good()
    proof(image, code=3, output="needs a GPU of capability 12.1")
    result = image.results()["patches-effective"]
    assert result.outcome is Outcome.SKIP
    assert not result.required
    assert result.detail == f"inconclusive here: {PATCH}: needs a GPU of capability 12.1"


def test_an_unproven_patch_passes_and_is_named() -> None:
    image = Good()
    unproven(image)
    results = image.results()
    assert results["patches-present"].outcome is Outcome.PASS
    effective = results["patches-effective"]
    assert (effective.outcome, effective.detail) == (Outcome.PASS, f"1 unproven: {PATCH}")


def test_without_a_known_cell_the_labels_and_the_manifest_have_to_agree() -> None:
    image = Good()
    image.expected = None
    assert image.results()["patches-present"].outcome is Outcome.PASS
    without_patches(image)
    assert image.results()["patches-present"].outcome is Outcome.PASS


def test_a_file_that_a_patch_deletes_must_not_come_back() -> None:
    image = Good()
    image.manifest["patches"][0]["files"][FILE] = ""
    assert image.results()["patches-present"].outcome is Outcome.FAIL
    image.facts["patches"]["files"][FILE] = None
    assert image.results()["patches-present"].outcome is Outcome.PASS


@pytest.mark.programs
def test_files_that_patches_touched_are_hashed_and_missing_ones_are_null(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.write("vllm/a.py", "patched")
    image.manifest(
        patches=[
            {
                "name": "vllm/x",
                "files": {"vllm/a.py": "?", "vllm/b.py": "?"},
                "created": ["vllm/c.py"],
            }
        ]
    )
    digest = hashlib.sha256(b"patched").hexdigest()
    assert image.facts("patches")["files"] == {
        "vllm/a.py": digest,
        "vllm/b.py": None,
        "vllm/c.py": None,
    }


@pytest.mark.programs
def test_proofs_run_on_the_installed_tree_and_their_output_is_kept(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.manifest(patches=[{"name": "vllm/x", "files": {}}, {"name": "vllm/none", "files": {}}])
    image.proof("vllm/x", "import sys\nprint('looked at', sys.argv[1])\nsys.exit(3)")
    found, missing = image.facts("patches")["proofs"]
    assert (found["patch"], found["code"], found["output"]) == (
        "vllm/x",
        3,
        f"looked at {image.site}",
    )
    assert missing["code"] is None
    assert "there is no" in missing["output"]


@pytest.mark.programs
def test_proofs_may_import_what_lies_beside_them(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.manifest(patches=[{"name": "vllm/x", "files": {}}])
    image.proof("vllm/x", "import shared\nprint(shared.WORD)")
    (image.home / "proofs" / "shared.py").write_text("WORD = 'found'")
    (found,) = image.facts("patches")["proofs"]
    assert (found["code"], found["output"]) == (0, "found")


@pytest.mark.programs
def test_a_proof_that_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = ImageTree(tmp_path)
    monkeypatch.setattr(probe, "PROOF_TIMEOUT", 0.5)
    image.proof("vllm/x", "import time\ntime.sleep(60)")
    context = Context(site=image.site, home=image.home, manifest={})
    fact = probe.proof_facts(context, "vllm/x")
    assert (fact["code"], fact["output"]) == (None, "still running after 0.5 s")
