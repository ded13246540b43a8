"""update-alternatives without running it. Pure."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagefactory.building.tree import Kind, Tree

_ADMIN = "var/lib/dpkg/alternatives"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One ``update-alternatives --install``: ``slaves`` are name -> (link, path)."""

    name: str
    link: str
    path: str
    priority: int
    slaves: Mapping[str, tuple[str, str]]


def parse(script: str) -> Iterator[Alternative]:
    """The alternatives that a maintainer script installs.

    Raises ValueError for a call that is not understood.
    """
    for line in script.replace("\\\n", " ").splitlines():
        if "update-alternatives" in line and "--install" in line:
            yield _call(shlex.split(line, comments=True))


def _call(words: Sequence[str]) -> Alternative:
    at = words.index("--install")
    link, name, path, priority, *rest = words[at + 1 :]
    slaves = {}
    while rest[:1] == ["--slave"]:
        _, slave_link, slave, slave_path, *rest = rest
        slaves[slave] = (slave_link, slave_path)
    values = [link, name, path, *(value for slave in slaves.values() for value in slave)]
    if rest[:1] not in ([], ["||"]) or any("$" in value for value in values):
        raise ValueError(f"not an update-alternatives call: {shlex.join(words)}")
    return Alternative(name=name, link=link, path=path, priority=int(priority), slaves=slaves)


def install(tree: Tree, found: Iterable[Alternative]) -> None:
    """Make the links of each name's alternative of highest priority, and dpkg's record of all.

    As with update-alternatives, one whose file does not exist is left out, and so are links for
    slaves without a file (a manual that the image leaves out).
    """
    by_name: dict[str, list[Alternative]] = defaultdict(list)
    for alternative in found:
        file = tree.find(alternative.path.strip("/"))
        if file is not None and file.kind is Kind.FILE:
            by_name[alternative.name].append(alternative)
    for name, choices in sorted(by_name.items()):
        mode, known = _recorded(tree, name)
        paths = {choice.path for choice in choices}
        _install(tree, name, [*choices, *(one for one in known if one.path not in paths)], mode)


def _recorded(tree: Tree, name: str) -> tuple[str, list[Alternative]]:
    """Whether the best choice of ``name`` is taken (``auto``), and the choices on record."""
    if tree.find(f"{_ADMIN}/{name}") is None:
        return "auto", []
    lines = tree.text(f"{_ADMIN}/{name}").splitlines()
    mode, link, *rest = lines
    end = rest.index("")
    slaves = list(zip(rest[:end:2], rest[1:end:2], strict=True))
    rows, size = rest[end + 1 :], 2 + len(slaves)
    found = []
    for at in range(0, len(rows) - size + 1, size):
        path, priority, *paths = rows[at : at + size]
        if not path:
            break
        pairs = zip(slaves, paths, strict=True)
        own = {slave: (target, file) for (slave, target), file in pairs if file}
        one = Alternative(name=name, link=link, path=path, priority=int(priority), slaves=own)
        found.append(one)
    return mode, found


def _install(tree: Tree, name: str, choices: Sequence[Alternative], mode: str) -> None:
    best = max(choices, key=lambda choice: choice.priority)
    slaves = {slave: link for each in choices for slave, (link, _) in each.slaves.items()}
    lines = [mode, best.link]
    for slave in sorted(slaves):
        lines += [slave, slaves[slave]]
    lines.append("")
    for choice in sorted(choices, key=lambda choice: choice.path):
        lines += [choice.path, str(choice.priority)]
        lines += [choice.slaves.get(slave, ("", ""))[1] for slave in sorted(slaves)]
    tree.file(f"{_ADMIN}/{name}", "\n".join([*lines, "", ""]), package="dpkg")
    if mode != "auto":
        return
    for label, link, path in (
        (name, best.link, best.path),
        *((slave, *best.slaves[slave]) for slave in sorted(best.slaves)),
    ):
        if tree.find(path.strip("/")) is not None:
            tree.symlink(f"etc/alternatives/{label}", path, package="dpkg")
            tree.symlink(link.strip("/"), f"/etc/alternatives/{label}", package="dpkg")
