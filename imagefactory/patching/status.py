"""The status matrix: every patch measured on every release, and the page that shows it."""

from __future__ import annotations

import os
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby, zip_longest
from typing import Generic, TypeVar

from packaging.version import Version

from imagefactory.errors import FactoryError
from imagefactory.patching import schema
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.patch import Kind, Patch, State, Step
from imagefactory.patching.sources import DISTRIBUTIONS, SourceTree
from imagefactory.system import yamlfile

#: Downloads at a time; the index is the bottleneck, not this machine.
FETCHING = 4
T = TypeVar("T")


def measure_as_fetched(
    patches: Sequence[Patch],
    wanted: Sequence[tuple[str, str]],
    source: Callable[[str, str], SourceTree],
    bench: Bench,
    progress: Callable[[str], None] = lambda _line: None,
) -> tuple[list[Measured], dict[tuple[str, str], str]]:
    """As ``measure``, on the ``wanted`` projects and versions, while ``source`` fetches the next.

    Also returns why there are no sources of some. Raises FactoryError if there are none at all.
    """
    failed: dict[tuple[str, str], FactoryError] = {}
    pool = ThreadPoolExecutor(FETCHING)
    try:
        # in the order in which the workers want them
        turns = [pair for turn in zip_longest(*_parts(wanted)) for pair in turn if pair]
        futures = {pair: pool.submit(source, *pair) for pair in turns}

        def tree_of(pair: tuple[str, str]) -> SourceTree | None:
            try:
                return futures[pair].result()
            except FactoryError as error:
                failed[pair] = error
                return None

        rows = _measure(patches, wanted, tree_of, bench, progress)
    finally:
        pool.shutdown(cancel_futures=True)
    if failed and len(failed) == len(wanted):
        raise failed[wanted[-1]]
    missing = {pair: failed[pair].problems[0].what for pair in wanted if pair in failed}
    return rows, missing


def measure(
    patches: Sequence[Patch],
    trees: Sequence[SourceTree],
    bench: Bench,
    progress: Callable[[str], None] = lambda _line: None,
) -> list[Measured]:
    """Measure every patch, alone, on every tree of its project; sorted by patch, then version.

    ``progress`` gets a line for each tree that took time.
    """
    return _measure(patches, trees, lambda tree: tree, bench, progress)


def _measure(
    patches: Sequence[Patch],
    wanted: Sequence[T],
    tree_of: Callable[[T], SourceTree | None],
    bench: Bench,
    progress: Callable[[str], None],
) -> list[Measured]:
    start, left = time.monotonic(), len(wanted)

    def measured(one: T) -> list[Measured]:
        nonlocal left
        tree = tree_of(one)
        begun = time.monotonic()
        own = [patch for patch in patches if tree and patch.project == tree.project]
        rows = bench.each(tree, [step_for(patch, tree) for patch in own]) if tree else []
        took, left = time.monotonic() - begun, left - 1
        if tree and took > 1:
            progress(
                f"{tree.project} {tree.version}: {len(own)} patches in {took:.0f} s; "
                f"{left} releases left after {time.monotonic() - start:.0f} s"
            )
        return rows

    parts = _Parts(wanted)
    with ThreadPoolExecutor(len(parts.left) or 1) as pool:
        done = pool.map(lambda own: [row for one in own for row in measured(one)], parts.all())
        return by_patch([row for rows in done for row in rows])


class _Parts(Generic[T]):
    """What each worker takes: neighbours, as they agree in much that proofs read.

    One that is done helps where most is left, from the end.
    """

    def __init__(self, wanted: Sequence[T]) -> None:
        self.left = [deque(part) for part in _parts(wanted)]

    def all(self) -> list[Iterator[T]]:
        return [self._part(own) for own in self.left]

    def _part(self, own: deque[T]) -> Iterator[T]:
        # taking from a deque is atomic
        with suppress(IndexError):
            while True:
                yield own.popleft()
        with suppress(IndexError):
            while True:
                yield max(self.left, key=len).pop()


