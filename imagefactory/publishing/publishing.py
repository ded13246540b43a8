"""The push station: only an image whose last verification of exactly that digest passed may
move.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from imagefactory.errors import CheckFailedError, Problem, SetupError, fail
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.system import shell
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.verifying import receipt

_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """One reference that the registry has now, under the very digest that was verified."""

    cell: str
    reference: str
    digest: str
    blobs_sent: int
    blobs_there: int

    def as_dict(self) -> dict[str, object]:
        """The row as plain JSON values."""
        return asdict(self)


def allowed(
    plans: Sequence[CellPlan], engine: Engine, receipts: Path
) -> list[tuple[CellPlan, ImageInfo]]:
    """The images of ``plans``, if every one of them may move.

    Raises CheckFailedError naming all that may not.
    """
    there = engine.find_images(plan.cell.tag for plan in plans)
    problems = [
        p for plan in plans for p in [_refusal(plan, there.get(plan.cell.tag), receipts)] if p
    ]
    if problems:
        raise CheckFailedError(problems)
    return [(plan, there[plan.cell.tag]) for plan in plans]


def _refusal(plan: CellPlan, image: ImageInfo | None, receipts: Path) -> Problem | None:
    tag = plan.cell.tag
    if image is None:
        fix = f"imagefactory build --matrix --select {plan.cell.name}"
        return Problem(
            code="push-no-image", where=plan.cell.name, what=f"there is no image {tag}", fix=fix
        )
    if image.labels.get(f"{LABEL}.build-key") != plan.build_key:
        return Problem(
            code="push-stale",
            where=plan.cell.name,
            what=f"{tag} was built from something else than the matrix, lock and patches say now",
            fix=f"imagefactory build --matrix --select {plan.cell.name}",
        )
    record = receipt.load(receipts, image.digest)
    if record is None:
        return Problem(
            code="push-unverified",
            where=plan.cell.name,
            what=f"{tag} ({image.digest[:19]}) has never been verified here",
            fix=f"imagefactory verify {tag}",
        )
    if not record.passed:
        bad = ", ".join(
            c.name for c in record.checks if c.required and c.outcome is not receipt.Outcome.PASS
        )
        return Problem(
            code="push-failed-verify",
            where=plan.cell.name,
            what=f"{tag} ({image.digest[:19]}) did not pass its last verification: {bad}",
            fix=f"imagefactory verify {tag} shows why",
        )
    return None


def push(engine: Engine, plan: CellPlan, image: ImageInfo, repository: str) -> list[Pushed]:
    """Push every tag of a cell to ``repository``, addressed by the verified digest.

    Raises SetupError if the registry does not take it, CheckFailedError if it reports another
    digest than was verified.
    """
    return [
        _push_one(engine, plan, image, f"{repository}:{tag.rpartition(':')[2]}")
        for tag in plan.cell.tags
    ]


def _push_one(engine: Engine, plan: CellPlan, image: ImageInfo, reference: str) -> Pushed:
    engine.tag(image.digest, reference)
    try:
        done = shell.run([*engine.docker, "push", reference], env=engine.environment)
    finally:  # docker pushes by name only; the name has served its purpose
        if reference not in plan.cell.tags:
            engine.untag(reference)
    if not done.ok:
        last = (done.err or done.out).strip().splitlines()[-1:]
        raise fail(
            SetupError,
            "push-registry",
            f"{reference}: {' '.join(last)}",
            fix="docker login, or name another --to REPO",
        )
    pushed = next(reversed(_DIGEST.findall(done.out)), "no digest")
    if image.digest not in (pushed, _config_of(engine, reference, pushed)):
        raise fail(
            CheckFailedError,
            "push-other-digest",
            f"{reference}: the registry reports {pushed}, verified was {image.digest}",
            fix="do not use what was pushed; imagefactory verify, then push again",
        )
    sent, there = done.out.count(": Pushed"), done.out.count(": Layer already exists")
    return Pushed(
        cell=plan.cell.name, reference=reference, digest=pushed, blobs_sent=sent, blobs_there=there
    )


def _config_of(engine: Engine, reference: str, digest: str) -> str | None:
    """The config that a pushed manifest names.

    Without the containerd store Docker knows an image by that digest.
    """
    repository = reference.rpartition(":")[0]
    argv = [*engine.docker, "buildx", "imagetools", "inspect", "--raw", f"{repository}@{digest}"]
    try:
        return str(json.loads(shell.run(argv, quiet=True).out)["config"]["digest"])
    except (ValueError, KeyError, TypeError):
        return None
