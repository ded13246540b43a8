"""The registry of checks. A check is a small function in ``imagefactory.verify.checks``.

Adding one is writing one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from imagefactory.verifying import checks
from imagefactory.verifying.receipt import CheckResult, Outcome
from imagefactory.verifying.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a check says.

    Attributes:
        outcome: how it ended.
        detail: what was seen; for a failure also what was expected; for a skip why.
        excused: a skip that does not hold the image back, because it is not this image's or this
            machine's to pass.
            Other skips of a required check do: what could have been known and is not, is not
                proven.
        seconds: how long the observation took.
    """

    outcome: Outcome
    detail: str
    excused: bool = False
    seconds: float = 0.0


def passed(detail: str, *, seconds: float = 0.0) -> Verdict:
    """The check holds."""
    return Verdict(outcome=Outcome.PASS, detail=detail, seconds=seconds)


def failed(detail: str, *, seconds: float = 0.0) -> Verdict:
    """The check does not hold."""
    return Verdict(outcome=Outcome.FAIL, detail=detail, seconds=seconds)


def unknown(reason: str) -> Verdict:
    """The check could not be made although it should have been."""
    return Verdict(outcome=Outcome.SKIP, detail=reason)


def excused(reason: str, *, seconds: float = 0.0) -> Verdict:
    """The check cannot be made on this image or on this machine.

    It is never counted as a success.
    """
    return Verdict(outcome=Outcome.SKIP, detail=reason, excused=True, seconds=seconds)


Check = Callable[[Subject], Verdict]
Need = Literal["facts", "lock", "server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A check with what the decorator said about it."""

    name: str
    required: bool
    needs: tuple[Need, ...]
    function: Check


_registered: dict[str, Registered] = {}


def check(
    name: str, *, required: bool = True, needs: Need | tuple[Need, ...] = ()
) -> Callable[[Check], Check]:
    """Register the decorated function as the check ``name``.

    It is called only when what it needs is there.
    """

    def register(function: Check) -> Check:
        if name in _registered:
            raise ValueError(f"two checks are named {name}")
        wanted = (needs,) if isinstance(needs, str) else needs
        _registered[name] = Registered(
            name=name, required=required, needs=wanted, function=function
        )
        return function

    return register


def all_checks() -> tuple[Registered, ...]:
    """Every check, in the order of ``checks.ORDER`` and, within a file, as written."""
    for module in pkgutil.iter_modules(checks.__path__):
        importlib.import_module(f"{checks.__name__}.{module.name}")
    themes = {theme: place for place, theme in enumerate(checks.ORDER)}

    def place(entry: Registered) -> int:
        return themes.get(entry.function.__module__.rpartition(".")[2], len(themes))

    return tuple(sorted(_registered.values(), key=place))


def judge(subject: Subject) -> tuple[CheckResult, ...]:
    """The results of all checks on ``subject``."""
    return tuple(_result(entry, subject) for entry in all_checks())


def _result(entry: Registered, subject: Subject) -> CheckResult:
    missing = (_missing(need, subject) for need in entry.needs)
    verdict = next((found for found in missing if found is not None), None) or entry.function(
        subject
    )
    return CheckResult(
        name=entry.name,
        outcome=verdict.outcome,
        required=entry.required and not verdict.excused,
        detail=verdict.detail,
        seconds=verdict.seconds,
    )


def _missing(need: Need, subject: Subject) -> Verdict | None:
    """Why ``need`` is not there, as the verdict on a check that has it; None if it is there."""
    if need == "facts" and subject.probed.facts is None:
        return unknown("the probe reported nothing")
    if need == "lock" and subject.resolution is None:
        return failed(
            "wheels.lock has no resolution of the digest in the label: the image "
            "was made from another lock"
        )
    if need == "server" and subject.server is None:
        return excused("needs a GPU: a CUDA image cannot serve here")
    return None
