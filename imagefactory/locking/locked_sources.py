"""What wheels are built from, as it is locked: archives, and git refs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from imagefactory.locking.fields import STRICT, Commit, FileName, Sha256, Size, Text, Version, Word
from imagefactory.matrix.cell import VllmRef


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSource:
    """Sources that wheels are built from, as one archive; fields as those of a wheel.

    A release's sdist has the project's name and version. The tree of a git repository has the text
    from the matrix (``git+URL@ref``) as its name, the commit as its version, and
    ``git+URL@COMMIT`` as its URL; with ``+BASE..COMMIT`` for each pull request that is merged.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][!-~]*$")]
    version: Word
    filename: FileName
    sha256: Sha256
    size: Size
    url: Annotated[str, Field(pattern=r"^(git\+)?(https?|ssh|file)://[!-,.-~][!-~]*$")]


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPull:
    """A pull request that is merged into a ref.

    Its commits are those after ``base``, up to ``commit``.
    """

    number: Annotated[int, Field(strict=True, ge=1)]
    base: Commit
    commit: Commit

    @property
    def range(self) -> str:
        """Its commits as git writes them."""
        return f"{self.base}..{self.commit}"


@STRICT
@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRef:
    """A git ref of vLLM, and how it compares with the version that its binaries are from.

    Attributes:
        repository: as in the matrix; ``ref`` and ``base`` likewise.
        commit: that the ref pointed to when it was locked.
        pulls: the pull requests that are merged into it, in order.
        version: of the wheel that is built from it.
        base_commit: the commit that ``base`` was built from.
        differs: the first files of compiled code that the ref has otherwise than the base.
        requires: the requirements of the ref that the base does not have.
        source: the tree, pull requests included.
    """

    repository: Annotated[str, Field(pattern=r"^(https?|ssh|file)://[!-~]+$")]
    ref: Word
    base: Version
    commit: Commit
    version: Version
    base_commit: Commit
    source: LockedSource
    pulls: tuple[LockedPull, ...] = ()
    differs: tuple[Text, ...] = ()
    requires: tuple[Text, ...] = ()

    @property
    def name(self) -> str:
        """The ref and its pull requests, for people."""
        return "+".join([f"{self.repository}@{self.ref}", *(str(p.number) for p in self.pulls)])

    def answers(self, wanted: VllmRef) -> bool:
        """Whether this was locked for exactly ``wanted``."""
        prs = tuple(pull.number for pull in self.pulls)
        return (self.repository, self.ref, self.base, prs) == (
            wanted.repository,
            wanted.ref,
            wanted.base,
            wanted.prs,
        )
