"""The names of images in a registry: immutable tags, and the records of moving ones. Pure.

An immutable tag says what an image is: ``0.33.0-cu130-gb10-20261120-1a2b3c4d`` is vLLM 0.33.0 for
CUDA 13.0, flavor gb10, with wheels as of 2026-11-20, and a build key that begins with 1a2b3c4d. It
follows from the image's labels alone, so that a push that is repeated finds what the first one did,
and that an image which no matrix describes any more has the name that it always had.

A record says that a moving tag was given to an image: ``nightly.20261122T021700Z.5f6a7b8c9d0e`` is
the image whose digest begins so. Each is one more name of the image, which keeps it in the registry
and which every machine sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from imagefactory.errors import InputError, Problem, fail
from imagefactory.matrix.cell import AXES
from imagefactory.planning.cell_plan import LABEL, CellPlan

#: Hex digits of a build key in an immutable tag, and of a digest in a record.
KEY, DIGEST = 8, 12
#: Characters of the parts that users choose, so that a whole tag has 128 at most.
LONGEST_VERSION, LONGEST_FLAVOR = 40, 48
CREATED = "org.opencontainers.image.created"
_IMMUTABLE = re.compile(
    r"(?P<vllm>[A-Za-z0-9_.]+)-(?P<accelerator>[A-Za-z0-9_.]+)-(?P<flavor>[A-Za-z0-9_.-]+)"
    rf"-(?P<day>[0-9]{{8}})-(?P<key>[0-9a-f]{{{KEY}}})"
)
_RECORD = re.compile(
    rf"(?P<tag>.+)\.(?P<at>[0-9]{{8}}T[0-9]{{6}}Z)\.(?P<digest>[0-9a-f]{{{DIGEST}}})"
)
_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Immutable:
    """The parts of an immutable tag.

    Attributes:
        vllm: vLLM's version.
        accelerator: ``cu130`` for CUDA 13.0, else the PyTorch channel, such as ``cpu``.
        flavor: the flavor's name.
        day: on which the image's wheels were resolved.
        key: the first digits of its build key.
    """

    vllm: str
    accelerator: str
    flavor: str
    day: date
    key: str

    def __str__(self) -> str:
        vllm = _word(self.vllm)[:LONGEST_VERSION]
        flavor = re.sub(r"[^A-Za-z0-9_.-]", "_", self.flavor)[:LONGEST_FLAVOR]
        return f"{vllm}-{_word(self.accelerator)}-{flavor}-{self.day:%Y%m%d}-{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """That ``tag`` was given, at a time, to the image whose digest begins with ``digest``."""

    tag: str
    at: datetime
    digest: str

    def __str__(self) -> str:
        return f"{self.tag}.{self.at:{_TIME}}.{self.digest}"

    def is_of(self, digest: str) -> bool:
        """Whether it is a record of the image ``digest``."""
        return short(digest) == self.digest


def of_labels(labels: Mapping[str, str]) -> Immutable | None:
    """The immutable tag of an image with these labels; None if imagefactory did not make it."""
    try:
        cuda, channel = labels.get(f"{LABEL}.pin.cuda", ""), labels[f"{LABEL}.channel"]
        return Immutable(
            vllm=labels[f"{LABEL}.pin.vllm"],
            accelerator=f"cu{cuda.replace('.', '')}" if cuda else channel,
            flavor=labels[f"{LABEL}.flavor"],
            day=date.fromisoformat(labels[CREATED][:10]),
            key=labels[f"{LABEL}.build-key"][:KEY],
        )
    except (KeyError, ValueError):
        return None


def of_plan(plan: CellPlan) -> str:
    """The immutable tag of the image that ``plan`` makes."""
    found = of_labels(plan.labels)
    if found is None:
        raise ValueError(f"the labels of {plan.cell.name} are incomplete")
    return str(found)


def axes_of(labels: Mapping[str, str], platform: str) -> dict[str, str]:
    """The axes of the cell that an image was made from."""
    pin = f"{LABEL}.pin."
    found = {name.removeprefix(pin): labels[name] for name in labels if name.startswith(pin)}
    found |= {axis: labels[f"{LABEL}.{axis}"] for axis in ("flavor", "channel")}
    found["platform"] = platform
    if f"{LABEL}.ref" in labels:  # conditions and tags have its words
        found["vllm"] = labels[f"{LABEL}.ref"]
    return {axis: found[axis] for axis in [*AXES, *found] if axis in found}


def parse(tag: str) -> Immutable | None:
    """The parts of an immutable tag; None if ``tag`` is none."""
    found = _IMMUTABLE.fullmatch(tag)
    if found is None:
        return None
    try:
        day = date.fromisoformat(found["day"])
    except ValueError:
        return None
    return Immutable(
        vllm=found["vllm"].replace("_", "+"),
        accelerator=found["accelerator"],
        flavor=found["flavor"],
        day=day,
        key=found["key"],
    )


def parse_record(tag: str) -> Record | None:
    """The parts of a record; None if ``tag`` is none."""
    found = _RECORD.fullmatch(tag)
    if found is None:
        return None
    try:
        at = datetime.strptime(found["at"], _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return Record(tag=found["tag"], at=at, digest=found["digest"])


def records(tag: str, names: Sequence[str]) -> list[Record]:
    """The records of the moving ``tag`` among the ``names`` of a repository, the oldest first."""
    found = filter(None, map(parse_record, names))
    return sorted((one for one in found if one.tag == tag), key=lambda one: (one.at, one.digest))


def short(digest: str) -> str:
    """The digits of a digest that stand in a record."""
    return digest.partition(":")[2][:DIGEST]


def check(plans: Sequence[CellPlan]) -> None:
    """Raise InputError for images that would share an immutable tag."""
    problems = list(_collisions(plans))
    if problems:
        raise InputError(problems)


def _collisions(plans: Sequence[CellPlan]) -> Iterator[Problem]:
    owners: dict[str, CellPlan] = {}
    for plan in plans:
        tag = of_plan(plan)
        first = owners.setdefault(tag, plan)
        if first.build_key != plan.build_key:
            what = f"{first.cell.name} and {plan.cell.name} would share the immutable tag {tag}"
            fix = "their build keys begin alike by chance: lock again, or change one of them"
            yield Problem(code="tag-collision", where=plan.cell.name, what=what, fix=fix)
    for plan in plans:
        for tag in (one.rpartition(":")[2] for one in plan.cell.tags):
            if parse(tag) or parse_record(tag):
                what = f"{tag} has the form of a tag that is never overwritten"
                fix = "change the template under `tags`: every push moves it"
                yield Problem(code="tag-reserved", where=plan.cell.name, what=what, fix=fix)


def check_moving(tag: str) -> str:
    """``tag``. Raises InputError if it has the form of a tag that is never overwritten."""
    if parse(tag) or parse_record(tag):
        what, fix = f"{tag} is never overwritten", "name a moving tag, such as nightly"
        raise fail(InputError, "tag-reserved", what, fix=fix)
    return tag


def _word(text: str) -> str:
    """``text`` as a part of a tag, without ``-``; ``+``, which no tag may have, becomes ``_``."""
    return re.sub(r"[^A-Za-z0-9_.]", ".", text.replace("+", "_"))
