"""Names that images have for the time of a push, because Docker pushes by name only.

A name that another image has is the user's: it gives way, and is given back. Each loan is written
down before it is made, so that the next push ends those that a killed one has left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from imagefactory.errors import CheckFailedError, SetupError
from imagefactory.system import files, locks
from imagefactory.system.engine import Engine

LARGEST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """A name that is lent.

    Attributes:
        name: the reference.
        digest: of the image that has it meanwhile.
        before: digest of the image that had it; empty if none did.
        kept: name of that image meanwhile, since one without any may be pruned.
    """

    name: str
    digest: str
    before: str
    kept: str


_ADAPTER = TypeAdapter(Loan)


@contextmanager
def named(engine: Engine, digest: str, name: str, folder: Path) -> Iterator[None]:
    """Let an image have ``name`` meanwhile; ``folder`` has the loans of this machine."""
    path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with locks.held(path.with_suffix(".lock"), f"the name {name}"):
        _end(engine, path)
        before = digest_of(engine, name)
        if before == digest:
            yield
            return
        kept = f"{name.rpartition(':')[0]}:imagefactory-keeps-{before[7:19]}" if before else ""
        loan = Loan(name=name, digest=digest, before=before, kept=kept)
        files.write_text(path, _ADAPTER.dump_json(loan).decode())
        if before:
            engine.tag(before, kept)
        engine.tag(digest, name)
        try:
            yield
        finally:
            _end(engine, path)


def sweep(engine: Engine, folder: Path) -> None:
    """End the loans of processes that were killed."""
    for path in sorted(folder.glob("*.json")):
        with suppress(SetupError), locks.claimed(path.with_suffix(".lock"), "a push"):
            _end(engine, path)


def digest_of(engine: Engine, reference: str) -> str:
    """The digest of the local image of that name, empty if there is none."""
    try:
        return engine.inspect_image(reference).digest
    except CheckFailedError:
        return ""


def _end(engine: Engine, path: Path) -> None:
    """End the loan in the file ``path``, if there is one and nobody has used its name since."""
    try:
        loan = _ADAPTER.validate_json(files.read(path, LARGEST))
    except FileNotFoundError:
        return
    except (OSError, ValidationError):  # a disk that was full: nothing says what was lent
        path.unlink(missing_ok=True)
        return
    if digest_of(engine, loan.name) == loan.digest:
        _give_back(engine, loan)
    if loan.kept:
        engine.untag(loan.kept)
    path.unlink()


def _give_back(engine: Engine, loan: Loan) -> None:
    if loan.before:
        with suppress(CheckFailedError):  # unless somebody has removed that image
            engine.tag(loan.before, loan.name)
            return
    engine.untag(loan.name)
