"""Adapter for git: resolves a ref to a commit, and packs its tree and submodules as one archive."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from imagefactory.errors import SetupError, fail
from imagefactory.system import archive, shell

#: Never ask for credentials.
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_ADVICE": "0"}


def commit_of(repository: str, ref: str) -> str:
    """The commit that ``ref`` currently points to, as 40 hex digits.

    Raises SetupError if the repository has no such ref.
    """
    if re.fullmatch("[0-9a-f]{40}", ref):
        return ref
    names = (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}")
    lines = _git("ls-remote", repository, *names).splitlines()
    found = {name: commit for commit, name in (line.split() for line in lines)}
    for name in names:
        if name in found:
            return found[name]
    fix = f"write one of its tags, branches or commits: git ls-remote {repository}"
    raise fail(SetupError, "no-such-ref", f"{repository} has no tag or branch {ref}", fix=fix)


def pack(repository: str, commit: str, target: Path) -> None:
    """Write the tree of ``commit`` to the tar file ``target``, reproducibly.

    Raises SetupError if the commit cannot be fetched.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        tree = Path(name) / "tree"
        _git("init", "--quiet", str(tree))
        _git("-C", str(tree), "fetch", "--quiet", "--depth", "1", repository, commit)
        _git("-C", str(tree), "-c", "core.autocrlf=false", "checkout", "--quiet", "FETCH_HEAD")
        if (tree / ".gitmodules").is_file():
            options = ("--init", "--recursive", "--depth", "1")
            _git("-C", str(tree), "submodule", "--quiet", "update", *options)
        archive.pack(tree, target)


def _git(*arguments: str) -> str:
    done = shell.run(["git", *arguments], env=_ENVIRONMENT)
    if not done.ok:
        command = arguments[2] if arguments[0] == "-C" else arguments[0]
        output = (done.err or done.out).strip().splitlines()
        what = f"git {command}: {output[-1] if output else 'failed'}"
        raise fail(SetupError, "git-failed", what, fix=f"run it by hand: {shell.show(done.argv)}")
    return done.out
