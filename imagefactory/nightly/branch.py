"""The copy of a project that a night works in, and the git branch that it ends on.

With git it is a work tree of its own at a detached commit, so neither the files nor the branch that
a person has checked out change. Without git it is a copy of the files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from imagefactory.errors import InputError, SetupError, fail
from imagefactory.system import files, shell
from imagefactory.workspace import Workspace

#: The files of a project that a night reads or writes; all else of it is nobody's business.
FILES = ("wheels.lock", "patches", "templates")
REPORT = "nightly-report.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class GitTree:
    """A work tree of the project's repository.

    Attributes:
        workspace: the project in it.
        root: its top folder.
        repository: the top folder of the person's own checkout.
        branch: where the result goes.
        base: the commit that the night starts from.
    """

    workspace: Workspace
    root: Path
    repository: Path
    branch: str
    base: str

    def restore(self, *names: str) -> None:
        """Give files or folders their state from before the night; all of them if none."""
        project = self.workspace.project
        for path in [project / name for name in names] or [project]:
            _git(self.root, "clean", "-ffdxq", "--", str(path))
            kept = _git(self.root, "ls-tree", "--name-only", self.base, "--", str(path))
            if kept or path == project:
                _git(self.root, "checkout", "-q", "-f", self.base, "--", str(path))

    def changed(self) -> tuple[str, ...]:
        """The files that the night changed."""
        _git(self.root, "add", "-A", "--", str(self.workspace.project))
        own = f"--relative={self.workspace.project.relative_to(self.root)}"
        options = [] if own.endswith("=.") else [own]
        found = _git(self.root, "diff", "--cached", "--name-only", *options, self.base)
        return tuple(name for name in found.splitlines() if name != REPORT)

    def keep(self, report: str) -> str:
        """Commit the changed files with the report, and move the branch there."""
        files.write_text(self.workspace.project / REPORT, report)
        _git(self.root, "add", "-A", "--", str(self.workspace.project))
        if not _said(self.root, "diff", "--cached", "--quiet", "HEAD").ok:
            subject = report.partition("\n")[0].lstrip("# ")
            _git(self.root, *_committing(self.root), "commit", "-q", "-m", subject)
        _check_is_free(self.repository, self.root, self.branch)
        commit = _git(self.root, "rev-parse", "HEAD")
        _git(self.root, "update-ref", f"refs/heads/{self.branch}", commit)
        return f"All of it is on the branch `{self.branch}`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy of a project that is in no git repository."""

    workspace: Workspace
    project: Path

    def restore(self, *names: str) -> None:
        """Give files or folders their state from before the night; all of them if none."""
        for name in names or (self.workspace.matrix.name, *FILES):
            _replace(self.project / name, self.workspace.project / name)

    def changed(self) -> tuple[str, ...]:
        """The files that the night changed."""
        own, old = self.workspace.project, self.project
        names = sorted(str(path.relative_to(own)) for path in own.rglob("*") if path.is_file())
        return tuple(
            name
            for name in names
            if not (old / name).is_file() or (old / name).read_bytes() != (own / name).read_bytes()
        )

    def keep(self, report: str) -> str:
        """Say where the changed files are, as there is no branch."""
        del report
        return f"There is no git repository; the changed files are in {self.workspace.project}."


def head(project: Path) -> str:
    """The commit that is checked out; empty if the project is in no git repository.

    Raises SetupError for a repository that git does not open, such as another user's, and
    InputError for one without a commit: a night in neither would leave no branch.
    """
    top = next((one for one in (project, *project.parents) if (one / ".git").exists()), None)
    if top is None or shutil.which("git") is None:
        return ""
    _git(project, "rev-parse", "--show-toplevel")
    found = _said(project, "rev-parse", "--verify", "-q", "HEAD")
    if not found.ok:
        what, fix = f"the repository {top} has no commit", "commit the project"
        raise fail(InputError, "nightly-uncommitted", what, fix=fix)
    return found.out.strip()


def is_there(folder: Path, commit: str) -> bool:
    """Whether ``folder`` can be worked in: a new clone does not know the work trees of an old one.

    ``commit`` is one of the repository; empty without git.
    """
    known = not commit or _said(folder, "cat-file", "-e", commit).ok
    return folder.is_dir() and known


def uncommitted(workspace: Workspace) -> bool:
    """Whether files of the project have changes that no commit has, which a night does not see."""
    names = [workspace.matrix.name, *FILES]
    return bool(_git(workspace.project, "status", "--porcelain", "--", *names))


def copy(workspace: Workspace, folder: Path, *, resumed: bool) -> Copy:
    """The copy of a project without git below ``folder``."""
    made = Copy(workspace=_moved(workspace, folder), project=workspace.project)
    if not resumed:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        made.restore()
    return made


