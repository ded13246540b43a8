"""The registry of checks: finds them in ``imagefactory.verifying.checks`` and judges with them."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from imagefactory.verifying import checks
from imagefactory.verifying.models.dialog import MODEL as DEFAULT
from imagefactory.verifying.receipt import CheckResult, Level, Outcome, Requirement
from imagefactory.verifying.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a check concludes.

    Attributes:
        outcome: how it ended.
        detail: what was seen; for a failure also what was expected; for a skip why.
        excused: a skip that does not hold the image back, because the check does not apply to this
            image or cannot run on this machine. Other skips of a required check do hold it back:
            what could have been observed and was not is not proven.
        seconds: how long the observation took.
    """

    outcome: Outcome
    detail: str
    excused: bool = False
    seconds: float = 0.0


def passed(detail: str, *, seconds: float = 0.0) -> Verdict:
    """The check passes."""
    return Verdict(outcome=Outcome.PASS, detail=detail, seconds=seconds)


def failed(detail: str, *, seconds: float = 0.0) -> Verdict:
    """The check fails."""
    return Verdict(outcome=Outcome.FAIL, detail=detail, seconds=seconds)


def unknown(reason: str) -> Verdict:
    """The check could not run although it should have."""
    return Verdict(outcome=Outcome.SKIP, detail=reason)


def excused(reason: str, *, seconds: float = 0.0) -> Verdict:
    """The check does not apply to this image, or cannot run on this machine.

    It is never counted as a success.
    """
    return Verdict(outcome=Outcome.SKIP, detail=reason, excused=True, seconds=seconds)


def count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``: for the details of verdicts."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


NO_GPU = "needs a GPU: verify --gpu, on a machine with one"
#: Characters of a detail that are kept: most of it may come from the image.
MOST_DETAIL = 20_000

