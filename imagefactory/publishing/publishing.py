"""The push station: only an image whose last verification of exactly that digest passed may
move.

Each image gets its immutable tag first, by the engine, which sends what the registry lacks. Once
the registry has exactly what was verified there, the receipt is attached, and the cell's own tags
are given to it by one request each: none of them ever names anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from imagefactory.building import records
from imagefactory.errors import CheckFailedError, FactoryError, Problem, SetupError, fail
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.publishing import attachments, lending, vouching
from imagefactory.publishing import tags as names
from imagefactory.settings import Settings
from imagefactory.system import registry_writes, ui
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.system.manifests import Document
from imagefactory.system.registry import Registries
from imagefactory.system.registry_writes import Attachment
from imagefactory.verifying import receipt, receipt_store, revision
from imagefactory.verifying.receipt import Level, Receipt, Requirement
from imagefactory.verifying.receipt_store import Found, ReceiptStore, Refused

#: Tags of a repository that are read to know which blobs it has, and how many of them at once.
MOST_TAGS, ASKED_AT_ONCE = 200, 8


class Candidates(Protocol):
    """Finds receipts of an image."""

    def __call__(self, image: ImageInfo, *, elsewhere: bool) -> Sequence[Found | Refused]:
        """Those of this machine, and those that are attached ``elsewhere``, if asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """One reference that the registry has now, with the digest that was verified.

    Attributes:
        cell: the cell's name.
        reference: the tag that was pushed.
        digest: of its manifest, as the registry has it.
        blobs_sent: how many of the image's layers and configuration no tag of the repository
            referred to before. An upper bound of what travelled: Docker also finds blobs that no
            tag refers to any more, and those of the registry's other repositories. None if the
            registry does not show the image's blobs.
        blobs_there: the others; None as above.
        bytes_sent: bytes of ``blobs_sent``, as the registry stores them; None as above.
    """

    cell: str
    reference: str
    digest: str
    blobs_sent: int | None
    blobs_there: int | None
    bytes_sent: int | None

    def as_dict(self) -> dict[str, object]:
        """The row as plain JSON values."""
        return {**asdict(self), "errors": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPushed:
    """One reference that was not pushed, or not confirmed, and why."""

    cell: str
    reference: str
    problems: tuple[Problem, ...]

    def as_dict(self) -> dict[str, object]:
        """The row as plain JSON values."""
        blobs = dict.fromkeys(("blobs_sent", "blobs_there", "bytes_sent"))
        errors = [problem.as_dict() for problem in self.problems]
        return {
            "cell": self.cell,
            "reference": self.reference,
            "digest": None,
            **blobs,
            "errors": errors,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The result of a push: a row for each tag; ``error`` is what ended it early, or None."""

    pushed: tuple[Pushed, ...]
    left: tuple[NotPushed, ...] = ()
    error: FactoryError | None = None

    @property
    def rows(self) -> tuple[Pushed | NotPushed, ...]:
        """All tags, in the order in which they were to be pushed."""
        return (*self.pushed, *self.left)


def allowed(
    plans: Sequence[CellPlan],
    engine: Engine,
    receipts: ReceiptStore,
    requirements: Callable[[str], Sequence[Requirement]],
    repository: str,
) -> list[tuple[CellPlan, ImageInfo]]:
    """The images of ``plans``, if every one of them may move.

    ``requirements`` gives, for a torch channel, what a receipt must have. Where this machine has
    none that counts, one that is attached to the same image in ``repository`` does. Raises
    CheckFailedError naming all that may not.
    """
    there = engine.find_images(plan.cell.tag for plan in plans)
    problems = [
        problem
        for plan in plans
        for problem in [
            _refusal(
                plan,
                there.get(plan.cell.tag),
                partial(_candidates, plan, engine, receipts, repository),
                requirements(plan.cell.channel),
            )
        ]
        if problem
    ]
    if problems:
        raise CheckFailedError(problems)
    return [(plan, there[plan.cell.tag]) for plan in plans]


def _candidates(
    plan: CellPlan,
    engine: Engine,
    receipts: ReceiptStore,
    repository: str,
    image: ImageInfo,
    *,
    elsewhere: bool,
) -> list[Found | Refused]:
    """The receipts of an image: that of this machine, and those ``elsewhere``, in the registry."""
    found = receipts.find(image.digest)
    own = [found] if found else []
    if not elsewhere:
        return own
    there = vouching.read_image(engine.registries, repository, names.of_plan(plan))
    if there is None or image.digest not in (there.digest, there.config):
        return own
    return [*own, *vouching.attached(there, engine.registries, receipts)]


def _refusal(
    plan: CellPlan,
    image: ImageInfo | None,
    candidates: Candidates,
    required: Sequence[Requirement],
) -> Problem | None:
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
    problem = _unvouched(plan, image, candidates(image, elsewhere=False), required)
    if problem and problem.code != "push-failed-verify":
        problem = _unvouched(plan, image, candidates(image, elsewhere=True), required)
    return problem


def _unvouched(
    plan: CellPlan,
    image: ImageInfo,
    candidates: Sequence[Found | Refused],
    required: Sequence[Requirement],
) -> Problem | None:
    """Why none of the receipts lets an image move; None if one does."""
    what, fix = f"{plan.cell.tag} ({image.digest[:19]})", f"imagefactory verify {plan.cell.tag}"
    wrong = partial(_differences, plan, image, required)
    found = receipt_store.weightiest(candidates, wrong)
    if found is None:
        refused = dict.fromkeys(one.why for one in candidates if isinstance(one, Refused))
        if refused:
            what, code = f"no receipt of {what} counts: {'; '.join(refused)}", "push-receipt"
        else:
            what, code = f"{what} has never been verified here", "push-unverified"
        return Problem(code=code, where=plan.cell.name, what=what, fix=fix)
    record = found.receipt
    differences = wrong(record)
    if differences:
        by = f" of imagefactory {record.version}" if record.version else ""
        what = f"the receipt{by} is not one for {what} by this version: {'; '.join(differences)}"
        for other in candidates:
            if isinstance(other, Found) and other != found and (why := wrong(other.receipt)):
                what += f"; nor is another one ({other}): {'; '.join(why)}"
        gpu = "--gpu " if record.level is Level.GPU else ""
        fix = f"imagefactory verify --rerun {gpu}{plan.cell.tag}"
        return Problem(code="push-receipt", where=plan.cell.name, what=what, fix=fix)
    if not record.passed:
        what = f"{what} did not pass its last verification: {', '.join(record.failed_checks)}"
        fix = f"{fix} shows why"
        return Problem(code="push-failed-verify", where=plan.cell.name, what=what, fix=fix)
    later = receipt_store.weightiest(candidates)
    if later is not None and later is not found:
        ui.say(f"{what}: a later receipt was left out ({later}): {'; '.join(wrong(later.receipt))}")
    return None


def _differences(
    plan: CellPlan, image: ImageInfo, required: Sequence[Requirement], record: Receipt
) -> list[str]:
    """How a receipt differs from one of this version that says that the image passed."""
    found = receipt.differences(
        record,
        digest=image.digest,
        cell=plan.cell.name,
        build_key=plan.build_key,
        required=required,
    )
    if not found and record.passed and record.revision != revision.of_checks():
        return ["its checks are of another revision"]
    return found


def push(
    engine: Engine,
    ready: Sequence[tuple[CellPlan, ImageInfo]],
    repository: str,
    receipts: ReceiptStore,
    settings: Settings,
) -> Delivery:
    """Push the ``ready`` cells (see ``allowed``) to ``repository``: first each immutable tag.

    What fails ends the push: a registry that does not take an image or does not answer, a tag that
    is another digest there than was verified (``push-other-digest``), an immutable tag that is
    another image (``push-immutable``), an engine that fails. The result says which tags had been
    pushed by then.
    """
    tags = [
        (plan, image, f"{repository}:{tag}")
        for plan, image in ready
        for tag in (names.of_plan(plan), *(one.rpartition(":")[2] for one in plan.cell.tags))
    ]
    lending.sweep(engine, settings.loans)
    known = _known_blobs(engine.registries, repository, [target for _, _, target in tags])
    pushed: list[Pushed] = []
    sent: dict[str, Document] = {}
    for number, (plan, image, target) in enumerate(tags):
        try:
            if plan.cell.name in sent:
                _give(engine.registries, sent[plan.cell.name], target)
            else:
                sent[plan.cell.name] = _send(engine, image, target, settings.loans)
                wanted = _attachments(plan, image, sent[plan.cell.name], receipts, settings)
                attachments.attach(engine.registries, repository, sent[plan.cell.name], [*wanted])
        except FactoryError as error:
            return Delivery(
                pushed=tuple(pushed), left=tuple(_left(tags[number:], error)), error=error
            )
        digest = sent[plan.cell.name].digest
        blobs = _blobs(engine.registries, f"{repository}@{digest}")
        new = {blob: size for blob, size in blobs.items() if blob not in known}
        known |= new.keys()
        pushed.append(
            Pushed(
                cell=plan.cell.name,
                reference=target,
                digest=digest,
                blobs_sent=len(new) if blobs else None,
                blobs_there=len(blobs) - len(new) if blobs else None,
                bytes_sent=sum(new.values()) if blobs else None,
            )
        )
    return Delivery(pushed=tuple(pushed))


def _left(
    tags: Sequence[tuple[CellPlan, ImageInfo, str]], error: FactoryError
) -> Iterator[NotPushed]:
    """The first of ``tags`` failed with ``error``, and the others were not tried."""
    what = f"not tried, because {tags[0][2]} failed"
    untried = (Problem(code="push-not-tried", what=what, fix="push again"),)
    for number, (plan, _, target) in enumerate(tags):
        problems = untried if number else error.problems
        yield NotPushed(cell=plan.cell.name, reference=target, problems=problems)


def _blobs(registries: Registries, reference: str) -> dict[str, int]:
    """The blobs of an image; empty, with a warning, if the registry does not show them."""
    try:
        return registries.blobs(reference)
    except SetupError as error:
        ui.warn(f"the blobs of {reference} are not counted: {error.problems[0].what}")
        return {}


def _send(engine: Engine, image: ImageInfo, target: str, loans: Path) -> Document:
    """Send an image under its immutable tag, unless it is there; its manifest in the registry."""
    there = engine.registries.document(target)
    if there is not None:
        if _is_of(image, there):
            return there
        raise fail(
            CheckFailedError,
            "push-immutable",
            f"{target} is {there.digest} in the registry, and never overwritten; "
            f"verified was {image.digest}",
            fix="equal inputs were built differently: imagefactory diff shows how; "
            "lock again for a new tag",
        )
    with lending.named(engine, image.digest, target, loans), ui.step(f"pushing {target}"):
        engine.push(target)
    found = engine.registries.document(target)
    if found is not None and _is_of(image, found):
        return found
    raise _other_digest(target, found, image.digest)


def _attachments(
    plan: CellPlan,
    image: ImageInfo,
    there: Document,
    receipts: ReceiptStore,
    settings: Settings,
) -> Iterator[Attachment]:
    """What this machine knows about an image: only a builder tells where it comes from."""
    found = receipts.find(image.digest)
    if isinstance(found, Found):
        yield attachments.of_receipt(found)
    listed, origin = attachments.of_build(plan, there.digest, receipts.trust)
    yield listed
    if image.digest in records.read(settings.state / records.FOLDER, plan.build_key):
        yield origin


def _give(registries: Registries, document: Document, target: str) -> None:
    """Give an image that the registry has one more tag, by one request."""
    there = registries.document(target)
    if there is not None and there.digest == document.digest:
        return
    registry_writes.put_manifest(registries, target, document)
    found = registries.document(target)
    if found is None or found.digest != document.digest:
        raise _other_digest(target, found, document.digest)


def _is_of(image: ImageInfo, found: Document) -> bool:
    # without the containerd image store, Docker knows an image by the digest of its config
    config = found.row.get("config")
    return image.digest in (found.digest, config.get("digest") if isinstance(config, dict) else "")


def _other_digest(target: str, found: Document | None, verified: str) -> FactoryError:
    return fail(
        CheckFailedError,
        "push-other-digest",
        f"{target}: the registry has {found.digest if found else 'nothing there'}, "
        f"verified was {verified}",
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
