"""The push station: only an image whose last verification of exactly that digest passed may
move.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from imagefactory.errors import CheckFailedError, Problem, SetupError, fail
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.system import ui
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.system.registry import Registries
from imagefactory.verifying import receipt

#: Tags of a repository that are read to know which blobs it has, and how many of them at once.
MOST_TAGS, ASKED_AT_ONCE = 200, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """One reference that the registry has now, with the digest that was verified.

    Attributes:
        cell: the cell's name.
        reference: the tag that was pushed.
        digest: of its manifest, as the registry has it.
        blobs_sent: how many of the image's layers and configuration no tag of the repository
            referred to before. An upper bound of what travelled: Docker also finds blobs that no
            tag refers to any more, and those of the registry's other repositories.
        blobs_there: the others.
        bytes_sent: bytes of ``blobs_sent``, as the registry stores them.
    """

    cell: str
    reference: str
    digest: str
    blobs_sent: int
    blobs_there: int
    bytes_sent: int

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


def push(
    engine: Engine, ready: Sequence[tuple[CellPlan, ImageInfo]], repository: str
) -> list[Pushed]:
    """Push every tag of the ``ready`` cells (see ``allowed``) to ``repository``, by digest.

    Raises SetupError if the registry does not take an image or does not answer, CheckFailedError
    ``push-other-digest`` if a tag is another digest there than was verified.
    """
    tags = [
        (plan, image, _target(tag, repository)) for plan, image in ready for tag in plan.cell.tags
    ]
    known = _known_blobs(engine.registries, repository, [target for _, _, target in tags])
    pushed = []
    for plan, image, target in tags:
        digest = _push_one(engine, plan, image, target)
        blobs = engine.registries.blobs(f"{repository}@{digest}")
        new = {blob: size for blob, size in blobs.items() if blob not in known}
        known |= new.keys()
        pushed.append(
            Pushed(
                cell=plan.cell.name,
                reference=target,
                digest=digest,
                blobs_sent=len(new),
                blobs_there=len(blobs) - len(new),
                bytes_sent=sum(new.values()),
            )
        )
    return pushed


def _target(tag: str, repository: str) -> str:
    return f"{repository}:{tag.rpartition(':')[2]}"


def _push_one(engine: Engine, plan: CellPlan, image: ImageInfo, target: str) -> str:
    """Push one tag; the digest that it has in the registry, which is what was verified."""
    engine.tag(image.digest, target)
    try:
        with ui.step(f"pushing {target}"):
            engine.push(target)
    finally:  # Docker pushes by name only; the name has served its purpose
        if target not in plan.cell.tags:
            engine.untag(target)
    found = engine.registries.manifest(target)
    # without the containerd image store, Docker knows an image by the digest of its config
    if found and image.digest in (found.digest, found.config and found.config.digest):
        return found.digest
    raise fail(
        CheckFailedError,
        "push-other-digest",
        f"{target}: the registry has {found.digest if found else 'nothing there'}, "
        f"verified was {image.digest}",
        fix="do not use what was pushed; imagefactory verify, then push again",
    )


def _in_common(one: str, other: str) -> int:
    """How many characters two names begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _known_blobs(registries: Registries, repository: str, targets: Sequence[str]) -> set[str]:
    """Digests of the blobs that tags of ``repository`` refer to before anything is pushed.

    Of a large repository those tags are read whose names have most in common with the ``targets``:
    sister cells, which share layers. Empty, with a warning, if the registry does not show them.
    """
    wanted = [target.rpartition(":")[2] for target in targets]

    def likeness(tag: str) -> int:
        return max(map(partial(_in_common, tag), wanted))

    try:
        tags = sorted(registries.tags(repository), key=likeness, reverse=True)[:MOST_TAGS]
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            return set().union(*pool.map(lambda tag: registries.blobs(f"{repository}:{tag}"), tags))
    except SetupError as error:
        ui.warn(f"all blobs are counted as sent: {error.problems[0].what}")
        return set()
