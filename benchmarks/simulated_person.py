"""The person of the simulated year: starts the project, and does by hand what a night could not.

In the morning the person merges the branch of the night and keeps the newest row. What is done
beyond that is counted: a diff written for a patch that could not be ported (the catalogue's own
one), or another platform and channel for the row.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from imagefactory.locking import metadata, store
from imagefactory.locking.lock import Lock
from imagefactory.matrix import matrix
from imagefactory.nightly.values import Broken, Night
from imagefactory.patching import authoring, catalog, worktree
from imagefactory.patching.patch import Exemption, Patch
from imagefactory.settings import Settings, from_environment
from imagefactory.system import shell
from imagefactory.workspace import Workspace

ROOT = Path(__file__).parents[1]
FLAVOR = "gb10"
#: Of PyPI's builds of torch, those for arm64 have CUDA from 2.11.0 on; the year starts before that.
BEFORE = {
    "platform": "linux/amd64",
    "cuda": "12.8",
    "channel": "cu128",
    "overrides": '{driver: "570.26", reason: the factory only knows CUDA 13}',
}
AFTER = {"platform": "linux/arm64", "cuda": "13.0", "channel": "cu130", "overrides": ""}
MATRIX = """\
version: 1
repository: example/vllm
tags: ["{{flavor}}-vllm{{vllm}}-torch{{torch}}-{{channel}}"]
moving_tags: {{nightly: {{}}}}
bases:
  trixie: {trixie}
flavors:
  gb10:
    summary: the flavor of the stock matrix
    base: trixie
    requirements: ["vllm=={{vllm}}", "torch=={{torch}}", "flashinfer-python=={{flashinfer}}"]
    patches: {patches}
    driver: "580.95"
defaults: {{flavor: gb10, platform: {platform}}}
axes:
  python: ["3.13"]
  cuda: ["{cuda}"]
  channel: [{channel}]
zip:
  - vllm:       ["{vllm}"]
    torch:      ["{torch}"]
    flashinfer: ["{flashinfer}"]
overrides: [{overrides}]
hold:
  uv: {{to: "=={uv}", reason: "each of its releases would renew the lock", until: 2099-12-31}}
