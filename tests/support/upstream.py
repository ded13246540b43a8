"""A repository of vLLM with a release and commits after it, made on the spot."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from imagefactory.locking.lock import Lock
from imagefactory.locking.locked_sources import LockedRef
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, VllmRef
from imagefactory.system.yamlfile import Location
from support import matrices

ROW = 'vllm: ["0.22.1", "0.33.0"]'
TOOLS = "toolchains:\n  t: {requirements: [wheel==0.45.1], platforms: [linux/amd64]}\ndefaults:\n"
LINES = "".join(f"line {number}\n" for number in range(20))


class Upstream:
    """A repository with a release and commits after it, on branches and in pull requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "uploadpack.allowFilter", "true")

    def git(self, *argv: str) -> str:
        who = "-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0"
        done = subprocess.run(
            ["git", "-C", str(self.folder), *who, *argv], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str]) -> str:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a change")
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str, files: Mapping[str, str], *, start: str = "main") -> str:
        self.git("checkout", "--quiet", "-b", name, start)
        commit = self.commit(files)
        self.git("checkout", "--quiet", "main")
        return commit

    def pull(self, number: int, files: Mapping[str, str]) -> None:
        head = self.branch(f"pull{number}", files)
        self.git("update-ref", f"refs/pull/{number}/head", head)


def vllm(folder: Path) -> Upstream:
    """Release 0.33.0, and after it changes of Python, of kernels and of requirements."""
    made = Upstream(folder)
    made.commit(
        {
            "csrc/a.cu": "one\n",
            "vllm/envs.py": LINES,
            "requirements/cuda.txt": "-r common.txt\n--extra-index-url x\ntorch==2.14.0\n",
            "requirements/common.txt": "numpy >= 1.0 # for arrays\n",
        }
    )
    made.git("tag", "v0.33.0")
    made.commit({"vllm/new.py": "new\n"})
    made.commit({"vllm/new.py": "newer\n"})
    made.branch("kernels", {"csrc/a.cu": "two\n", "cmake/b.cmake": "b\n"})
    made.branch("needs", {"requirements/common.txt": "numpy>=1.0\nnumpy>=3\nleaf<2\n"})
    made.pull(7, {"vllm/envs.py": LINES.replace("line 2\n", "two\n")})
    made.pull(8, {"vllm/envs.py": LINES.replace("line 2\n", "zwei\n")})
    made.pull(9, {"csrc/a.cu": "three\n"})
    made.git("update-ref", "refs/pull/5/head", "main~1")
    return made


def wanted(upstream: Upstream, ref: str = "main", *prs: int, base: str = "0.33.0") -> VllmRef:
    return VllmRef(
        repository=f"file://{upstream.folder}",
        ref=ref,
        prs=prs,
        base=base,
        tools="t",
        words="-".join([ref, *(f"pr{number}" for number in prs)]),
        location=Location(file="matrix.yaml", line=27),
    )


def cell_of(folder: Path, ref: VllmRef, *changes: tuple[str, str]) -> Cell:
    """The cell of the ref in a matrix with others."""
    prs = f"prs: {list(ref.prs)}, " if ref.prs else ""
    entry = f"{{ref: {ref.ref}, {prs}base: '{ref.base}', tools: t, repository: '{ref.repository}'}}"
    row = f'vllm: ["0.22.1", {entry}]'
    path = matrices.changed(folder, (ROW, row), ("defaults:\n", TOOLS), *changes)
    (found,) = (cell for cell in matrix.load(path).cells if cell.ref)
    return found


def locked_with(*found: LockedRef) -> Lock:
    return Lock(created="2026-11-20", tools=(), resolutions=(), refs=found)
