"""Entrypoint: the faults that turn its checks red. The program has tests of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.image_tree import ImageTree
from support.verify_fakes import Good
from support.verify_faults import Fault, red

from imagefactory.locking.lock import Resolution
from imagefactory.verifying.receipt import Outcome
from imagefactory.verifying.subject import Ran


def good(_: Resolution) -> dict[str, Any]:
    """The facts of a good image."""
    return {"ray": False, "seconds": 0.0}


def ends(image: Good, run: str, code: int, *, out: str = "", err: str = "") -> None:
    """Let a run of the entrypoint end in another way."""
    image.runs[run] = Ran(code=code, out=out, err=err)


FAULTS = (
    Fault(
        check="entrypoint-serve",
        name="quotes get lost",
        breaks=lambda image: ends(
            image, "serve", 0, out=image.runs["serve"].out.replace("it's", "its")
        ),
        says="is not passed on intact",
    ),
    Fault(
        check="entrypoint-serve",
        name="the default beats the user",
        breaks=lambda image: image.runs.update({"serve-arguments": image.runs["serve"]}),
        says="should replace the default",
    ),
    Fault(
        check="entrypoint-serve",
        name="the default stays beside the variable's option",
        breaks=lambda image: ends(
            image,
            "serve",
            0,
            out=image.runs["serve"].out.replace('"--max_num', '"--max-num-seqs", "--max_num'),
        ),
        says="VLLM_EXTRA_ARGS should replace the default",
    ),
    Fault(
        check="entrypoint-serve",
        name="the variable's option gets lost",
        breaks=lambda image: ends(
            image, "serve", 0, out=image.runs["serve"].out.replace("--max_num_seqs=3", "--other")
        ),
        says="VLLM_EXTRA_ARGS should replace the default",
    ),
    Fault(
        check="entrypoint-serve",
        name="it does not run",
        breaks=lambda image: ends(image, "serve", 127, err="no python"),
        says="no python",
    ),
    Fault(
        check="entrypoint-serve",
        name="it fails after it printed the command",
        breaks=lambda image: ends(image, "serve", 1, out=image.runs["serve"].out, err="late"),
        says="late",
    ),
    Fault(
        check="entrypoint-serve",
        name="a mistake goes through",
        breaks=lambda image: ends(image, "serve-unbalanced", 0, out="[]"),
        says="serve-unbalanced should exit 2",
    ),
    Fault(
        check="entrypoint-modes",
        name="no shell",
        breaks=lambda image: ends(image, "bash", 127, err="no bash"),
        says="bash: exit 127: no bash",
    ),
    Fault(
        check="entrypoint-modes",
        name="no word about the missing Ray",
        breaks=lambda image: ends(image, "ray-head", 127, err="not found"),
        says="ray-head without Ray",
    ),
    Fault(
        check="entrypoint-modes",
        name="no word about the missing Ray from a worker",
        breaks=lambda image: ends(image, "ray-worker", 3, err="not found"),
        says="ray-worker without Ray",
    ),
    Fault(
        check="entrypoint-modes",
        name="a worker goes on without Ray",
        breaks=lambda image: ends(image, "ray-worker", 0, err="no Ray"),
        says="ray-worker without Ray",
    ),
    Fault(
        check="entrypoint-modes",
        name="Ray is installed and not started",
        breaks=lambda image: image.facts["entrypoint"].update(ray=True),
        says="ray-head: exit 3",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


def test_ray_modes_pass_where_ray_is_installed_and_started() -> None:
    image = Good()
    image.facts["entrypoint"].update(ray=True)
    for mode in ("ray-head", "ray-worker"):
        ends(image, mode, 0, out='["ray", "start", "--block"]')
    assert image.results()["entrypoint-modes"].outcome is Outcome.PASS


def test_a_check_takes_as_long_as_the_runs_that_it_judges() -> None:
    image = Good()
    image.runs = {name: replace(run, seconds=1.0) for name, run in image.runs.items()}
    seconds = {name: found.seconds for name, found in image.results().items()}
    serving = len([name for name in image.runs if name.startswith("serve")])
    assert (seconds["entrypoint-modes"], seconds["entrypoint-serve"]) == (3, serving)


@pytest.mark.programs
def test_ray_is_found_where_it_is_installed(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.distribution("raydp", "1.0", {})
    assert image.facts("entrypoint")["ray"] is False
    image.distribution("ray", "2.49", {})
    assert image.facts("entrypoint")["ray"] is True