def _parts(wanted: Sequence[T]) -> list[Sequence[T]]:
    """As many parts as there are workers, of neighbours."""
    size = -(-len(wanted) // (os.cpu_count() or 1)) or 1
    return [wanted[first : first + size] for first in range(0, len(wanted), size)]


def by_patch(rows: Sequence[Measured]) -> list[Measured]:
    """``rows`` by patch, then by version."""
    return sorted(rows, key=lambda row: (row.patch, Version(row.version)))


def without_sources(
    patches: Sequence[Patch], failed: Mapping[tuple[str, str], str]
) -> list[Measured]:
    """Rows for releases whose sources are missing: nothing is known of any patch there."""
    return [
        Measured(
            project=project,
            patch=patch.name,
            version=version,
            state=State.UNKNOWN,
            reason=f"no sources: {why}",
            evidence="",
        )
        for (project, version), why in failed.items()
        for patch in patches
        if patch.project == project
    ]


def shown(rows: Sequence[Measured]) -> list[Measured]:
    """The rows of the newest release of each minor, and of those with other states in it.

    What a minor is depends on the project: its releases share a variant of each patch.
    """
    by_release: dict[tuple[str, str], list[Measured]] = {}
    for row in rows:
        by_release.setdefault((row.project, row.version), []).append(row)
    kept: set[tuple[str, str]] = set()
    newest_first = sorted(by_release, key=lambda one: (one[0], Version(one[1])), reverse=True)
    for _, group in groupby(newest_first, key=_minor):
        after: dict[str, State] | None = None
        for release in group:
            states = {row.patch: row.state for row in by_release[release]}
            if after is None or states != after:
                kept.add(release)
            after = states
    return [row for row in rows if (row.project, row.version) in kept]


def _minor(release: tuple[str, str]) -> tuple[str, tuple[int, ...]]:
    project, version = release
    return project, Version(version).release[: DISTRIBUTIONS[project].steps]


def step_for(patch: Patch, tree: SourceTree) -> Step:
    """The step for ``patch`` in a series for ``tree``."""
    exemption = patch.exemption(tree.version)
    variant = None if exemption else patch.variant(tree.version)
    return Step(
        patch=patch,
        version=tree.version,
        variant=variant,
        exempt=exemption.reason if exemption else "",
    )


def word(state: State, kind: Kind) -> str:
    """A state in words: a patch that is no fix is needed only by those who want it."""
    return state.value if kind is Kind.FIX or not state.proven else f"{state.value} ({kind})"


def history(rows: Sequence[Measured], patch: Patch | None = None) -> str:
    """One patch's states as ranges: ``needed 0.16.0 - 0.19.1, obsolete since 0.20.2``.

    The kind of ``patch`` is given where it is no fix.
    """
    runs: list[tuple[str, list[str]]] = []
    for row in rows:
        kind = patch.kind_on(row.version) if patch else Kind.FIX
        text = word(row.state, kind)
        if runs and runs[-1][0] == text:
            runs[-1][1].append(row.version)
        else:
            runs.append((text, [row.version]))
    if len(runs) == 1 and runs[0][0] == State.OBSOLETE:
        return f"not needed in any of {rows[0].version} - {rows[-1].version}"
    parts = []
    for number, (text, versions) in enumerate(runs):
        span = versions[0] if len(versions) == 1 else f"{versions[0]} - {versions[-1]}"
        is_last = number == len(runs) - 1 and number > 0
        parts.append(f"{text} since {versions[0]}" if is_last else f"{text} {span}")
    return ", ".join(parts)


def markdown(rows: Sequence[Measured], patches: Sequence[Patch]) -> str:
    """The status matrix as a page.

    For each project: the history of its patches, and their states by release; then the findings
    and the mutants that survive.
    """
    lines = ["<!-- generated by `make patch-status`; do not edit -->", "# Patch status", ""]
    lines += [*wrapped(_INTRODUCTION), ""]
    for project in sorted({row.project for row in rows}):
        own = [row for row in shown(rows) if row.project == project]
        mine = [patch for patch in patches if patch.project == project]
        lines += [f"## {project}", "", "| patch | kind | proof | measured |"]
        lines += ["| --- | --- | --- | --- |"]
        for patch in mine:
            measured = history([row for row in own if row.patch == patch.name], patch)
            proof = patch.proof.kind if patch.proof else "none"
            lines.append(f"| {patch.name} | {patch.kind} | {proof} | {measured} |")
        lines += ["", *_by_release(own, mine), ""]
    lines += ["## Findings", ""]
    for patch in patches:
        text = f"**{patch.name}**: {patch.summary}. {patch.text['findings']}"
        lines += [*wrapped(text), ""]
        for one in patch.kinds:
            lines += [*wrapped(f"On {one.versions} it is {one.kind}: {one.reason}."), ""]
    lines += _survivors(patches)
    return "\n".join(lines).rstrip() + "\n"


_INTRODUCTION = """Each patch's proof was run on the pristine and on the patched sources of each
release. A minor has one row, that of its newest release, and one more for each release in it whose
states are others. States and kinds are explained in [patches.md](patches.md#states)."""


_MUTANTS = """A mutant is a patch with one small fault, with which its proof should not pass. These
are known to pass, and do no harm. [What was tried](reliability.md), and what was not."""
#: Beside ``patch.yaml``.
MUTANTS = "mutants.yaml"


def _survivors(patches: Sequence[Patch]) -> list[str]:
    """The mutants that survive, with the reasons that the patches' folders give.

    Raises InputError for a ``mutants.yaml`` that is malformed.
    """
    rows = []
    for patch in patches:
        file = patch.folder / MUTANTS
        if file.is_file():
            known, _ = yamlfile.read(file, schema.MutantsFile, prefix="mutants")
            rows += [f"| {patch.name} | {one.because} |" for one in known.harmless]
    if not rows:
        return []
    table = ["| patch | a mutant survives because |", "| --- | --- |", *rows]
    return ["## Surviving mutants", "", *wrapped(_MUTANTS), "", *table]


def _by_release(rows: Sequence[Measured], patches: Sequence[Patch]) -> list[str]:
    """A table with a row for each release, and a column for each patch."""
    states = {(row.patch, row.version): row.state for row in rows}
    short = [patch.name.partition("/")[2] for patch in patches]
    lines = [f"| release | {' | '.join(short)} |", f"| --- |{' --- |' * len(patches)}"]
    for version in sorted({row.version for row in rows}, key=Version):
        cells = [
            word(states[patch.name, version], patch.kind_on(version))
            if (patch.name, version) in states
            else ""
            for patch in patches
        ]
        lines.append(f"| {version} | {' | '.join(cells)} |")
    return lines


def wrapped(text: str) -> list[str]:
    """A Markdown paragraph as lines of at most 100 columns; words are never broken."""
    words = " ".join(text.split())
    return textwrap.wrap(words, 100, break_long_words=False, break_on_hyphens=False)
