"""Audits releases of vLLM with their own torch and with others; writes docs/audit-table.md.

    python benchmarks/audit_table.py [--markdown PAGE]

Wheels are read by ranged requests. What was read of them is kept in the cache folder, so a second
run downloads nothing. Of most releases, FlashAttention is left out, which is half of the bytes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

from packaging.requirements import Requirement

from imagefactory.auditing import auditing
from imagefactory.auditing.auditing import Audit, State
from imagefactory.auditing.elf import Library
from imagefactory.auditing.gpu_code import Way
from imagefactory.auditing.judging import Extension
from imagefactory.auditing.reading import Member, Reader
from imagefactory.auditing.subject import Subject
from imagefactory.locking import indexes, metadata, resolve, store, torch_build
from imagefactory.locking.lock import LockedBase, Resolution, Wheel
from imagefactory.matrix.cell import Request
from imagefactory.settings import Settings, from_environment
from imagefactory.system import ui
from imagefactory.system.platforms import Platform

ARM, AMD = Platform("linux/arm64"), Platform("linux/amd64")
#: The releases by platform. PyPI's vLLM up to 0.19 is built for CUDA 12, for which PyPI has no
#: torch for arm64: there, each of them is wrong with any torch.
RELEASES = {
    AMD: ("0.16.0", "0.17.1", "0.18.1", "0.19.0"),
    ARM: (
        *("0.18.1", "0.19.0", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0", "0.25.1"),
        *("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
    ),
}
TORCHES = {AMD: ("2.9.1", "2.10.0"), ARM: ("2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0")}
#: The releases whose FlashAttention is read, too.
WHOLE = ("0.22.1", "0.33.0")
PYTHON, GLIBC, GB10 = "3.13", "2.41", 121
ROOT = Path(__file__).parents[1]
CORE = ("_C", "_C_stable_libtorch", "_moe_C", "_moe_C_stable_libtorch", "_vllm_fa2_C")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A release of vLLM with a torch, and what the audit finds; ``own`` is the torch it pins."""

    platform: Platform
    vllm: str
    torch: str
    own: str
    audit: Audit

    @property
    def is_right(self) -> bool:
        """Whether upstream ships this pair, and PyPI has it with CUDA."""
        return self.own == self.torch and (self.platform, self.torch) != (ARM, "2.10.0")

    @property
    def shown(self) -> str:
        """The result in a few words."""
        if self.audit.state is not State.BAD:
            return f"**{self.audit.state}**" if self.is_right else str(self.audit.state)
        problems = {problem.code: problem.what for problem in self.audit.problems}
        parts = []
        if "torch-cpu-build" in problems:
            parts.append("CPU torch")
        elif "audit-library" in problems:
            parts.append("other CUDA")
        if "audit-symbols" in problems:
            parts.append(problems["audit-symbols"].partition(": ")[2].partition(" symbol")[0])
        return " · ".join(parts) or ", ".join(problems)


