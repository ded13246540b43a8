"""Faults that turn checks red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from imagefactory.locking.lock import TorchBuild
from imagefactory.verifying.receipt import Outcome, Receipt
from support.verify_fakes import CUDA, Good


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something wrong with an image.

    Attributes:
        check: the check that has to go red for it.
        name: what is wrong.
        breaks: puts it into a good image.
        says: what the check's detail has to contain.
        torch: the build of torch in that image.
    """

    check: str
    name: str
    breaks: Callable[[Good], object]
    says: str
    torch: TorchBuild = CUDA

    def __str__(self) -> str:
        return f"{self.check}: {self.name}"


def red(fault: Fault) -> str:
    """What the check says about the fault, having failed and kept the image from moving."""
    image = Good(torch=fault.torch)
    fault.breaks(image)
    result = image.results()[fault.check]
    assert result.outcome is Outcome.FAIL, result
    assert result.required
    assert not receipt(image).passed
    return result.detail


def receipt(image: Good) -> Receipt:
    """The receipt that the image gets."""
    return Receipt(
        digest="sha256:0",
        tag="t",
        cell="c",
        build_key="k",
        verified_at="now",
        checks=tuple(image.results().values()),
    )
