"""Moving tags: ``promote``, ``rollback`` and ``history``.

What is true is in the registry: the moving tag itself, and a record of every move, which is one
more tag of the image that got it. Every machine sees both. A move is, in this order: a receipt
vouches for the image and is attached to it, the record, the ledger of this machine, the moving tag
by one request that carries its manifest. So a tag never names an image that nobody verified, and a
run that was killed is finished by the same command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from imagefactory.errors import CheckFailedError, InputError, SetupError, fail
from imagefactory.matrix.moving_tags import MovingTag
from imagefactory.publishing import attachments, ledger, tags, vouching
from imagefactory.publishing.ledger import Entry
from imagefactory.publishing.tags import Record
from imagefactory.publishing.vouching import Image, Requirements
from imagefactory.system import locks, people, registry_writes
from imagefactory.system.registry import Registries
from imagefactory.verifying.receipt_store import Found, ReceiptStore

#: Requests at once, and the moves that are read unless more are asked for.
ASKED_AT_ONCE, LAST = 8, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository with moving tags.

    Attributes:
        name: such as ``ghcr.io/me/vllm``.
        registries: the client.
        moving: the moving tags of the matrix.
        receipts: those of this machine, and whose signatures count.
        state: folder for the ledger.
        needed: what a receipt of this version must have.
    """

    name: str
    registries: Registries
    moving: tuple[MovingTag, ...]
    receipts: ReceiptStore
    state: Path
    needed: Requirements

    @property
    def ledger(self) -> Path:
        """The ledger of this machine for the repository."""
        return self.state / "history" / f"{self.name.replace('/', '_').replace(':', '_')}.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process of this machine move its tags meanwhile."""
        self.ledger.parent.mkdir(parents=True, exist_ok=True)
        path = self.ledger.with_suffix(".tags.lock")
        with locks.held(path, f"the tags of {self.name}"):
            yield


class State(StrEnum):
    """What became of a move."""

    CURRENT = "current"
    PAST = "past"
    UNFINISHED = "unfinished"
    ALTERED = "altered"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move of a moving tag.

    Attributes:
        number: 0 for the current one, 1 for the one before; None for what was not in effect.
        state: ``unfinished`` if its process was killed, ``altered`` if its record was given to
            another image, ``gone`` if the registry has it no more.
        record: the name that records it; empty for a move that imagefactory did not make.
        at: when, RFC 3339; empty as above.
        digest: of the image.
        image: the image's immutable tag.
        action: ``promote`` or ``rollback``, if this machine did it.
        by: user and host, if this machine did it.
    """

    number: int | None
    state: State
    record: str
    at: str
    digest: str
    image: str
    action: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The result of ``promote`` or ``rollback``.

    Attributes:
        tag: the moving tag, as a reference.
        digest: that it names now.
        image: the immutable tag of that image.
        before: digest that it named before; empty if it was new.
        record: the name that records the move.
        moved: whether it named another image before.
        receipt: when the image was verified, by which version, how far, and who signed that.
    """

    tag: str
    digest: str
    image: str
    before: str
    record: str
    moved: bool
    receipt: str


def promote(
    repository: Repository, wanted: str, tag: str, now: datetime, *, unattended: bool = False
) -> Moved:
    """Give ``tag`` to the image with the tag or digest ``wanted``.

    Raises CheckFailedError if no receipt vouches for it, it is not there, or, if ``unattended``,
    the tag went from it back to an earlier one (``promote-taken-back``).
    """
    tags.check_moving(tag)
    image = vouching.read_image(repository.registries, repository.name, wanted)
    if image is None:
        what = f"{repository.name} has no image {wanted}"
        raise fail(CheckFailedError, "promote-missing", what, fix="imagefactory push")
    with repository.locked():
        if unattended:
            _refuse_taken_back(repository, image, tag)
        return _move(repository, image, tag, "promote", now)


def rollback(repository: Repository, tag: str, to: str | None, now: datetime) -> Moved:
    """Give ``tag`` to an image that it had before: the one before this, or a number or digest.

    Raises InputError if its history has no such image, CheckFailedError as ``promote``.
    """
    tags.check_moving(tag)
    with repository.locked():
        digest = _earlier(history(repository, tag, LAST if to is None else None), tag, to)
        image = vouching.read_image(repository.registries, repository.name, digest)
        if image is None:
            what = f"{repository.name} has {digest} no more"
            raise fail(CheckFailedError, "promote-missing", what, fix="choose another with --to")
        return _move(repository, image, tag, "rollback", now)


def history(repository: Repository, tag: str, last: int | None = LAST) -> list[Move]:
    """The moves of ``tag``, the newest first; all of them if ``last`` is None.

    Raises InputError if the registry has no such repository.
    """
    registries, name = repository.registries, repository.name
    there = registries.tags(name)
    if not there:
        what = f"the registry has no repository {name}, or it has no tags"
        fix = "check the spelling; imagefactory push creates it"
        raise fail(InputError, "repository-missing", what, fix=fix)
    records = tags.records(tag, there)[::-1][:last]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        current, *images = pool.map(
            lambda wanted: vouching.read_image(registries, name, wanted), [tag, *map(str, records)]
        )
    now = current.digest if current else ""
    known, moves, number = ledger.read(repository.ledger), list[Move](), 0
    if current and now not in {image.digest for image in images if image}:
        moves.append(_row(None, current, 0, State.CURRENT, None))
        number = 1
    for record, image in zip(records, images, strict=True):
        state = _state(record, image, now=now, begun=number > 0)
        counts = state in (State.CURRENT, State.PAST)
        moves.append(_row(record, image, number if counts else None, state, known.get(str(record))))
        number += counts
    return moves


