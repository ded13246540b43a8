"""What is known about an image when it is judged.

All of it was observed before; checks only read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from imagefactory.locking.lock import Resolution
from imagefactory.matrix.cell import Cell
from imagefactory.planning.cell_plan import LABEL
from imagefactory.system.engine import ImageInfo
from imagefactory.system.processes import signal_name
from imagefactory.system.text import shorten
from imagefactory.verifying.gpu.running import GpuRun
from imagefactory.verifying.outside.judged import Judged
from imagefactory.verifying.server import ServerRun

#: Characters of a program's last line that are shown.
SHOWN = 500
#: What usually ends a program with a signal.
CAUSES = {
    "SIGBUS": "a file that is mapped is shorter than its headers say: a truncated library",
    "SIGILL": "an instruction that this CPU lacks, or code that was overwritten",
    "SIGKILL": "the memory limit, or somebody ended it",
    "SIGSEGV": "a library that is damaged or does not fit the others",
    "SIGABRT": "a failed assertion of a library",
    "SIGSYS": "a system call that the container may not make",
}


def ending(code: int | None) -> str:
    """What an exit code above 128 means: the signal, with the usual cause; empty for others."""
    if code is None or not 128 < code < 128 + 65:
        return ""
    name = signal_name(code - 128)
    cause = CAUSES.get(name)
    return f"{name}: {cause}" if cause else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the image should be, for a caller who knows it from the matrix and the lock.

    Attributes:
        cell: the cell that the image should be of.
        build_key: the cell's build key.
        lock_digest: digest of the resolution, as the label has it.
        resolution: what the image should be installed from.
        unproven: the names of the unproven patches that it should have.
    """

    cell: Cell
    build_key: str
    lock_digest: str
    resolution: Resolution
    unproven: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What the probe reported from inside the image, or why it did not.

    Attributes:
        report: see ``probe_core.collect``; None if there is none.
        error: why there is none.
        seconds: how long the probe ran.
    """

    report: Mapping[str, Any] | None
    error: str = ""
    seconds: float = 0.0

    def facts(self, theme: str) -> Mapping[str, Any]:
        """What the theme's probe reported; nothing if it did not."""
        found = (self.report or {}).get("facts", {}).get(theme)
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How one run of the image's entrypoint ended."""

    code: int
    out: str
    err: str
    seconds: float = 0.0

    def __str__(self) -> str:
        said = (self.err or self.out).strip().splitlines()
        end = f"exit {self.code}"
        why = ending(self.code)
        end += f" ({why})" if why else ""
        return end + (f": {shorten(said[-1], SHOWN)}" if said else ", no output")


class RunsOn(TypedDict):
    """What a server's log depends on, besides its model: see ``log_rules``."""

    vllm: str
    device: str
    capability: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image and everything that was observed about it.

    Attributes:
        image: as the engine describes it.
        probed: the probe's report.
        entrypoint: runs of the entrypoint, by the names in ``modes.RUNS``.
        server: what happened when it served; None if that was not tried (see ``needs="server"``).
        resolution: the locked wheels that it should hold; None if the lock has none for it.
        expected: what it should be, if the caller knows.
        content: what it was found to contain, without running it; None if it is not known what it
            should contain.
        builds: the digests that builds of its build key gave on this machine.
        gpu: what the probes reported from a GPU; None if that was not asked for.
        models: what happened when it served the other tiny models, or why it does not take one.
        lacking: the tiny models that its level needs and that somebody chose to leave out.
    """

    image: ImageInfo
    probed: Probed
    entrypoint: Mapping[str, Ran]
    server: ServerRun | None
    resolution: Resolution | None
    expected: Expectation | None
    content: Judged | None = None
    builds: tuple[str, ...] = ()
    gpu: GpuRun | None = None
    models: Mapping[str, ServerRun | str] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the probes reported, by theme; a check with ``needs="facts"`` has its theme's."""
        facts: Mapping[str, Any] = (self.probed.report or {}).get("facts", {})
        return facts

    @property
    def errors(self) -> Mapping[str, str]:
        """The errors of the probes that failed, by theme."""
        errors: Mapping[str, str] = (self.probed.report or {}).get("errors", {})
        return errors

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the build recorded in the image; empty if there is nothing that can be read."""
        return (self.probed.report or {}).get("manifest") or {}

    @property
    def channel(self) -> str:
        """The torch channel that the image's label claims."""
        return self.label("channel")

    @property
    def runs_on(self) -> RunsOn:
        """Where its servers ran; the capability is empty if the probes did not report it."""
        report = self.gpu.report if self.gpu else None
        facts = report["probes"].get("identity", {}).get("facts", {}) if report else {}
        return RunsOn(
            vllm=self.label("pin.vllm") or "0",
            device="cpu" if self.channel == "cpu" else "cuda",
            capability=".".join(str(part) for part in facts.get("capability", ())),
        )

    def label(self, name: str) -> str:
        """The value of ``io.imagefactory.<name>``, empty if there is none."""
        return self.image.labels.get(f"{LABEL}.{name}", "")