class _Reader(Reader):
    """Leaves FlashAttention out of most releases; ``sizes`` are those of what was read."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.sizes: dict[Member, int] = {}

    def members(self, wheels: Iterable[Wheel]) -> dict[str, tuple[Member, ...]]:
        found = super().members(wheels)
        return {
            sha: tuple(
                one
                for one in rows
                if one.wheel.version in WHOLE or "/vllm_flash_attn/" not in one.path
            )
            for sha, rows in found.items()
        }

    def libraries(self, members: Iterable[Member]) -> dict[Member, Library]:
        found = super().libraries(members)
        self.sizes |= {member: member.size for member in found}
        return found


def pairs(reader: _Reader, settings: Settings) -> list[Pair]:
    """Every release with every torch of its platform."""
    bases = {
        one.platform: one
        for one in store.read(ROOT / "wheels.lock").bases
        if one.name == "trixie" and one.suite
    }
    return [
        _pair(platform, release, torch, bases.get(platform) or bases[ARM], reader, settings)
        for platform, releases in RELEASES.items()
        for release in releases
        for torch in TORCHES[platform]
    ]


def _pair(
    platform: Platform,
    release: str,
    torch: str,
    base: LockedBase,
    reader: _Reader,
    settings: Settings,
) -> Pair:
    vllm, own = _vllm(platform, release, settings)
    resolution = _resolution(platform, torch, settings)
    subject = Subject(
        name=f"vllm {release} with torch {torch} on {platform}",
        where="table",
        resolution=replace(resolution, wheels=(vllm, *resolution.wheels)),
        base=base,
        capability=GB10,
    )
    auditing.audit(subject, reader)  # the second one is without downloads
    audit = auditing.audit(subject, reader)
    return Pair(platform=platform, vllm=release, torch=torch, own=own, audit=audit)


@cache
def _vllm(platform: Platform, release: str, settings: Settings) -> tuple[Wheel, str]:
    """The wheel of a release, and the torch that it pins."""
    for file in indexes.pages(settings.indexes[0], ["vllm"], settings)["vllm"].files:
        is_first = file.filename.startswith(f"vllm-{release}-cp38-")
        if is_first and file.filename.endswith(f"_{platform.machine}.whl"):
            lines = metadata.requires("vllm", release, settings) or []
            found = [Requirement(line) for line in lines]
            torch = next(str(one.specifier) for one in found if one.name == "torch")
            wheel = Wheel(
                name="vllm",
                version=release,
                filename=file.filename,
                sha256=file.digests["sha256"],
                size=file.size or 0,
                index=settings.indexes[0],
                requires=(f"torch{torch}",),
            )
            return wheel, torch.removeprefix("==")
    raise SystemExit(f"the index has no vllm {release} for {platform}")


@cache
def _resolution(platform: Platform, torch: str, settings: Settings) -> Resolution:
    """A torch of PyPI with all that it requires; its channel is that of its own build."""
    request = Request(
        platform=platform,
        python=PYTHON,
        glibc=GLIBC,
        channel="cu130",
        requirements=(f"torch=={torch}",),
        overrides=(),
    )
    found = resolve.resolve(request, settings)
    wheel = next(one for one in found if one.name == "torch")
    build = torch_build.read(wheel, found[wheel], settings)
    local = build.version.partition("+")[2]
    return Resolution(
        name=f"torch-{torch}",
        created="2026-11-22",
        platform=platform,
        python=PYTHON,
        glibc=GLIBC,
        channel=local if local.startswith("cu") else "cu130",
        requirements=(),
        overrides=(),
        torch=build,
        wheels=tuple(found),
    )


def page(found: Sequence[Pair], size: int) -> str:
    """The page about ``found``; ``size`` is that of all libraries that were read."""
    right = [one for one in found if one.is_right]
    wrong = [one for one in found if not one.is_right]
    false = [one for one in right if one.audit.state is not State.GOOD]
    passed = [one for one in wrong if one.audit.state is State.GOOD]
    seconds = [one.audit.seconds for one in found]
    lines = [
        "# Releases of vLLM with their own torch and with others",
        "",
        "Written by `make audit-table`, which reads the real wheels of PyPI. `imagefactory audit`",
        "judges them the same way ([audit.md](audit.md)).",
        "",
        f"- {len(right)} pairs that upstream ships: {len(right) - len(false)} good.",
        f"- {len(wrong)} other pairs: {len(wrong) - len(passed)} found, {len(passed)} good.",
        f"- {median(seconds):.2f} s for a pair (median; {max(seconds):.2f} s at most) of wheels",
        f"  that were read before: {size / 1e9:.1f} GB, each once.",
        "",
        "A number is how many symbols are defined nowhere. **good** is the torch that the release",
        "pins. What is good beside it has every symbol that the release needs; whether upstream's",
        "code works with it, only a test can tell.",
    ]
    for platform, releases in RELEASES.items():
        torches = TORCHES[platform]
        lines += ["", f"## {platform}", "", f"| vLLM | {' | '.join(torches)} |"]
        lines += ["|---" * (len(torches) + 1) + "|"]
        for release in releases:
            own = [p for p in found if (p.platform, p.vllm) == (platform, release)]
            lines.append(f"| {release} | {' | '.join(one.shown for one in own)} |")
    lines += [
        "",
        "For arm64, PyPI's torch 2.10.0 is a CPU build, and vLLM's wheels up to 0.19 are for CUDA",
        "12, for which PyPI has no torch: they need `indexes` of their own.",
        "",
        "## GPU code for sm_121",
        "",
        f"Of the arm64 wheels. FlashAttention was read of {' and '.join(WHOLE)} only: it is half",
        "of all bytes.",
        "",
        f"| vLLM | {' | '.join(f'`{name}`' for name in CORE)} |",
        "|---" * (len(CORE) + 1) + "|",
    ]
    for release in RELEASES[ARM]:
        own = [p for p in found if (p.platform, p.vllm) == (ARM, release)]
        ways = {one.name: one for one in own[0].audit.extensions}
        cells = [_code(ways[name]) if name in ways else "" for name in CORE]
        lines.append(f"| {release} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _code(one: Extension) -> str:
    near = [target for target in one.gpu.targets if target.startswith("sm_12")]
    return f"{one.way} ({', '.join(near)})" if near else str(one.way or Way.NONE)


def main() -> None:
    """Audit all pairs, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="the page to write")
    options = parser.parse_args()
    settings = replace(from_environment(os.environ), find_links=())
    reader = _Reader(settings)
    found = pairs(reader, settings)
    text = page(found, sum(reader.sizes.values()))
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    else:
        ui.line(text)
    unknown = [one.audit.unknown for one in found if one.audit.unknown]
    false = [one for one in found if one.is_right and one.audit.state is State.BAD]
    for problem in unknown:
        ui.warn(problem.what)
    raise SystemExit(1 if unknown or false else 0)


if __name__ == "__main__":
    main()