Check = Callable[[Subject], Verdict]
#: What a check needs before it can run: ``facts``, those of its theme's own probe; ``manifest``,
#: what the build recorded in the image; ``lock``, the locked wheels; ``server``, a run of vLLM;
#: ``gpu``, the report of the probes on a GPU.
Need = Literal["facts", "manifest", "lock", "server", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A check with what the decorator says about it.

    ``excusable``: whether ``excused`` is among its verdicts; ``model``: the tiny model that has to
    be served for it.
    """

    name: str
    required: bool
    needs: tuple[Need, ...]
    function: Check
    excusable: bool = False
    model: str = ""

    @property
    def theme(self) -> str:
        """The folder that the check is in."""
        return self.function.__module__.split(".")[-2]

    @property
    def level(self) -> Level:
        """The level that it belongs to, by what has to run for it."""
        if "gpu" in self.needs or (self.model and "server" not in self.needs):
            return Level.GPU
        if "server" in self.needs:
            return Level.SERVE
        inside = {"facts", "manifest"} & {*self.needs}
        return Level.STATIC if self.theme in checks.STATIC and not inside else Level.IMPORT

    @property
    def may_lack_machine(self) -> bool:
        """Whether not every machine can run it."""
        return self.level in (Level.SERVE, Level.GPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A check as users see it.

    Attributes:
        name: the check's name in receipts.
        theme: the theme that it belongs to.
        level: the level of verification that it belongs to.
        required: whether a failure keeps the image from moving.
        needs: what has to be there for it to run.
        text: what it asserts and what it fails for, as plain sentences.
    """

    name: str
    theme: str
    level: Level
    required: bool
    needs: tuple[Need, ...]
    text: str


def check(
    name: str,
    *,
    required: bool = True,
    needs: Need | tuple[Need, ...] = (),
    excusable: bool = False,
    model: str = "",
) -> Callable[[Check], Registered]:
    """Make the decorated function the check ``name``.

    It is called only when what it needs is there. Only an ``excusable`` check may return
    ``excused``. One that needs a server needs that of the default model, one with a ``model`` its.
    """

    def register(function: Check) -> Registered:
        wanted = (needs,) if isinstance(needs, str) else needs
        served = DEFAULT.name if "server" in wanted else model
        return Registered(
            name=name,
            required=required,
            needs=wanted,
            function=function,
            excusable=excusable,
            model=served,
        )

    return register


def themes() -> tuple[str, ...]:
    """Every folder of checks, in the order of ``checks.ORDER``; others follow by name."""
    order = {theme: number for number, theme in enumerate(checks.ORDER)}
    found = (module.name for module in pkgutil.iter_modules(checks.__path__) if module.ispkg)
    return tuple(sorted(found, key=lambda theme: (order.get(theme, len(order)), theme)))


def all_checks() -> tuple[Registered, ...]:
    """Every check: theme by theme and, within a theme, as written.

    Raises ValueError if two checks have the same name.
    """
    found: dict[str, Registered] = {}
    for theme in themes():
        module = importlib.import_module(f"{checks.__name__}.{theme}.check")
        for entry in (*vars(module).values(), *getattr(module, "CHECKS", ())):
            if not isinstance(entry, Registered):
                continue
            if entry.name in found:
                raise ValueError(f"two checks are named {entry.name}")
            found[entry.name] = entry
    return tuple(found.values())


def describe() -> tuple[Description, ...]:
    """Every check with its documentation, in the order of results."""
    return tuple(
        Description(
            name=entry.name,
            theme=entry.theme,
            level=entry.level,
            required=entry.required,
            needs=entry.needs,
            text=" ".join((inspect.getdoc(entry.function) or "").split()),
        )
        for entry in all_checks()
    )


def requirements(channel: str) -> tuple[Requirement, ...]:
    """What a receipt must have for an image of a torch channel before it may move.

    Images of the channel ``cpu`` can serve everywhere.
    """
    return tuple(
        Requirement(
            name=entry.name,
            required=entry.required,
            excusable=entry.excusable
            or entry.level is Level.GPU
            or (entry.level is Level.SERVE and channel != "cpu"),
            level=entry.level,
        )
        for entry in all_checks()
    )


def reached(results: Sequence[CheckResult]) -> Level:
    """The highest level that these results show, and all levels before it.

    At each, all of its checks have to be among the results, something has to have passed, and
    nothing that is required may have been skipped.
    """
    levels = {entry.name: entry.level for entry in all_checks()}
    made = {one.name for one in results}
    found = Level.STATIC
    for level in Level:
        own = [one for one in results if levels[one.name] is level]
        passed = {one.outcome is Outcome.PASS for one in own if one.required}
        if passed != {True} or any(levels[name] is level for name in levels.keys() - made):
            break
        found = level
    return found


def left_out(results: Sequence[CheckResult], level: Level) -> tuple[str, ...]:
    """The tiny models that ``level`` needs and of which nothing is among the results."""
    made = {one.name for one in results}
    wanted = (one for one in all_checks() if one.model and level.includes(one.level))
    return tuple(dict.fromkeys(one.model for one in wanted if one.name not in made))


def judge(subject: Subject, limit: Level = Level.GPU) -> tuple[CheckResult, ...]:
    """The results of all checks on ``subject`` up to the level ``limit``.

    There is none for a tiny model that was left out; one that was served beyond the level has one.
    """
    return tuple(
        _result(entry, subject)
        for entry in all_checks()
        if entry.model in subject.models
        or (limit.includes(entry.level) and entry.model not in subject.lacking)
    )


def _result(entry: Registered, subject: Subject) -> CheckResult:
    try:
        verdict = _sound(_unmet(entry, subject) or entry.function(subject))
    except Exception as error:  # noqa: BLE001 - a report of another shape
        verdict = failed(f"what was observed cannot be judged: {type(error).__name__}: {error}")
    may_skip = entry.excusable or entry.may_lack_machine
    # a surrogate by itself can be in JSON of the image, and in no receipt
    detail = verdict.detail.encode(errors="replace").decode()
    if len(detail) > MOST_DETAIL:
        detail = f"{detail[:MOST_DETAIL]} ({len(detail) - MOST_DETAIL} more characters)"
    return CheckResult(
        name=entry.name,
        outcome=verdict.outcome,
        required=entry.required and not (verdict.excused and may_skip),
        detail=detail,
        seconds=verdict.seconds,
    )


def _sound(verdict: Verdict) -> Verdict:
    """``verdict``, if it is one: much of it is what the image says."""
    if not isinstance(verdict.detail, str) or not math.isfinite(verdict.seconds):
        raise TypeError(f"took {verdict.seconds!r} s: {verdict.detail!r}")
    return verdict


def _unmet(entry: Registered, subject: Subject) -> Verdict | None:
    """The verdict on a check for which something that it needs is missing; None if nothing is."""
    missing = (_missing(need, entry.theme, subject) for need in entry.needs)
    found = next((verdict for verdict in missing if verdict is not None), None)
    if found or not entry.model or "server" in entry.needs or entry.model in subject.models:
        return found
    return excused(NO_GPU) if subject.gpu is None else unknown("it was not served")


def _missing(need: Need, theme: str, subject: Subject) -> Verdict | None:
    if need in ("facts", "manifest"):
        return _unreported(need, theme, subject)
    if need == "lock" and subject.resolution is None:
        return failed(
            "wheels.lock has no resolution with the digest in the image's label: the image was "
            "made from another lock"
        )
    if need == "server" and subject.server is None:
        return excused("needs a GPU: a CUDA image cannot serve on this machine")
    if need == "gpu" and subject.gpu is None:
        return excused(NO_GPU)
    return None


def _unreported(need: Need, theme: str, subject: Subject) -> Verdict | None:
    if subject.probed.report is None:
        return unknown("the probe reported nothing")
    if need == "facts" and theme in subject.errors:
        return failed(f"its probe failed: {subject.errors[theme]}")
    if need == "facts" and theme not in subject.facts:
        return failed(f"the probe reported no facts about {theme}")
    if need == "manifest" and not subject.manifest:
        return failed("the image has no manifest that can be read")
    return None