"""
AXES = ("vllm", "torch", "flashinfer")


@dataclass
class Person:
    """The person, and the project.

    Attributes:
        workspace: the project, in a git repository.
        done: what was done by hand, the newest last.
    """

    workspace: Workspace
    done: list[str] = field(default_factory=list)

    @property
    def newest(self) -> str:
        """The newest release in the matrix."""
        return str(max(Version(one.vllm) for one in matrix.load(self.workspace.matrix).cells))

    def morning(self, night: Night, held: str) -> list[str]:
        """Merge the night, and do by hand what broke or is ``held`` back; what that was."""
        self._merge()
        did = [text for one in night.broken for text in self._repair(one)]
        other = re.search(r"is built for cu130, not cu128", held)
        if other and not night.broken:
            did.append(self._change_target(held.partition(":")[0]))
        text = self.workspace.matrix.read_text(encoding="utf-8")
        for axis in AXES:
            text = re.sub(rf'({axis}:\s+\[)"[^]]*, ("[^"]+"\])', r"\1\2", text)
        self.workspace.matrix.write_text(text, encoding="utf-8")
        self._commit("; ".join(did) or "Keep the newest row")
        self.done += did
        return did

    def _repair(self, one: Broken) -> list[str]:
        lacks = re.search(
            r"Because (\S+?)[<>=]\S* has no wheels with a match", one.problems[0].what
        )
        if one.step == "lock" and lacks:
            return [self._drop(lacks[1])]
        ported = re.fullmatch(r"(vllm/\S+) on vllm (\S+)", one.where)
        if one.step != "port" or not ported:
            return []
        name, version = ported.groups()
        own = catalog.load(ROOT / "patches")[name]
        found = next((v for v in own.variants if v.versions.contains(version)), None)
        for work in worktree.unfinished(self.workspace.settings):
            worktree.remove(work)
        mine = catalog.load(*self.workspace.patches)[name]
        exempt = next((one for one in own.exemptions if one.versions.contains(version)), None)
        if exempt:
            data = _read(mine.folder)
            data["not_applicable"] = [*data.get("not_applicable", []), _entry(exempt)]
            _write(mine.folder, data)
            return [f"declared that {name} does not apply to {version}"]
        if found is None:
            return []
        text = found.diff.read_text(encoding="utf-8")
        authoring.add_variant(mine, version, text, found.moved)
        return [f"wrote a diff of {name} for {version}"]

    def _drop(self, package: str) -> str:
        text = self.workspace.matrix.read_text(encoding="utf-8")
        row = f"{{drop: {package}, when: {{flavor: {FLAVOR}}}, reason: no wheel for the platform}}"
        text = re.sub(r"(?m)^overrides: \[(.*)\]$", rf"overrides: [\1{row}, ]", text)
        self.workspace.matrix.write_text(text, encoding="utf-8")
        return f"dropped {package}, which has no wheel for the platform"

    def _change_target(self, release: str) -> str:
        text = self.workspace.matrix.read_text(encoding="utf-8")
        lines = metadata.requires("vllm", release, self.workspace.settings) or []
        pins = dict(re.findall(r"(?m)^(torch|flashinfer)(?:-python)?==([^;\s]+)", "\n".join(lines)))
        for axis, value in {"vllm": release, **pins}.items():
            text = re.sub(rf'({axis}:\s+\[)"[^]]*\]', rf'\1"{value}"]', text)
        for key, value in BEFORE.items():
            text = text.replace(value, AFTER[key])
        self.workspace.matrix.write_text(text, encoding="utf-8")
        return f"changed {BEFORE['platform']}, {BEFORE['channel']} to a GB10's, with {release}"

    def _merge(self) -> None:
        if git(self.workspace.project, "branch", "--list", "nightly"):
            git(self.workspace.project, "merge", "-q", "--no-edit", "nightly")

    def _commit(self, subject: str) -> None:
        git(self.workspace.project, "add", "-A")
        if git(self.workspace.project, "status", "--porcelain"):
            git(self.workspace.project, "commit", "-q", "-m", subject)


def start(folder: Path, index: str, row: dict[str, str], target: dict[str, str]) -> Person:
    """A project with one row, and the patches as they were at that release."""
    project, cache = folder / "project", folder / "cache"
    shutil.rmtree(folder / "state", ignore_errors=True)
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir(parents=True)
    cache.mkdir(exist_ok=True)
    here = from_environment(os.environ)
    for name in ("sources", "proofs"):  # which are the same at any time
        (here.cache / name).mkdir(parents=True, exist_ok=True)
        if not (cache / name).exists():
            (cache / name).symlink_to(here.cache / name)
    settings: Settings = replace(
        here, state=folder / "state", cache=cache, indexes=(index,), find_links=(), accounts={}
    )
    stock = yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    base = yaml.safe_dump(stock["bases"]["trixie"], default_flow_style=True, width=9999)
    text = MATRIX.format(
        trixie=base.strip(),
        patches=f"[{', '.join(stock['flavors'][FLAVOR]['patches'])}]",
        **target,
        **row,
    )
    (project / "matrix.yaml").write_text(text, encoding="utf-8")
    for patch in catalog.load(ROOT / "patches").values():
        if patch.name in stock["flavors"][FLAVOR]["patches"]:
            _copy(patch, project / "patches" / patch.name, row["vllm"])
    workspace = Workspace(matrix=project / "matrix.yaml", project=project, settings=settings)
    own = store.read(ROOT / "wheels.lock")
    empty = Lock(created=own.created, tools=own.tools, resolutions=(), bases=own.bases)
    store.write(workspace.lock, empty, guards=settings.state / "locks")
    git(project, "init", "-q", "-b", "main")
    git(project, "config", "user.email", "me@example.org")
    git(project, "config", "user.name", "me")
    person = Person(workspace=workspace)
    person._commit("Start")  # noqa: SLF001 - the same module
    return person


def _copy(patch: Patch, folder: Path, release: str) -> None:
    """The patch as somebody had it who knew ``release``, and nothing that came later."""
    shutil.copytree(patch.folder, folder, ignore=shutil.ignore_patterns("__pycache__", "*.diff"))
    data = _read(folder)
    data.pop("kinds", None)
    data["not_applicable"] = [
        _entry(one) for one in patch.exemptions if one.versions.contains(release)
    ]
    line = Version(release).release[:2]
    own = [one for one in patch.variants if one.versions.contains(release)]
    data["variants"] = [
        {
            "versions": f">={line[0]}.{line[1]},<{line[0]}.{line[1] + 1}",
            "diff": one.diff.name,
            **({"moved": dict(one.moved)} if one.moved else {}),
        }
        for one in own
    ]
    for one in own:
        shutil.copy(one.diff, folder)
    _write(folder, data)


def _entry(one: Exemption) -> dict[str, str]:
    return {"versions": str(one.versions), "reason": one.reason}


def _read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "patch.yaml").read_text(encoding="utf-8"))
    return found


def _write(folder: Path, data: dict[str, Any]) -> None:
    text = yaml.safe_dump(data, sort_keys=False)
    (folder / "patch.yaml").write_text(text, encoding="utf-8")


def git(folder: Path, *argv: str) -> str:
    """Run git."""
    return shell.run(["git", "-C", str(folder), *argv], quiet=True).out.strip()
