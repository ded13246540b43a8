"""What an image was found to contain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it has to be.

    ``path`` is in the image, ``origin`` where its file comes from, empty for what nothing explains.
    """

    path: str
    what: str
    origin: str = ""

    def __str__(self) -> str:
        return f"/{self.path} {self.what}" + (f" ({self.origin})" if self.origin else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """How the proof of a patch ended on this machine: its exit code, and what it saw."""

    patch: str
    code: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What an image was found to contain.

    Attributes:
        error: why nothing was found; empty if something was.
        damaged: whether the image itself is the reason.
        config: what is wrong with its configuration.
        changed: files that differ from what they have to be, or are missing.
        extra: files that nothing explains.
        files: the number of its files.
        wheels: the number of locked wheels that they were compared with.
        obsolete: patches that were left out, because the wheels have what they change.
        seconds: how long it took.
        proofs: those that were run on this machine, on the files of an image that is emulated here.
        to_prove: patches whose proofs only that image itself can run.
        proof_seconds: how long the proofs took.
    """

    error: str = ""
    damaged: bool = False
    config: tuple[str, ...] = ()
    changed: tuple[Finding, ...] = ()
    extra: tuple[Finding, ...] = ()
    files: int = 0
    wheels: int = 0
    obsolete: tuple[str, ...] = ()
    seconds: float = 0.0
    proofs: tuple[Proven, ...] = ()
    to_prove: tuple[str, ...] = ()
    proof_seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether every file was found to be what it has to be."""
        return not (self.error or self.changed or self.extra)
