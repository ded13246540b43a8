"""Real source trees with a shipped patch in them, to be spoilt or rewritten, and proven again.

What a patch's folder says about this is in its ``mutants.yaml``::

    releases: [0.16.0, 0.33.0]   # where its mutants are tried
    by_hand:                     # mutants that no generator would think of
      - {what: …, file: …, old: …, new: …}
    harmless:                    # generated mutants that change no behaviour
      - {change: a regular expression, because: …}
    refactors:                   # what upstream may do without a change of behaviour
      - {what: …, release: 0.33.0, edits: [{file: …, old: …, new: …}]}
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from imagefactory.inbuild import overlay, proofkit
from imagefactory.locking import store
from imagefactory.patching import catalog, cuda_home, sources
from imagefactory.patching.measure import copy_of
from imagefactory.patching.patch import Patch, Proof
from support import ROOT
from support.mutants import SETTINGS
from support.mutation import Edit, edits

FILE = "mutants.yaml"
#: One compiler at a time: a machine has more memory than patience.
COMPILING = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """A change of upstream's sources that keeps their behaviour."""

    what: str
    release: str
    edits: Sequence[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``mutants.yaml`` says of a patch."""

    patch: Patch
    releases: Sequence[str]
    by_hand: Sequence[Mapping[str, str]] = ()
    harmless: Sequence[tuple[re.Pattern[str], str]] = ()
    refactors: Sequence[Rewrite] = ()

    def harmless_because(self, change: str) -> str:
        """Why a change needs no proof that goes red; empty if it does."""
        return next((why for pattern, why in self.harmless if pattern.search(change)), "")


def plans() -> list[Plan]:
    """The plan of every patch that has one."""
    found = catalog.load(ROOT / "patches")
    files = {name: ROOT / "patches" / name / FILE for name in found}
    return [_plan(found[name], file) for name, file in files.items() if file.is_file()]


def _plan(patch: Patch, file: Path) -> Plan:
    given: dict[str, Any] = yaml.safe_load(file.read_text())
    known = {"releases", "by_hand", "harmless", "refactors"}
    assert given.keys() <= known, f"{file}: unknown keys {sorted(given.keys() - known)}"
    harmless = [(re.compile(e["change"]), e["because"]) for e in given.get("harmless", [])]
    return Plan(
        patch=patch,
        releases=given["releases"],
        by_hand=given.get("by_hand", []),
        harmless=harmless,
        refactors=[Rewrite(**each) for each in given.get("refactors", [])],
    )


@dataclass(kw_only=True)
class Tree:
    """A copy of a release's sources; ``patched`` says whether the patch was applied to it.

    ``added`` are the files that the patch changed: their text before and after.
    """

    patch: Patch
    root: Path
    version: str
    patched: bool
    added: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def proof(self) -> Proof:
        """The patch's proof: only a patch that has one can be spoilt."""
        assert self.patch.proof is not None
        return self.patch.proof

    def prove(self) -> tuple[int, str]:
        """The proof's exit code, and what it saw."""
        proof = self.proof
        if "nvcc" not in proof.needs:
            return overlay.prove(proof.script, self.root)
        locked = cuda_home.for_this_machine(store.read(ROOT / "wheels.lock"), "cuda13.0")
        assert locked is not None
        env = {proofkit.CUDA: str(cuda_home.prepare(locked, SETTINGS))}
        with COMPILING:
            return overlay.prove(proof.script, self.root, env)

    @contextmanager
    def changed(self, texts: Mapping[str, str]) -> Iterator[None]:
        """Other texts for some files meanwhile. Files are links and so are replaced, not edited."""
        kept: dict[Path, bytes | None] = {}
        try:
            for name, text in texts.items():
                path = self.root / name
                kept[path] = path.read_bytes() if path.is_file() else None
                path.unlink(missing_ok=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            yield
        finally:
            for path, data in kept.items():
                path.unlink(missing_ok=True)
                if data is not None:
                    path.write_bytes(data)

    def by_hand(self, entry: Mapping[str, str]) -> Edit:
        """A mutant that ``mutants.yaml`` spells out. Its old text must be there."""
        text = (self.root / entry["file"]).read_text()
        assert entry["old"] in text, f"{entry['what']}: {entry['old']!r} is not in {entry['file']}"
        return Edit(
            file=entry["file"],
            change=f"by hand: {entry['what']}",
            text=text.replace(entry["old"], entry["new"]),
        )

    def mutants(self) -> list[Edit]:
        """Every generated mutant of what the patch added."""
        return [
            edit
            for name, (before, after) in self.added.items()
            for edit in edits(name, before, after)
        ]

    def rewritten(self, rewrite: Rewrite) -> dict[str, str]:
        """The texts of the files that a refactoring changes."""
        texts: dict[str, str] = {}

        def text_of(name: str) -> str:
            path = self.root / name
            return texts[name] if name in texts else path.read_text() if path.is_file() else ""

        for edit in rewrite.edits:
            if "rename" in edit:
                for path in sorted(self.root.glob(edit["files"])):
                    name = path.relative_to(self.root).as_posix()
                    text = text_of(name)
                    renamed = re.sub(rf"\b{edit['rename']}\b", edit["to"], text)
                    if renamed != text:
                        texts[name] = renamed
                assert texts, f"{rewrite.what}: nothing is called {edit['rename']}"
                continue
            text = text_of(edit["file"])
            if "move" in edit:
                kept, moved = _moved(text, edit["move"], edit["to"])
                texts[edit["file"]], texts[edit["to"]] = kept, f"{edit['head']}\n\n{moved}"
                continue
            if "old" not in edit:
                texts[edit["file"]] = text + edit["new"]
                continue
            assert edit["old"] in text, f"{rewrite.what}: {edit['old']!r} is not in {edit['file']}"
            texts[edit["file"]] = text.replace(edit["old"], edit["new"])
        return texts


def _moved(text: str, name: str, to: str) -> tuple[str, str]:
    """A file that imports a definition in place of it, and the definition."""
    source = ast.parse(text)
    node = next(n for n in source.body if name in _names_of(n))
    lines = text.splitlines(keepends=True)
    start, end = node.lineno - 1, node.end_lineno or node.lineno
    module = to.removesuffix(".py").replace("/", ".")
    kept = [*lines[:start], f"from {module} import {name}\n", *lines[end:]]
    return "".join(kept), "".join(lines[start:end])


def _names_of(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return [*names, getattr(node, "name", "")]


@contextmanager
def tree(patch: Patch, version: str, *, patched: bool = True) -> Iterator[Tree]:
    """A copy of a release, with the patch if it has a diff for that release."""
    pristine = sources.fetch(patch.project, version, SETTINGS)
    with copy_of(pristine.root) as root:
        variant = patch.variant(version) if patched else None
        added = {}
        if variant:
            done = overlay.git_apply(root, variant.diff)
            assert done.returncode == 0, done.stderr
            for name in overlay.touched(variant.diff):
                old = pristine.root / name
                before = old.read_text() if old.is_file() else ""
                added[name] = before, (root / name).read_text()
        yield Tree(
            patch=patch, root=root, version=version, patched=variant is not None, added=added
        )


def survives(subject: Tree, edit: Edit) -> tuple[bool, str]:
    """Whether a mutant is not noticed, and what the proof says.

    A patched tree must be proven right: an inconclusive proof stops a build, too. Where there is no
    patch nothing but red is a finding.
    """
    with subject.changed({edit.file: edit.text}):
        code, said = subject.prove()
    return code == overlay.RIGHT or (not subject.patched and code == overlay.INCONCLUSIVE), said
