"""Retention: which images of a repository may go, and why every other one stays.

An image goes only if all of its names are ours and out of use: immutable tags and records that are
older than what is kept. A cell's tag, a moving tag and any tag of somebody else's keep what they
name, and so do an index that lists it and a file that pins it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta

from imagefactory.errors import InputError, Problem, fail
from imagefactory.publishing import pins, tags
from imagefactory.publishing.moving import ASKED_AT_ONCE, Repository
from imagefactory.system import reference, registry_writes, ui
from imagefactory.system.manifests import Manifest
from imagefactory.system.registry_failures import RegistryError

_KEEP = re.compile(r"(?P<number>[1-9][0-9]{0,4})(?P<days>d?)")
_ATTACHED = re.compile(r"sha256-(?P<hex>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What is kept: the newest ``number`` of each kind, or those of as many days."""

    number: int
    days: bool

    def of(self, items: Sequence[tuple[date, str]], today: date) -> set[str]:
        """The names among ``items`` that are kept, given with their days."""
        if self.days:
            oldest = today - timedelta(days=self.number)
        else:
            newest = sorted((day for day, _ in items), reverse=True)[: self.number]
            oldest = newest[-1] if newest else date.max  # of one day, all stay
        return {name for day, name in items if day >= oldest}


def parse_keep(text: str) -> Keep:
    """What ``10`` or ``90d`` means. Raises InputError for anything else."""
    found = _KEEP.fullmatch(text)
    if found is None:
        what, fix = (
            f"--keep {text[:40]!r}: not 1 to 99999",
            "write 10 for ten images, or 90d for days",
        )
        raise fail(InputError, "keep-wrong", what, fix=fix)
    return Keep(number=int(found["number"]), days=bool(found["days"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One image that goes or stays.

    Attributes:
        digest: of its manifest or index.
        tags: all of its names.
        why: why it goes or stays.
        parts: digests of manifests without a name that go with it.
        attached: the tag that lists what is attached to it; empty without one.
        size: bytes of the blobs that only images which go refer to, each counted once; None for an
            index.
    """

    digest: str
    tags: tuple[str, ...]
    why: str
    parts: tuple[str, ...] = ()
    attached: str = ""
    size: int | None = None

    def as_dict(self) -> dict[str, object]:
        """The row as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The images that go, and those that stay."""

    items: tuple[Item, ...]
    kept: tuple[Item, ...]


def survey(repository: Repository, keep: Keep, now: datetime, pinned: Mapping[str, str]) -> Plan:
    """Plan what to remove; nothing is changed. ``pinned`` is what files pin, each with its file."""
    ask, name = repository.registries.manifest, repository.name
    names = repository.registries.tags(name)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        read = pool.map(lambda tag: ask(f"{name}:{tag}"), names)
        found = {tag: one for tag, one in zip(names, read, strict=True) if one}
        unnamed = {*_attachments(found)} - {one.digest for one in found.values()}
        there = pool.map(lambda digest: ask(f"{name}@{digest}"), unnamed)
        gone = {digest for digest, one in zip(unnamed, there, strict=True) if one is None}
    return plan(found, gone, keep, now.astimezone(UTC).date(), pinned)


def plan(
    found: Mapping[str, Manifest],
    gone: Collection[str],
    keep: Keep,
    today: date,
    pinned: Mapping[str, str],
) -> Plan:
    """Plan what to remove of a repository with these manifests by tag. Pure.

    ``gone`` are digests that something is attached to, and that the repository has no more.
    """
    by_digest: dict[str, list[str]] = {}
    for tag, manifest in found.items():
        if not _ATTACHED.fullmatch(tag):
            by_digest.setdefault(manifest.digest, []).append(tag)
    reasons = dict(_reasons(found, by_digest, keep, today, pinned))
    staying = [one for one in found.values() if one.digest in reasons]
    counted = {blob for one in staying for blob in _blobs(one)}
    used = {*by_digest, *(part.digest for one in staying for part in one.manifests)}
    attached, items = _attachments(found), list[Item]()
    for digest in (one for one in by_digest if one not in reasons):
        manifest = found[by_digest[digest][0]]
        new = {blob: size for blob, size in _blobs(manifest).items() if blob not in counted}
        counted |= new.keys()
        items.append(
            Item(
                digest=digest,
                tags=tuple(sorted(by_digest[digest])),
                why="older than what is kept",
                parts=tuple(p.digest for p in manifest.manifests if p.digest not in used),
                attached=attached.get(digest, ""),
                size=None if manifest.manifests else sum(new.values()),
            )
        )
    for digest, own in _lost(found, attached, gone).items():
        if digest not in by_digest:
            parts = tuple(p.digest for p in found[own[0]].manifests if p.digest not in used)
            why = "attached to an image that is gone"
            items.append(Item(digest=digest, tags=tuple(own), why=why, parts=parts))
    kept = [
        Item(digest=digest, tags=tuple(sorted(by_digest[digest])), why=why)
        for digest, why in reasons.items()
    ]
    return Plan(items=tuple(items), kept=tuple(kept))


def _attachments(names: Iterable[str]) -> dict[str, str]:
    """Digest -> the tag that lists what is attached to it."""
    found = ((_ATTACHED.fullmatch(tag), tag) for tag in names)
    return {f"sha256:{match['hex']}": tag for match, tag in found if match}


def _lost(
    found: Mapping[str, Manifest], attached: Mapping[str, str], gone: Collection[str]
) -> dict[str, list[str]]:
    """The lists of what is attached to images that are ``gone`` only, each with its tags.

    Lists that are equal, for instance empty, are one manifest, and go with all of their tags.
    """
    lost: dict[str, list[str]] = {}
    for tag in sorted(attached[one] for one in gone if one in attached):
        lost.setdefault(found[tag].digest, []).append(tag)
    for image, tag in attached.items():
        if image not in gone:
            lost.pop(found[tag].digest, None)
    return lost


def _blobs(one: Manifest) -> dict[str, int]:
    return {
        part.digest: part.size for part in (*one.layers, *((one.config,) if one.config else ()))
    }


def _reasons(
    found: Mapping[str, Manifest],
    by_digest: Mapping[str, Sequence[str]],
    keep: Keep,
    today: date,
    pinned: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Digest -> why it stays."""
    recent = _recent([*found], keep, today)
    listed = {part.digest: tag for tag, one in found.items() for part in one.manifests}
    for digest, own in by_digest.items():
        foreign = [tag for tag in own if not (tags.parse(tag) or tags.parse_record(tag))]
        inside = [tag for tag in own if tag in recent]
        one = found[own[0]]
        inner = [part.digest for part in (one.config, *one.manifests) if part]
        file = pins.pinning((digest, *own, *inner), pinned)
        if foreign:
            yield digest, f"the tag {foreign[0]} names it"
        elif inside:
            yield digest, f"{inside[0]} is recent"
        elif file:
            yield digest, f"{file} pins it"
        elif digest in listed:
            yield digest, f"the index {listed[digest]} lists it"


def _recent(names: Sequence[str], keep: Keep, today: date) -> set[str]:
    """The immutable tags and records that are kept: of each flavor, and of each moving tag."""
    groups: dict[tuple[str, ...], list[tuple[date, str]]] = {}
    for name in names:
        immutable, record = tags.parse(name), tags.parse_record(name)
        if record:
            groups.setdefault(("record", record.tag), []).append((record.at.date(), name))
        elif immutable:
            kind = ("image", immutable.flavor, immutable.accelerator)
            groups.setdefault(kind, []).append((immutable.day, name))
    return {name for items in groups.values() for name in keep.of(items, today)}


def remove(
    repository: Repository, planned: Plan, keep: Keep, now: datetime, pinned: Mapping[str, str]
) -> list[Problem]:
    """Remove the images of ``planned``; the problems of those that could not be removed.

    The repository is read once more before: what got another name since then, or is ``pinned``
    now, stays. Raises
    RegistryError if the registry removes nothing at all.
    """
    failed = list[Problem]()
    with repository.locked():
        again = survey(repository, keep, now, pinned)
        fresh, kept = {item.digest: item for item in again.items}, {i.digest for i in again.kept}
        for item in planned.items:
            found = fresh.get(item.digest)
            if found is None or {*found.tags} != {*item.tags}:
                ui.say(
                    f"{item.digest[:19]} stays: its names have changed meanwhile, or a file pins it"
                )
                continue
            try:
                _remove(repository, found, kept)
            except RegistryError as error:
                if error.problems[0].code == "registry-cannot":
                    raise
                failed += error.problems
    return failed


def _remove(repository: Repository, item: Item, kept: Collection[str]) -> None:
    """Remove an image, then what is attached to it: never the other way round."""
    registries, name = repository.registries, repository.name
    attached = [one.digest for one in registries.referrers(name, item.digest)]
    listed = registries.manifest(f"{name}:{item.attached}") if item.attached else None
    attached += [listed.digest] if listed else []
    for digest in (item.digest, *item.parts, *(one for one in attached if one not in kept)):
        if reference.is_digest(digest):
            registry_writes.delete(registries, name, digest)
