"""The receipts of this machine, and the form in which they travel.

A signed receipt is an in-toto statement about the image in a DSSE envelope; an unsigned one is its
plain JSON. Where anybody is trusted (see ``signing.Trust``), an unsigned one does not count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagefactory.settings import Settings
from imagefactory.system import files, locks, signing, strict_json
from imagefactory.system.signing import NOBODY, PublicKey, SignatureError, Trust
from imagefactory.verifying import receipt, revision
from imagefactory.verifying.receipt import LARGEST, Receipt

if TYPE_CHECKING:
    from imagefactory.system.engine import ImageInfo

#: What a statement is, and what it says about its subject.
IN_TOTO, STATEMENT = "application/vnd.in-toto+json", "https://in-toto.io/Statement/v1"
PREDICATE = "https://imagefactory.io/receipt/v2"
#: The project's file of public keys whose signatures count.
TRUSTED = "trusted-keys"
#: Otherwise whoever edits a signed receipt would remove its signature.
UNSIGNED = "it is not signed, and only signed receipts count here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A receipt that counts.

    Attributes:
        receipt: the receipt.
        by: the key that signed it; None if it is unsigned.
        content: what was read, to be passed on as it is.
    """

    receipt: Receipt
    by: PublicKey | None
    content: bytes = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The receipt and its signer as plain JSON values."""
        by = {"id": self.by.id, "comment": self.by.comment} if self.by else None
        return {"signed_by": by, "receipt": self.receipt.as_dict()}

    def __str__(self) -> str:
        version = f"imagefactory {self.receipt.version or 'of unknown version'}"
        signed = f"signed by {self.by}" if self.by else "unsigned"
        return f"{self.receipt.verified_at}, level {self.receipt.level}, {version}, {signed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A receipt that does not count, and why."""

    why: str


def statement(
    digest: str, name: str, predicate_type: str, predicate: Mapping[str, Any]
) -> dict[str, Any]:
    """An in-toto statement about the image ``digest``."""
    algorithm, _, value = digest.partition(":")
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {algorithm: value}}],
        "predicateType": predicate_type,
        "predicate": predicate,
    }


def write(record: Receipt, trust: Trust) -> bytes:
    """A receipt as it is kept and attached: signed if there is a key to sign it with."""
    if trust.signer is None:
        return json.dumps(record.as_dict(), indent=2).encode() + b"\n"  # for people to read
    made = statement(record.digest, record.tag, PREDICATE, record.as_dict())
    return signing.seal(strict_json.dumps(made), IN_TOTO, trust.signer)


def read(content: bytes, trust: Trust, *digests: str) -> Found | Refused:
    """What ``write`` made, here or on another machine, for an image with one of the ``digests``."""
    found = _read(content, trust)
    if isinstance(found, Found) and found.receipt.digest not in digests:
        return Refused(why=f"it is one for {found.receipt.digest[:40]!r}")
    return found


def _read(content: bytes, trust: Trust) -> Found | Refused:
    try:
        value = strict_json.loads(content, signing.LARGEST)
        if not signing.is_envelope(value):
            found = receipt.read(value)
            if trust.wants_signatures:
                return Refused(why=UNSIGNED)
            return Found(receipt=found, by=None, content=content)
        payload, by = signing.unseal(value, IN_TOTO, trust.keys)
        found = _of_statement(strict_json.loads(payload, LARGEST))
        return Found(receipt=found, by=by, content=content)
    except SignatureError as error:
        return Refused(why=str(error))
    except (ValueError, RecursionError) as error:
        why, _, _ = str(error).partition("\n")
        return Refused(why=f"it cannot be read: {why}")


def _of_statement(value: Any) -> Receipt:
    if not isinstance(value, dict) or value.get("predicateType") != PREDICATE:
        raise ValueError("it is a statement of another kind")
    found = receipt.read(value.get("predicate"))
    if value != statement(found.digest, found.tag, PREDICATE, value["predicate"]):
        raise ValueError("the statement is about something else than its receipt")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptStore:
    """The receipts in a folder, one for each digest, and whose signatures count."""

    folder: Path
    trust: Trust = NOBODY

    def path(self, digest: str) -> Path:
        """The file of the receipt of an image."""
        return self.folder / f"{digest.replace(':', '-')}.json"

    def save(self, record: Receipt) -> Path:
        """Keep a receipt, unless the one that is there shows more; it is on the disk then."""
        self._keep(record, write(record, self.trust))
        return self.path(record.digest)

    def keep(self, found: Found) -> None:
        """Keep a receipt that came from another machine as it is, unless ours shows more."""
        self._keep(found.receipt, found.content)

    def check_folder(self) -> None:
        """Raise OSError if no receipt could be kept here: known before minutes are spent."""
        with self._locked():
            pass

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with locks.held(self.folder / "receipts.lock", f"the receipts in {self.folder}"):
            yield

    def _keep(self, record: Receipt, content: bytes) -> None:
        with self._locked():
            before = self.load(record.digest)
            if before is None or receipt.supersedes(record, before):
                files.write_durably(self.path(record.digest), content)

    def find(self, digest: str) -> Found | Refused | None:
        """The receipt of exactly ``digest``, or why it does not count; None if there is none."""
        try:
            content = files.read(self.path(digest), signing.LARGEST)
        except FileNotFoundError:
            return None
        except OSError as error:
            return Refused(why=f"it cannot be read: {error.strerror}")
        return read(content, self.trust, digest)

    def load(self, digest: str) -> Receipt | None:
        """The receipt of exactly ``digest``, if it counts."""
        found = self.find(digest)
        return found.receipt if isinstance(found, Found) else None

    def of_cell(self, cell: str) -> list[Found]:
        """The receipts of a cell's images that count, the latest last."""
        digests = (path.stem.replace("-", ":", 1) for path in self.folder.glob("*-*.json"))
        found = (self.find(digest) for digest in digests)
        own = [one for one in found if isinstance(one, Found) and one.receipt.cell == cell]
        return sorted(own, key=lambda one: one.receipt.verified_at)

    def not_passed(self, tags: Sequence[str], images: Mapping[str, ImageInfo]) -> list[str]:
        """The ``tags`` whose very digest has not passed yet; ``images`` are the engine's, by tag.

        What other checks than those of this version verified counts as not passed.
        """
        before = {tag: self.load(images[tag].digest) if tag in images else None for tag in tags}
        return [
            tag
            for tag, one in before.items()
            if not (one and one.passed and one.revision == revision.of_checks())
        ]


def weightiest(
    found: Iterable[Found | Refused | None],
    wrong: Callable[[Receipt], Collection[str]] = lambda _: (),
) -> Found | None:
    """The one that counts of several of one image: the latest, unless an earlier one shows more.

    One that passed, but with which something is ``wrong``, counts only if there is no other.
    """
    counted = [one for one in found if isinstance(one, Found)]
    right = [one for one in counted if not (one.receipt.passed and wrong(one.receipt))]
    best: Found | None = None
    for one in sorted(right or counted, key=lambda one: one.receipt.verified_at):
        if best is None or receipt.supersedes(one.receipt, best.receipt):
            best = one
    return best


def of(settings: Settings, project: Path) -> ReceiptStore:
    """The receipts of this machine, with the trust of a project.

    Raises InputError for keys that cannot be used.
    """
    trust = signing.trust(settings.environ, project / TRUSTED)
    return ReceiptStore(folder=settings.receipts, trust=trust)
