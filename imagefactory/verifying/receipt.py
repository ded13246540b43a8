"""Receipts: what was built and which checks passed, keyed by image digest. Pure.

Only an image with a receipt that passes may move. What is written is described by
docs/receipt.schema.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from imagefactory.errors import Problem
from imagefactory.system import strict_json

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue

#: The version of what is written, and the first, whose receipts had no number and fewer fields.
SCHEMA, OLDEST = 2, 1
#: Bytes of a receipt, and seconds of a check, that no real one reaches.
LARGEST, LONGEST = 10_000_000, 1e9
#: The name of the checks' revision among ``tools``.
CHECKS = "checks"
_STRICT = with_config(ConfigDict(strict=True, extra="forbid"))


class Outcome(StrEnum):
    """How a check ended. Only PASS is a success; a SKIP always has a reason."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


class Level(StrEnum):
    """How far a verification went. Each level includes those before it."""

    STATIC = "static"
    IMPORT = "import"
    SERVE = "serve"
    GPU = "gpu"

    def includes(self, other: Level) -> bool:
        """Whether what reached this level has reached ``other``, too."""
        order = tuple(Level)
        return order.index(self) >= order.index(other)


@_STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One thing that was asserted about an image.

    Attributes:
        name: the check's name in the registry.
        outcome: how it ended.
        required: whether a failure keeps the image from moving.
        detail: what was seen, in one line; for a failure also what was expected.
        seconds: how long it took.
    """

    name: str
    outcome: Outcome
    required: bool
    detail: str
    seconds: Annotated[float, Field(ge=0, lt=LONGEST)]


@_STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class PatchResult:
    """A patch of the image, and what its proof said there.

    Attributes:
        name: of the patch.
        variant: the name of its diff, or why none was applied.
        proof: ``pass``, ``fail`` or ``inconclusive``; empty if none was run.
        detail: the last line that the proof wrote.
    """

    name: str
    variant: str
    proof: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A check that a receipt must have before its image may move.

    Attributes:
        name: the check's name.
        required: whether it must have passed.
        excusable: whether it may have been skipped instead, because it does not apply to every
            image or cannot run on every machine.
        level: the level that it belongs to. Those of a GPU are made only where that is asked for.
    """

    name: str
    required: bool
    excusable: bool
    level: Level = Level.STATIC


@_STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The record of one verification of one image.

    Attributes:
        digest: the image's digest (``sha256:...``) as the engine names it: manifest or index.
        tag: the reference under which it was verified.
        cell: the cell's name, from the image's label.
        build_key: the build key, from the image's label.
        verified_at: RFC 3339, UTC.
        checks: the results, in order.
        version: of the imagefactory that verified it; empty for a version that did not record it.
        unproven: the patches in it of which nothing shows what they do.
        level: how far it was verified; versions that did not record it imported everything.
        lock_digest: digest of the locked wheels, from the image's label.
        inputs: what else it was made from, by the names of its labels.
        patches: its patches, with the results of their proofs.
        tools: versions of the programs that verified it; ``checks`` is the revision of the checks.
        machine: what they ran on.
        schema: version of the fields; an older one has not all of them.
    """

    digest: str
    tag: str
    cell: str
    build_key: str
    verified_at: str
    checks: tuple[CheckResult, ...]
    version: str = ""
    unproven: tuple[str, ...] = ()
    level: Level = Level.IMPORT
    lock_digest: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    patches: tuple[PatchResult, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict, hash=False)
    machine: Mapping[str, str] = field(default_factory=dict, hash=False)
    schema: Annotated[int, Field(ge=OLDEST, le=SCHEMA)] = SCHEMA

    @property
    def passed(self) -> bool:
        """Whether every required check passed, and there was at least one."""
        required = [check for check in self.checks if check.required]
        return bool(required) and all(check.outcome is Outcome.PASS for check in required)

    @property
    def revision(self) -> str:
        """The revision of the checks, or the version of one that did not record that."""
        return self.tools.get(CHECKS) or self.version

    def as_dict(self) -> dict[str, Any]:
        """The receipt as plain JSON values, ``passed`` included for readers."""
        return {**asdict(self), "passed": self.passed}

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The required checks that did not pass."""
        return tuple(c.name for c in self.checks if c.required and c.outcome is not Outcome.PASS)


@cache
def _adapter() -> TypeAdapter[Receipt]:
    return TypeAdapter(Receipt)


