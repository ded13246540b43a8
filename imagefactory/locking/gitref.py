"""Adapter for git: resolves a ref to a commit, and packs its tree and submodules as one archive."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from imagefactory.errors import SetupError, fail
from imagefactory.system import archive, shell

#: Never ask for credentials.
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_ADVICE": "0", "LC_ALL": "C"}
#: What git adds to every failure to read from a repository, after the reason.
_GENERAL = (
    "fatal: Could not read from remote repository.",
    "Please make sure you have the correct access rights",
    "and the repository exists.",
    "",
)


def commit_of(repository: str, ref: str) -> str:
    """The commit that ``ref`` currently points to, as 40 hex digits.

    Raises SetupError if the repository has no such ref.
    """
    if re.fullmatch("[0-9a-f]{40}", ref):
        return ref
    found = _first(repository, f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}")
    if found:
        return found
    fix = f"write one of its tags, branches or commits: git ls-remote {repository}"
    raise fail(SetupError, "no-such-ref", f"{repository} has no tag or branch {ref}", fix=fix)


def default_of(repository: str) -> str:
    """The commit of the default branch, as 40 hex digits.

    Raises SetupError if the repository has none.
    """
    found = _first(repository, "HEAD")
    if found:
        return found
    what, fix = f"{repository} has no default branch", "name another repository"
    raise fail(SetupError, "no-such-ref", what, fix=fix)


def head_of(repository: str, number: int) -> str:
    """The last commit of a pull request, as 40 hex digits.

    Raises SetupError if the repository has no such pull request.
    """
    found = _first(repository, f"refs/pull/{number}/head")
    if found:
        return found
    what = f"{repository} has no pull request {number}"
    fix = f"correct its number: git ls-remote {repository} 'refs/pull/*/head'"
    raise fail(SetupError, "no-such-pr", what, fix=fix)


def _first(repository: str, *names: str) -> str | None:
    """The commit of the first of ``names`` that the repository has, or None."""
    lines = git("ls-remote", repository, *names).splitlines()
    found = {name: commit for commit, name in (line.split() for line in lines)}
    return next((found[name] for name in names if name in found), None)


def pack(repository: str, commit: str, target: Path) -> None:
    """Write the tree of ``commit`` to the tar file ``target``, reproducibly.

    Raises SetupError if the commit cannot be fetched.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        tree = Path(name) / "tree"
        git("init", "--quiet", str(tree))
        git("-C", str(tree), "fetch", "--quiet", "--depth", "1", repository, commit)
        git("-C", str(tree), "-c", "core.autocrlf=false", "checkout", "--quiet", "FETCH_HEAD")
        if (tree / ".gitmodules").is_file():
            options = ("--init", "--recursive", "--depth", "1")
            git("-C", str(tree), "submodule", "--quiet", "update", *options)
        archive.pack(tree, target)


def git(*arguments: str, env: Mapping[str, str] | None = None, quiet: bool = False) -> str:
    """What git prints; a ``quiet`` command is not shown. Raises SetupError if it fails."""
    return output(shell.run(["git", *arguments], env={**_ENVIRONMENT, **(env or {})}, quiet=quiet))


def output(done: shell.Completed) -> str:
    """What git printed. Raises SetupError if it failed."""
    if not done.ok:
        command = done.argv[3] if done.argv[1] == "-C" else done.argv[1]
        lines = (done.err or done.out).strip().splitlines()
        own = [line for line in lines if line.strip() not in _GENERAL] or lines
        what = f"git {command}: {own[-1] if own else 'failed'}"
        raise fail(SetupError, "git-failed", what, fix=f"run it by hand: {shell.show(done.argv)}")
    return done.out


def tried(*arguments: str) -> shell.Completed:
    """The result of a command that may fail; it is not shown."""
    return shell.run(["git", *arguments], env=_ENVIRONMENT, quiet=True)