def _state(record: Record, image: Image | None, *, now: str, begun: bool) -> State:
    if image is None:
        return State.GONE
    if not record.is_of(image.digest):
        return State.ALTERED
    if begun:
        return State.PAST
    return State.CURRENT if image.digest == now else State.UNFINISHED


def _row(
    record: Record | None,
    image: Image | None,
    number: int | None,
    state: State,
    known: Entry | None,
) -> Move:
    return Move(
        number=number,
        state=state,
        record=str(record or ""),
        at=record.at.isoformat() if record else "",
        digest=image.digest if image else f"sha256:{record.digest if record else ''}...",
        image=image.name if image else "",
        action=known.action if known else "",
        by=known.by if known else "",
    )


def _earlier(moves: Sequence[Move], tag: str, to: str | None) -> str:
    """The digest to go back to."""
    there = [move for move in moves if move.number is not None]
    current = next((move.digest for move in there if move.state is State.CURRENT), "")
    if to is None:
        found = [move for move in there if move.digest != current]
    elif to.isdecimal() and len(to) < 6:
        found = [move for move in there if move.number == int(to)]
    else:
        hexes = to.removeprefix("sha256:")
        found = [move for move in there if hexes and move.digest.startswith(f"sha256:{hexes}")]
        if len({move.digest for move in found}) > 1:
            fix = "write more of its digits"
            raise fail(InputError, "rollback-which", f"several images begin with {to}", fix=fix)
    if not found:
        what = f"{tag} never named {to or 'another image'}"
        raise fail(InputError, "rollback-where", what, fix=f"imagefactory history {tag}")
    return found[0].digest


def _move(repository: Repository, image: Image, tag: str, action: str, now: datetime) -> Moved:
    """Move ``tag``; every step finds what a run that was killed has done already."""
    registries, reference = repository.registries, f"{repository.name}:{tag}"
    found = vouching.require(
        image, _declared(repository, image, tag), registries, repository.receipts, repository.needed
    )
    attachments.attach(registries, repository.name, image.document, [attachments.of_receipt(found)])
    current = registries.document(reference)
    before = current.digest if current else ""
    record, is_new = _record(repository, image, tag, before, now)
    if is_new:
        registry_writes.put_manifest(registries, f"{repository.name}:{record}", image.document)
    entry = Entry(
        record=str(record),
        digest=image.digest,
        before=before,
        action=action,
        by=people.me(),
        at=now.isoformat(timespec="seconds"),
    )
    ledger.append(repository.ledger, entry)
    if before != image.digest:
        registry_writes.put_manifest(registries, reference, image.document)
        _confirm(registries, reference, image)
    return _moved(image, reference, before, record, found)


def _refuse_taken_back(repository: Repository, image: Image, tag: str) -> None:
    """Raise CheckFailedError if ``tag`` is on an image that had it before ``image`` and after.

    Of a move by another machine, the registry does not say whether it was a rollback: it counts.
    """
    current = repository.registries.document(f"{repository.name}:{tag}")
    made = tags.records(tag, repository.registries.tags(repository.name))
    own = [number for number, one in enumerate(made) if one.is_of(image.digest)]
    now = [number for number, one in enumerate(made) if current and one.is_of(current.digest)]
    if own and now and now[0] < own[-1] < now[-1]:
        entry = ledger.read(repository.ledger).get(str(made[now[-1]]))
        if entry and entry.action == "promote":
            return
        what = f"it was taken back from {image.name} ({image.digest[:19]})"
        fix = f"imagefactory promote {repository.name}:{image.name} {tag} gives it again"
        raise fail(CheckFailedError, "promote-taken-back", what, where=tag, fix=fix)


def _confirm(registries: Registries, reference: str, image: Image) -> None:
    found = registries.document(reference)
    if found is None or found.digest != image.digest:
        what = f"{reference} is {found.digest if found else 'nothing'}, not {image.digest}"
        fix = "somebody else moves it, too: imagefactory history shows who, then try again"
        raise fail(SetupError, "tag-not-moved", what, fix=fix)


def _record(
    repository: Repository, image: Image, tag: str, before: str, now: datetime
) -> tuple[Record, bool]:
    """The record of this move, and whether it is still to be made.

    It exists if the move was cut off, or if the tag is there already.
    """
    made = tags.records(tag, repository.registries.tags(repository.name))
    if made and made[-1].is_of(image.digest):
        return made[-1], False
    if before == image.digest:
        own = [one for one in made if one.is_of(image.digest)]
        if own:
            return own[-1], False
    at = now.astimezone(UTC)
    if made:  # clocks of machines differ, and records are in the order of their times
        at = max(at, made[-1].at + timedelta(seconds=1))
    return Record(tag=tag, at=at, digest=tags.short(image.digest)), True


def _moved(image: Image, reference: str, before: str, record: Record, found: Found) -> Moved:
    return Moved(
        tag=reference,
        digest=image.digest,
        image=image.name,
        before=before,
        record=str(record),
        moved=before != image.digest,
        receipt=str(found),
    )


def _declared(repository: Repository, image: Image, tag: str) -> MovingTag:
    """The declaration of ``tag``. Raises InputError if ``image`` cannot have it."""
    axes = image.axes if image.name else {}
    made = [(one, one.of(axes)) for one in repository.moving]
    found = next((one for one, text in made if text == tag), None)
    if found is None:
        own = ", ".join(text for _, text in made if text)
        what = f"{image.name or image.digest[:19]} cannot have the tag {tag}: "
        what += f"the matrix declares {own} for it" if own else "the matrix declares none for it"
        fix = f"write `moving_tags: {{{tag}: {{}}}}` into the matrix, or name another tag"
        raise fail(InputError, "tag-undeclared", what, fix=fix)
    return found