def open_tree(
    workspace: Workspace, folder: Path, branch: str, started: Callable[[Callable[[], str]], str]
) -> GitTree:
    """The work tree for a night below ``folder``.

    ``started`` returns the commit that the night starts from: the one of an earlier run, or what
    the function that it gets returns, which makes the work tree. Raises InputError for a branch
    that is none, or is checked out.
    """
    repository = Path(_git(workspace.project, "rev-parse", "--show-toplevel"))
    _check_name(repository, branch)
    _check_is_free(repository, folder, branch)
    base = started(lambda: _start(repository, folder, branch))
    moved = _moved(workspace, folder / workspace.project.relative_to(repository))
    for path in (moved.matrix, moved.lock):
        if not path.exists():
            what = f"{path.name} is in no commit of {repository}"
            made = (workspace.project / path.name).exists()
            fix = f"{'' if made else 'imagefactory lock, then '}git add {path.name}, and commit it"
            raise fail(InputError, "nightly-uncommitted", what, fix=fix)
    return GitTree(
        workspace=moved,
        root=folder,
        repository=repository,
        branch=branch,
        base=base,
    )


def remove(tree: GitTree) -> None:
    """Remove the work tree; what it had is on the branch."""
    _said(tree.repository, "worktree", "remove", "--force", str(tree.root))


def _start(repository: Path, folder: Path, branch: str) -> str:
    """Make the work tree: the branch of earlier nights, with what was committed since."""
    _said(repository, "worktree", "remove", "--force", str(folder))
    shutil.rmtree(folder, ignore_errors=True)
    _git(repository, "worktree", "prune")
    now = _git(repository, "rev-parse", "HEAD")
    ref = _ref(repository, branch)
    _git(repository, "worktree", "add", "-q", "--detach", str(folder), ref or now)
    if not _said(folder, *_committing(folder), "merge", "-q", "--no-edit", now).ok:
        _said(folder, "merge", "--abort")
        name = ref.split("/", 2)[2]
        what = f"the branch {name} conflicts with what was committed since ({now[:12]})"
        remove = f"branch -D {branch}" if name == branch else f"push origin --delete {branch}"
        fix = f"merge it by hand, or remove it: git {remove}"
        raise fail(InputError, "nightly-diverged", what, fix=fix)
    return _git(folder, "rev-parse", "HEAD")


def _ref(repository: Path, branch: str) -> str:
    """The ref of the branch here, else at the origin, as in a fresh clone; empty if neither."""
    for name in (f"refs/heads/{branch}", f"refs/remotes/origin/{branch}"):
        if _said(repository, "rev-parse", "--verify", "-q", f"{name}^{{commit}}").ok:
            return name
    return ""


def _check_name(repository: Path, branch: str) -> None:
    """Raise InputError for what git could not make a branch of, hours later."""
    said = _said(repository, "check-ref-format", "--branch", branch)
    if not said.ok or said.out.strip() != branch:  # it reads @{-1} as the name of a branch
        raise fail(InputError, "nightly-branch", f"{branch!r} is not the name of a branch")
    for one in _git(repository, "for-each-ref", "--format=%(refname)", "refs/heads").splitlines():
        other = one.removeprefix("refs/heads/")
        if other.startswith(f"{branch}/") or branch.startswith(f"{other}/"):
            what = f"git cannot have the branch {branch} beside the branch {other}"
            raise fail(InputError, "nightly-branch", what, fix="choose another --branch")


def _check_is_free(repository: Path, folder: Path, branch: str) -> None:
    """Raise InputError if a person works on the branch: it would move under their feet."""
    where = ""
    for line in _git(repository, "worktree", "list", "--porcelain").splitlines():
        key, _, value = line.partition(" ")
        where = value if key == "worktree" else where
        if key == "branch" and value == f"refs/heads/{branch}" and Path(where) != folder:
            what, fix = f"the branch {branch} is checked out in {where}", "choose another --branch"
            raise fail(InputError, "nightly-branch", what, fix=fix)


def _moved(workspace: Workspace, project: Path) -> Workspace:
    return replace(workspace, matrix=project / workspace.matrix.name, project=project)


def _replace(source: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.is_file():
        shutil.copyfile(source, target)


def _committing(folder: Path) -> list[str]:
    """Options for a commit that nobody watches: no hooks, no key to unlock, and an author."""
    plain = ["-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false"]
    who = ["-c", "user.name=imagefactory", "-c", "user.email=imagefactory@localhost"]
    return plain if _said(folder, "config", "user.email").ok else [*who, *plain]


def _said(folder: Path, *argv: str) -> shell.Completed:
    return shell.run(["git", "-C", str(folder), *argv], quiet=True)


def _git(folder: Path, *argv: str) -> str:
    done = _said(folder, *argv)
    if not done.ok:
        what = f"git {' '.join(argv[:2])} failed: {done.err.strip()}"
        raise fail(SetupError, "git-failed", what, fix="run it by hand to see why")
    return done.out.strip()
