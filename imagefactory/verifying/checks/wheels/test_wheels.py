"""Wheels: what their probe finds in a tree, and the faults that turn their checks red."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.image_tree import ImageTree
from support.verify_fakes import CONTENT, CPU, Good
from support.verify_faults import Fault, red

from imagefactory.locking.lock import Resolution
from imagefactory.verifying.checks.wheels import check
from imagefactory.verifying.outside.judged import Finding
from imagefactory.verifying.receipt import Outcome


def good(locked: Resolution) -> dict[str, Any]:
    """The facts of a good image."""
    return {
        "distributions": [
            {"name": wheel.name, "version": wheel.version} for wheel in locked.wheels
        ],
        "seconds": 0.1,
    }


def distributions(image: Good) -> list[dict[str, str]]:
    found: list[dict[str, str]] = image.facts["wheels"]["distributions"]
    return found


FAULTS = (
    Fault(
        check="wheels-installed",
        name="a missing wheel",
        breaks=lambda image: distributions(image).pop(0),
        says="numpy 2.0 is missing",
    ),
    Fault(
        check="wheels-installed",
        name="an extra wheel",
        breaks=lambda image: distributions(image).append({"name": "pip", "version": "25.0"}),
        says="pip 25.0 is not in the lock",
    ),
    Fault(
        check="wheels-installed",
        name="another version",
        breaks=lambda image: distributions(image)[0].update(version="1.9"),
        says="numpy is 1.9, locked is 2.0",
    ),
    Fault(
        check="wheels-installed",
        name="two versions at once",
        breaks=lambda image: distributions(image).append({"name": "numpy", "version": "2.0"}),
        says="numpy is installed twice",
    ),
    Fault(
        check="wheels-hashes",
        name="another file of the same version",
        breaks=lambda image: image.manifest["wheels"][0].update(sha256="00" * 32),
        says="different wheels for numpy",
    ),
)


@pytest.mark.parametrize(
    ("path", "part", "outcome"),
    [
        ("numpy-2.0.dist-info/METADATA", "changed", Outcome.FAIL),
        ("pip-25.0.dist-info", "extra", Outcome.FAIL),
        ("old.egg-info", "extra", Outcome.FAIL),
        ("numpy/core.py", "changed", Outcome.PASS),
    ],
)
def test_an_image_whose_layers_were_read_instead_is_judged_by_them(
    path: str, part: str, outcome: Outcome
) -> None:
    image = Good()
    image.facts["wheels"] = {"seconds": 0.0}
    assert image.results()["wheels-installed"].outcome is Outcome.PASS
    finding = Finding(path=f"opt/venv/lib/python3.13/site-packages/{path}", what="is wrong")
    image.content = replace(CONTENT, **{part: (finding,)})  # type: ignore[arg-type]
    assert image.results()["wheels-installed"].outcome is outcome


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


@pytest.mark.parametrize(
    ("installed", "locked", "agrees"),
    [
        ("2.11.0", "2.11.0", True),
        ("2.11.0", "2.11.0+cu130", True),
        ("2.11.0+cu130", "2.11.0+cu130", True),
        ("2.11.0+cu128", "2.11.0+cu130", False),
        ("2.11.0+cu130", "2.11.0", False),
        ("2.11.1", "2.11.0+cu130", False),
    ],
)
def test_metadata_may_leave_out_the_local_part(installed: str, locked: str, agrees: bool) -> None:
    assert check.same(installed, locked) is agrees


def test_a_distribution_that_a_patch_adds_is_allowed_and_named() -> None:
    image = Good(torch=CPU)
    distributions(image).append({"name": "vllm-extra", "version": "1"})
    assert image.results()["wheels-installed"].outcome is Outcome.FAIL
    image.manifest["patches"][0]["created"] = ["vllm_extra-1.dist-info/METADATA"]
    result = image.results()["wheels-installed"]
    assert result.outcome is Outcome.PASS
    assert "vllm-extra by a patch" in result.detail


@pytest.mark.programs
def test_every_installed_distribution_is_listed_by_normalized_name(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.distribution("Some_Thing.x", "1.0", {})
    image.distribution("numpy", "2.0", {})
    assert image.facts("wheels")["distributions"] == [
        {"name": "numpy", "version": "2.0"},
        {"name": "some-thing-x", "version": "1.0"},
    ]
