"""What the page of an image shows, gathered from what several stations know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from imagefactory.auditing.auditing import Audit
from imagefactory.auditing.judging import Extension
from imagefactory.inspecting.anatomy import Anatomy, Change, Difference
from imagefactory.planning.image_config import LABEL
from imagefactory.verifying.receipt import OLDEST, CheckResult, Level, Outcome, PatchResult, Receipt
from imagefactory.verifying.receipt_store import Found, Refused

#: What each level does.
LEVELS = {
    Level.STATIC: "compares files and labels, and runs nothing",
    Level.IMPORT: "runs its programs in containers, which load torch and the extensions",
    Level.SERVE: "serves a model whose answers are known",
    Level.GPU: "runs kernels on a GPU, and serves every tiny model there",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The last image of the same cell that was verified before.

    Attributes:
        receipt: its receipt.
        difference: from it to the image; None if the engine does not have it, or cannot read it.
    """

    receipt: Receipt
    difference: Difference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A patch of an image; what is not known is empty.

    Attributes:
        name: of the patch.
        variant: the name of its diff, or why none was applied.
        state: what became of it in the build.
        proof: how its proof ended.
        detail: what the proof said.
        unproven: whether nothing shows what it does.
    """

    name: str
    variant: str
    state: str
    proof: str
    detail: str
    unproven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of an image.

    Attributes:
        image: what it contains.
        found: its receipt; why that does not count; None if there is none.
        audit: the judgement of the wheels that it was made from, or why there is none.
        before: the last image of its cell; None if none is known.
        biggest: name, version and compressed bytes of its largest wheels.
        written: when this was gathered.
        levels: the level of each check, by its name.
    """

    image: Anatomy
    found: Found | Refused | None
    audit: Audit | str
    before: Before | None
    written: datetime
    biggest: Sequence[tuple[str, str, int]] = ()
    levels: Mapping[str, Level] = field(default_factory=dict)

    @property
    def receipt(self) -> Receipt | None:
        """Its receipt, if that counts."""
        return self.found.receipt if isinstance(self.found, Found) else None

    @property
    def is_ours(self) -> bool:
        """Whether imagefactory built it."""
        return bool(self.label("build-key"))

    def label(self, name: str) -> str:
        """One of imagefactory's labels; empty if the image has none of that name."""
        return self.image.labels.get(f"{LABEL}.{name}", "")

    def labels(self, start: str) -> dict[str, str]:
        """Imagefactory's labels that begin with ``start``, without it, by name."""
        own = f"{LABEL}.{start}"
        found = sorted(self.image.labels.items())
        return {name.removeprefix(own): text for name, text in found if name.startswith(own)}

    @property
    def patches(self) -> list[Patch]:
        """The patches that its labels, its manifest or its receipt name."""
        variants = {n.replace(".", "/", 1): text for n, text in self.labels("patch.").items()}
        proofs = {one.name: one for one in self.receipt.patches} if self.receipt else {}
        unproven = self.label("unproven").split()
        return [
            Patch(
                name=name,
                variant=variants.get(name, ""),
                state=self.image.patches.get(name, ""),
                proof=_proof(proofs.get(name)),
                detail=proofs[name].detail if name in proofs else "",
                unproven=name in unproven,
            )
            for name in sorted({*variants, *self.image.patches, *proofs})
        ]

    def level(self, level: Level) -> str:
        """How it ended at a level: ``passed``, ``failed``, ``not reached`` or ``unknown``."""
        record = self.receipt
        if record is None:
            return "unknown"
        own = [one for one in record.checks if self.levels.get(one.name) is level]
        bad = {one.outcome for one in own if one.required} - {Outcome.PASS}
        if bad:
            return "failed" if Outcome.FAIL in bad else "not reached"
        if record.level.includes(level) and (own or record.passed):
            return "passed"
        recorded = record.schema > OLDEST
        return "not reached" if recorded and not record.level.includes(level) else "unknown"

    @property
    def failures(self) -> list[CheckResult]:
        """The checks that did not pass and had to, then others that failed."""
        bad = [
            one
            for one in (self.receipt.checks if self.receipt else ())
            if one.outcome is Outcome.FAIL or (one.required and one.outcome is not Outcome.PASS)
        ]
        return sorted(bad, key=lambda one: not one.required)

    @property
    def gpu_code(self) -> dict[str, list[tuple[Extension, str]]]:
        """By wheel: its extensions that have GPU code, with what of it matters for the GPU."""
        found: dict[str, list[tuple[Extension, str]]] = {}
        if isinstance(self.audit, Audit) and self.audit.capability:
            for one in self.audit.extensions:
                if one.gpu.targets or one.gpu.damaged:
                    shown = ", ".join(one.targets(self.audit.capability))
                    found.setdefault(one.wheel, []).append((one, shown))
        return found

    @property
    def changes(self) -> list[Change]:
        """What changed since the last image of its cell; packages are many, and the last."""
        found = _changes(self.before, self.receipt) if self.before else ()
        return sorted(found, key=lambda one: one.kind == "package")


def _proof(one: PatchResult | None) -> str:
    if one is None:
        return ""
    return one.proof or "not run"


def _changes(before: Before, now: Receipt | None) -> Iterator[Change]:
    """From the images themselves; if one of them is gone, from what their receipts say of them."""
    old = before.receipt
    # an older version recorded less, and what it did not record has not changed
    recorded = now is not None and OLDEST not in (old.schema, now.schema)
    if before.difference:
        yield from before.difference.changes
    elif now and recorded:
        yield from _rows("input", old.inputs, now.inputs)
        yield from _rows("patch", _variants(old), _variants(now))
    if now and recorded:
        yield from _rows("lock", {"wheels": old.lock_digest}, {"wheels": now.lock_digest})
        yield from _rows("level", {"reached": old.level}, {"reached": now.level})
        yield from _rows("proof", _proofs(old), _proofs(now))
    if now:
        checks = _rows("check", _outcomes(old), _outcomes(now))
        yield from (one for one in checks if one.old or one.new != Outcome.PASS)


def _variants(receipt: Receipt) -> dict[str, str]:
    return {one.name: one.variant for one in receipt.patches}


def _proofs(receipt: Receipt) -> dict[str, str]:
    return {one.name: _proof(one) for one in receipt.patches}


def _outcomes(receipt: Receipt) -> dict[str, str]:
    return {one.name: str(one.outcome) for one in receipt.checks}


def _rows(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield Change(kind=kind, name=name, old=old.get(name, ""), new=new.get(name, ""))
