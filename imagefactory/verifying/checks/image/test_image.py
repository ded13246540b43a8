"""Image: the faults that turn its checks red; tests of ``outside`` show what is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.verify_fakes import CONTENT, Good
from support.verify_faults import Fault, receipt, red

from imagefactory.verifying.outside.judged import Finding
from imagefactory.verifying.receipt import Outcome


def found(image: Good, **parts: object) -> None:
    image.content = replace(CONTENT, **parts)  # type: ignore[arg-type]


FILE = Finding(path="opt/evil.py", what="has other content", origin="wheel numpy")
FAULTS = (
    Fault(
        check="image-origin",
        name="the digest of no build",
        breaks=lambda image: setattr(image, "builds", ("sha256:1", "sha256:2")),
        says="foreign: the image is sha256:abab",
    ),
    Fault(
        check="image-config",
        name="a variable",
        breaks=lambda image: found(image, config=("LD_PRELOAD is '/x'",)),
        says="LD_PRELOAD",
    ),
    Fault(
        check="image-files",
        name="changed files",
        breaks=lambda image: found(image, changed=(FILE,) * 7),
        says="/opt/evil.py has other content (wheel numpy); /opt/evil.py",
    ),
    Fault(
        check="image-files",
        name="an image that cannot be read",
        breaks=lambda image: found(image, error="lacks a part", damaged=True),
        says="lacks a part",
    ),
    Fault(
        check="image-unexplained",
        name="a file from nowhere",
        breaks=lambda image: found(image, extra=(Finding(path="x.pth", what="is unknown"),)),
        says="/x.pth is unknown",
    ),
)
CONTENT_CHECKS = ("image-config", "image-files", "image-unexplained")


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


def test_findings_that_are_not_shown_are_counted() -> None:
    image = Good()
    found(image, changed=(FILE,) * 7)
    assert image.results()["image-files"].detail.endswith("; and 2 more")


def test_an_image_that_was_not_built_here_is_judged_by_its_content() -> None:
    image = Good()
    image.builds = ()
    result = image.results()["image-origin"]
    assert (result.outcome, result.required) == (Outcome.SKIP, False)
    assert receipt(image).passed


def test_what_could_not_be_compared_is_unknown_and_holds_the_image_back() -> None:
    image = Good()
    found(image, error="no index has numpy")
    results = image.results()
    for name in CONTENT_CHECKS:
        assert (results[name].outcome, results[name].required) == (Outcome.SKIP, True)
    assert not receipt(image).passed


def test_obsolete_patches_are_named() -> None:
    image = Good()
    found(image, obsolete=("vllm/one",))
    detail = image.results()["image-files"].detail
    assert "left out as obsolete: vllm/one" in detail
