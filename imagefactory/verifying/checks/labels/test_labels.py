"""Labels: the faults that turn their checks red."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.verify_fakes import Good
from support.verify_faults import Fault, red

from imagefactory.verifying.receipt import Outcome


def label(image: Good, **changes: str) -> None:
    """Change labels of ours; ``_`` is a dash and ``__`` a dot."""
    image.labels.update({f"io.imagefactory.{_name(key)}": text for key, text in changes.items()})


def _name(key: str) -> str:
    return key.replace("__", ".").replace("_", "-")


def expect(image: Good, **changes: Any) -> None:
    """Expect something else of an image whose labels and manifest agree."""
    assert image.expected is not None
    image.expected = replace(image.expected, **changes)


def expect_cell(image: Good, axes: Mapping[str, str] = {}, **changes: Any) -> None:
    """Expect an image of another cell."""
    assert image.expected is not None
    cell = image.expected.cell
    expect(image, cell=replace(cell, axes={**cell.axes, **axes}, **changes))


def expect_flavor(image: Good, name: str) -> None:
    assert image.expected is not None
    expect_cell(image, flavor=replace(image.expected.cell.flavor, name=name))


FAULTS = (
    Fault(
        check="labels-complete",
        name="no creation date",
        breaks=lambda image: image.labels.pop("org.opencontainers.image.created"),
        says="image.created",
    ),
    Fault(
        check="labels-complete",
        name="a pin without a label",
        breaks=lambda image: image.labels.pop("io.imagefactory.pin.cuda"),
        says="pin.cuda",
    ),
    Fault(
        check="labels-complete",
        name="a patch without a label",
        breaks=lambda image: image.labels.pop("io.imagefactory.patch.vllm.mtp-exclusion"),
        says="patch.vllm",
    ),
    Fault(
        check="labels-complete",
        name="no manifest",
        breaks=lambda image: image.reported.update(manifest=None),
        says="no manifest",
    ),
    Fault(
        check="labels-true",
        name="a false label",
        breaks=lambda image: label(image, pin__vllm="9"),
        says="pin.vllm is 9, the image's manifest has 0.22.1",
    ),
    Fault(
        check="labels-true",
        name="another build key than in the manifest",
        breaks=lambda image: label(image, build_key="old"),
        says="build-key is old, the image's manifest has key",
    ),
    Fault(
        check="labels-true",
        name="another platform",
        breaks=lambda image: setattr(image, "platform", "linux/amd64"),
        says="the image is for linux/amd64, the image's manifest has linux/arm64",
    ),
    Fault(
        check="labels-true",
        name="an image of another cell",
        breaks=lambda image: expect_cell(image, name="b-cell"),
        says="cell is a-cell, the cell has b-cell",
    ),
    Fault(
        check="labels-true",
        name="an image of an older build key",
        breaks=lambda image: expect(image, build_key="newer"),
        says="build-key is key, the cell has newer",
    ),
    Fault(
        check="labels-true",
        name="an image of an older lock",
        breaks=lambda image: expect(image, lock_digest="newer"),
        says="lock-digest is lock, the cell has newer",
    ),
    Fault(
        check="labels-true",
        name="an image with another version of vLLM than the cell",
        breaks=lambda image: expect_cell(image, {"vllm": "0.32.0"}),
        says="pin.vllm is 0.22.1, the cell has 0.32.0",
    ),
    Fault(
        check="labels-true",
        name="an image without a pin of the cell",
        breaks=lambda image: expect_cell(image, {"flashinfer": "0.6.3"}),
        says="pin.flashinfer is missing, the cell has 0.6.3",
    ),
    Fault(
        check="labels-complete",
        name="an axis of the user's own without a label",
        breaks=lambda image: image.manifest["axes"].update(transformers="5"),
        says="pin.transformers",
    ),
    Fault(
        check="labels-true",
        name="an image without an axis of the user's own that the cell has",
        breaks=lambda image: expect_cell(image, {"transformers": "5"}),
        says="pin.transformers is missing, the cell has 5",
    ),
    Fault(
        check="labels-true",
        name="an axis of the user's own that the cell does not have",
        breaks=lambda image: label(image, pin__nccl="2.28"),
        says="pin.nccl is 2.28, the cell has nothing",
    ),
    Fault(
        check="labels-true",
        name="an image of another flavor",
        breaks=lambda image: expect_flavor(image, "gb10-nemotron"),
        says="flavor is gb10, the cell has gb10-nemotron",
    ),
    Fault(
        check="labels-true",
        name="an image of another channel",
        breaks=lambda image: expect_cell(image, {"channel": "cu129"}),
        says="channel is cu130, the cell has cu129",
    ),
    Fault(
        check="labels-true",
        name="an image of another platform than the cell",
        breaks=lambda image: expect_cell(image, {"platform": "linux/amd64"}),
        says="the image is for linux/arm64, the cell has linux/amd64",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


def test_a_pin_that_the_cell_does_not_have_is_a_fault() -> None:
    image = Good()
    label(image, pin__flashinfer="0.6.3")
    image.manifest["axes"]["flashinfer"] = "0.6.3"
    result = image.results()["labels-true"]
    assert result.outcome is Outcome.FAIL
    assert "pin.flashinfer is 0.6.3, the cell has nothing" in result.detail


def test_without_a_known_cell_the_labels_are_compared_with_the_manifest_only() -> None:
    image = Good()
    image.expected = None
    result = image.results()["labels-true"]
    assert (result.outcome, result.detail) == (Outcome.PASS, "as in the image's manifest")
    image.manifest["build_key"] = "other"
    assert image.results()["labels-true"].outcome is Outcome.FAIL


def test_with_a_known_cell_a_pass_says_that_it_was_compared() -> None:
    assert Good().results()["labels-true"].detail == "as in the image's manifest and the cell"