def read(data: Any) -> Receipt:
    """The receipt in JSON values. Raises ValueError if it is none."""
    if not isinstance(data, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - callers know one kind of error
    number = data.get("schema", OLDEST)
    if type(number) is int and number > SCHEMA:
        raise ValueError(f"a newer version of imagefactory wrote it (schema {number})")
    rest = {name: value for name, value in data.items() if name != "passed"}
    try:
        found = _adapter().validate_json(strict_json.dumps({"schema": number, **rest}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None
    if data.get("passed") is not found.passed:
        raise ValueError("it contradicts its checks")
    return found


def json_schema() -> JsonSchemaValue:
    """The JSON Schema of what this version writes, published in docs/receipt.schema.json."""
    found = _adapter().json_schema()
    fields = {**found["properties"], "schema": {"const": SCHEMA}, "passed": {"type": "boolean"}}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Receipt"}
    return {**head, **found, "properties": fields, "required": sorted(fields)}


def supersedes(later: Receipt, earlier: Receipt) -> bool:
    """Whether a later receipt of one image counts in place of an earlier one.

    It does unless both passed by the same checks and the earlier one shows more.
    """
    same = later.passed and earlier.passed and later.revision == earlier.revision
    made, before = ({check.name for check in one.checks} for one in (later, earlier))
    return not same or (later.level.includes(earlier.level) and made >= before)


def differences(
    record: Receipt, *, digest: str, cell: str, build_key: str, required: Sequence[Requirement]
) -> list[str]:
    """How ``record`` differs from a receipt of this version for exactly this image.

    ``required`` is every check that this version makes of the image. A check that failed is no
    difference: see ``Receipt.passed``.
    """
    own = {"digest": digest, "cell": cell, "build_key": build_key}
    found = [
        f"its {field.replace('_', ' ')} is {_brief(getattr(record, field))}, expected "
        f"{_brief(value)}"
        for field, value in own.items()
        if getattr(record, field) != value
    ]
    times = Counter(check.name for check in record.checks)
    known = {one.name: one for one in required}
    made = Level.GPU if record.level is Level.GPU else Level.SERVE
    groups = {
        "lacks": [
            name for name, one in known.items() if name not in times and made.includes(one.level)
        ],
        "has unknown checks": [name for name in times if name not in known],
        "has twice": [name for name, count in times.items() if count > 1],
        "has as optional": [
            check.name
            for check in record.checks
            if not check.required and not _may_be_optional(check, known.get(check.name))
        ],
    }
    return found + [f"it {what}: {', '.join(names)}" for what, names in groups.items() if names]


def _may_be_optional(check: CheckResult, wanted: Requirement | None) -> bool:
    if wanted is None or not wanted.required:
        return True
    return wanted.excusable and check.outcome is Outcome.SKIP


def _brief(text: str) -> str:
    return repr(text[:40])


def below(receipts: Sequence[Receipt], level: Level) -> list[Problem]:
    """A problem for every image that did not reach ``level`` although nothing failed."""
    return [
        Problem(
            code="verify-level",
            where=one.tag,
            what=f"it was verified up to {one.level}, not up to {level}",
            fix="look for checks that were skipped, and why",
        )
        for one in receipts
        if one.passed and not one.level.includes(level)
    ]


def problems(receipts: Sequence[Receipt]) -> list[Problem]:
    """What keeps images from moving: a problem for every required check that did not pass."""
    return [
        Problem(
            code="check-failed",
            where=one.tag,
            what=f"{check.name}: {check.detail}",
            fix="'imagefactory verify --checks' lists what every check asserts",
        )
        for one in receipts
        for check in one.checks
        if check.required and check.outcome is not Outcome.PASS
    ]


def counts(receipt: Receipt) -> str:
    """How many checks passed, failed and were skipped."""
    found = Counter(check.outcome for check in receipt.checks)
    words = {Outcome.PASS: "passed", Outcome.FAIL: "failed", Outcome.SKIP: "skipped"}
    return ", ".join(f"{found[outcome]} {word}" for outcome, word in words.items())


def explanations(receipt: Receipt) -> dict[str, list[str]]:
    """What failures say below their first line, with the checks that say it.

    Checks of the server share one log, which is shown once.
    """
    names: dict[str, list[str]] = {}
    for check in receipt.checks:
        text = check.detail.partition("\n")[2]
        if check.outcome is Outcome.FAIL and text:
            names.setdefault(text, []).append(check.name)
    return names
