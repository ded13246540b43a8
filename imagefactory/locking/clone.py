"""Adapter for git: a kept clone of a repository, to compare commits, count and merge them.

It is bare and partial: the first fetch brings commits, and git asks for trees and files when it
needs them, so that a large repository costs little. Servers that cannot do that send everything.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from imagefactory.errors import CheckFailedError, fail
from imagefactory.locking import gitref
from imagefactory.settings import Settings
from imagefactory.system import archive, locks

#: Merging the same commits gives the same commit: who merges, and when, is part of it.
_WHO = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in {
        "NAME": "imagefactory",
        "EMAIL": "imagefactory@localhost",
        "DATE": f"{archive.EPOCH} +0000",
    }.items()
}
_NO_FILE = re.compile(r"path '.*' (?:does not exist in|exists on disk, but not in)")
#: Tags of releases.
_TAGS = "v[0-9]*"


@contextmanager
def opened(repository: str, settings: Settings) -> Iterator[Clone]:
    """The clone of ``repository`` in the cache, for one process at a time."""
    folder = settings.cache / "git"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(repository.encode()).hexdigest()[:16]
    with locks.held(folder / f"{name}.lock", repository):
        clone = Clone(folder / f"{name}.git")
        for left in (*clone.path.glob("*.lock"), *(clone.path / "refs").rglob("*.lock")):
            left.unlink()  # of a git that was killed, as nobody else is here
        clone.set_up(repository)
        yield clone


@dataclass(frozen=True, slots=True)
class Clone:
    """A bare clone; revisions are commits, or whatever git reads as one."""

    path: Path

    def git(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """What git prints. Raises SetupError if it fails."""
        return gitref.git("-C", str(self.path), *arguments, env=env, quiet=True)

    def set_up(self, repository: str) -> None:
        """Make it a partial clone of ``repository``, if it is not one yet."""
        done = self.path / "imagefactory"
        if done.is_file():
            return
        gitref.git("init", "--quiet", "--bare", str(self.path), quiet=True)
        for key, value in {
            "remote.origin.url": repository,
            "remote.origin.promisor": "true",
            "remote.origin.partialclonefilter": "tree:0",
            "gc.auto": "0",  # a locked commit may be on no branch any more
        }.items():
            self.git("config", key, value)
        done.touch()

    def fetch(self, commits: Sequence[str]) -> None:
        """Fetch ``commits`` with their history, and all tags of releases.

        Raises SetupError if the repository does not have them.
        """
        specs = [f"+{commit}:refs/imagefactory/{commit}" for commit in commits]
        options = "--quiet", "--no-tags", "--filter=tree:0"
        words = "fetch", *options, "origin", "+refs/tags/v*:refs/tags/v*", *specs
        gitref.git("-C", str(self.path), *words)

    def commit(self, revision: str) -> str | None:
        """The commit that ``revision`` is, or None if there is none."""
        options = "--verify", "--quiet", "--end-of-options"
        done = gitref.tried("-C", str(self.path), "rev-parse", *options, f"{revision}^{{commit}}")
        return done.out.strip() if done.ok else None

    def described(self, commit: str) -> tuple[str, int] | None:
        """The nearest tag of a release before ``commit``, and how many commits ago it was."""
        options = "--tags", "--long", "--abbrev=40", f"--match={_TAGS}"
        done = gitref.tried("-C", str(self.path), "describe", *options, commit)
        if not done.ok:
            return None
        tag, count, _ = done.out.strip().rsplit("-", 2)
        return tag, int(count)

    def differing(self, one: str, other: str, paths: Sequence[str] = ()) -> list[str]:
        """The files at and below ``paths`` that are not the same in two commits, sorted."""
        options = "-r", "-z", "--name-only", "--no-renames"
        out = self.git("diff-tree", *options, one, other, "--", *paths)
        return sorted(filter(None, out.split("\0")))

    def text(self, commit: str, path: str) -> str | None:
        """The text of a file, or None if there is none. Raises SetupError if it cannot be read."""
        done = gitref.tried("-C", str(self.path), "show", f"{commit}:{path}")
        return None if _NO_FILE.search(done.err) else gitref.output(done)

    def fork(self, head: str, others: Iterable[str]) -> str | None:
        """The commit after which ``head`` has commits of its own, which none of ``others`` has.

        None if it has none.
        """
        bases = [self.git("merge-base", head, other).strip() for other in others]
        count = {base: int(self.git("rev-list", "--count", f"{base}..{head}")) for base in bases}
        nearest = min(count, key=lambda base: count[base])
        return nearest if count[nearest] else None

    def merged(self, commit: str, changes: Sequence[tuple[str, str]]) -> str:
        """``commit`` with ``changes`` merged into it, one after the other; always the same commit.

        A change is a name for people, and a range of commits (``BASE..HEAD``): what is older is not
        merged, so that a pull request fits on an older release, too. Raises CheckFailedError for
        one that conflicts.
        """
        for name, (base, head) in ((name, words.split("..")) for name, words in changes):
            # `merge-tree --merge-base` is newer than Debian 12's git: make it the only parent
            root = self._committed(f"{base}^{{tree}}")
            ours, theirs = (self._committed(f"{one}^{{tree}}", root) for one in (commit, head))
            options = "--write-tree", "--name-only", "--no-messages", "-z"
            done = gitref.tried("-C", str(self.path), "merge-tree", *options, ours, theirs)
            tree, *files = done.out.strip("\0").split("\0")
            if not done.ok and not files:
                raise fail(CheckFailedError, "pr-failed", f"{name}: {done.err.strip()}", fix=_GIT)
            if not done.ok:
                what = f"{name} conflicts with what it is merged into: {', '.join(files[:5])}"
                fix = "remove it, or name a ref that it is based on"
                raise fail(CheckFailedError, "pr-conflict", what, fix=fix)
            commit = self._committed(tree, commit)
        return commit

    def _committed(self, tree: str, *parents: str) -> str:
        """A commit of ``tree``; the same arguments give the same commit."""
        own = self.git("rev-parse", "--verify", tree).strip()
        words = [word for parent in parents for word in ("-p", parent)]
        return self.git("commit-tree", own, *words, "-m", "merged", env=_WHO).strip()

    def pack(self, commit: str, target: Path) -> None:
        """Write the tree of ``commit`` to the tar file ``target``, as ``gitref.pack`` does.

        Raises CheckFailedError for a tree with submodules.
        """
        if self.text(commit, ".gitmodules") is not None:
            what, fix = "it has submodules, which are not merged", "name a ref without `prs`"
            raise fail(CheckFailedError, "pr-submodules", what, fix=fix)
        with tempfile.TemporaryDirectory(dir=target.parent) as name:
            tree = Path(name) / "tree"
            tree.mkdir()
            words = "-c", "core.autocrlf=false", f"--work-tree={tree}", "read-tree", "--reset", "-u"
            index = {"GIT_INDEX_FILE": str(Path(name) / "index")}
            self.git(*words, commit, env=index)
            archive.pack(tree, target)


_GIT = "it needs git 2.38 or newer: git --version"


def pack_merged(
    repository: str, commit: str, ranges: Sequence[str], target: Path, settings: Settings
) -> None:
    """Write the tree of ``commit`` with ``ranges`` merged into it to the tar file ``target``."""
    with opened(repository, settings) as clone:
        clone.fetch([commit, *(end for one in ranges for end in one.split(".."))])
        clone.pack(clone.merged(commit, [(one, one) for one in ranges]), target)
