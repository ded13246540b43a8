"""Users, groups, shells and PAM's common files, as Debian's tools set them up. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from imagefactory.building.debian.system import System
from imagefactory.building.tree import Kind, Tree
from imagefactory.errors import InputError, fail

_DAY = 86400
_SYSTEM_GROUPS = (100, 1000)
_PAM = ("auth", "account", "password", "session", "session-noninteractive")
_PAM_BLOCKS = {
    'here are the per-package modules (the "Primary" block)': "Primary",
    'and here are more per-package modules (the "Additional" block)': "Additional",
}
_PAM_ENDS = ("here's the fallback if no module succeeds", "end of pam-auth-update config")


def create(system: System) -> None:
    """Create /etc/passwd and /etc/group from base-passwd's lists."""
    for name in ("passwd", "group"):
        system.tree.copy(
            f"usr/share/base-passwd/{name}.master", f"etc/{name}", package="base-passwd"
        )


def shadow(system: System) -> None:
    """Move passwords to /etc/shadow and /etc/gshadow, as ``shadowconfig on`` does."""
    tree = system.tree
    if "etc/shadow" in tree:
        return
    owner = group_id(tree, "shadow")
    users = [line.split(":") for line in tree.text("etc/passwd").splitlines()]
    groups = [line.split(":") for line in tree.text("etc/group").splitlines()]
    day = system.epoch // _DAY
    secret = "".join(f"{user[0]}:{user[1]}:{day}:0:99999:7:::\n" for user in users)
    group_secret = "".join(f"{group[0]}:{group[1]}::{group[3]}\n" for group in groups)
    tree.file("etc/shadow", secret, mode=0o640, gid=owner, package="passwd")
    tree.file("etc/gshadow", group_secret, mode=0o640, gid=owner, package="passwd")
    for name, rows in (("passwd", users), ("group", groups)):
        text = "".join(":".join([row[0], "x", *row[2:]]) + "\n" for row in rows)
        tree.file(f"etc/{name}", text, package="base-passwd")


def require_user(system: System, name: str) -> None:
    """Raise InputError unless base-passwd's list has the user that a script would add."""
    if not any(line.startswith(f"{name}:") for line in system.tree.text("etc/passwd").splitlines()):
        raise fail(
            InputError,
            "deb-user",
            f"base-passwd has no user {name}, and no other users are created",
            fix="use a newer suite, or a base image from a registry",
        )


def add_group(system: System, name: str) -> None:
    """Create a system group with the lowest free number, as addgroup does."""
    rows = [line.split(":") for line in system.tree.text("etc/group").splitlines()]
    if name in {row[0] for row in rows}:
        return
    used = {int(row[2]) for row in rows}
    number = next(number for number in range(*_SYSTEM_GROUPS) if number not in used)
    text = system.tree.text("etc/group") + f"{name}:!:{number}:\n"
    system.tree.file("etc/group", text, package="base-passwd")


def group_id(tree: Tree, name: str) -> int:
    """The number of a group. Raises InputError if there is no such group."""
    for line in tree.text("etc/group").splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[2])
    raise fail(InputError, "deb-group", f"base-passwd has no group {name}")


def shells(system: System) -> None:
    """List the login shells of all packages in /etc/shells, as update-shells does."""
    tree = system.tree
    source = "usr/share/debianutils"
    lists = [f"{source}/shells", *(path for path, _ in tree.below(f"{source}/shells.d/"))]
    found: dict[str, None] = {}
    for path in lists:
        for line in tree.text(path).splitlines():
            shell = line.partition("#")[0]
            if shell:
                folder, _, name = shell.rpartition("/")
                found |= {shell: None, f"/{tree.real(folder.strip('/'))}/{name}": None}
    listed = tree.text(f"{source}/shells")
    more = [shell for shell in found if shell not in listed.splitlines()]
    text = listed + "".join(f"{shell}\n" for shell in more)
    tree.file("etc/shells", text, package="debianutils")
    state = "".join(f"{shell}\n" for shell in found)
    tree.file("var/lib/shells.state", state, package="debianutils")


def pam(system: System) -> None:
    """Write /etc/pam.d/common-* from the default profiles, as pam-auth-update does."""
    tree = system.tree
    found = {
        path.rpartition("/")[2]: _profile(entry.read().decode())
        for path, entry in tree.below("usr/share/pam-configs/")
        if entry.kind is Kind.FILE
    }
    names = sorted(found, key=lambda name: (int(found[name]["Priority"]), name), reverse=True)
    enabled = [found[name] | {"": name} for name in names if found[name].get("Default") == "yes"]
    for kind in _PAM:
        template = tree.text(f"usr/share/pam/common-{kind}")
        text = "".join(_common(template, kind, enabled))
        tree.file(f"etc/pam.d/common-{kind}", text, package="libpam-runtime")
        saved = "".join(_saved(kind, enabled))
        tree.file(f"var/lib/pam/{kind}", saved, package="libpam-runtime")
    seen = "".join(f"{name}\n" for name in names)
    tree.file("var/lib/pam/seen", seen, package="libpam-runtime")


def _profile(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if field := re.match(r"(\S+):\s+(.*?)\s*$|(\S+):$", line):
            name = (field[1] or field[3]).removesuffix("-Final")
            fields[name] = field[2] or ""
        elif line.strip():
            fields[name] += "\n" * bool(fields[name]) + line.strip()
    return fields


def _modules(
    kind: str, block: str, enabled: Sequence[Mapping[str, str]]
) -> Iterator[tuple[str, list[str]]]:
    """The profiles with lines in a block, and those lines."""
    interactive = kind != "session-noninteractive"
    field = kind.removesuffix("-noninteractive").capitalize()
    users = [
        profile
        for profile in enabled
        if profile.get(f"{field}-Type") == block
        and (interactive or profile.get("Session-Interactive-Only") != "yes")
    ]
    for number, profile in enumerate(users):
        text = (profile.get(f"{field}-Initial") if number == 0 else None) or profile[field]
        yield profile[""], text.splitlines()


def _common(template: str, kind: str, enabled: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The lines of a common file: the template's, with its two blocks filled."""
    skipping = False
    label = kind.removesuffix("-noninteractive")
    for line in template.splitlines(keepends=True):
        text = line.strip().removeprefix("# ")
        skipping = skipping and not text.startswith(_PAM_ENDS)
        if skipping:
            continue
        yield line
        if text in _PAM_BLOCKS:
            skipping = True
            block = _PAM_BLOCKS[text]
            lines = [each for _, found in _modules(kind, block, enabled) for each in found]
            if block == "Primary" and not lines:
                yield f"{label}\t[default=1]\t\t\tpam_permit.so\n"
            jump = len(lines) - (block == "Additional")
            for number, each in enumerate(lines):
                yield f"{label}\t{_jumping(each, jump - number)}\n"


def _jumping(line: str, count: int) -> str:
    """A module's line with ``end`` as the number of lines to skip."""
    found = re.match(r"((?:\[[^]]+\]|\w+)\s+\S+)\s*(.*)", line)
    if not found:
        raise ValueError(f"not a line of a PAM profile: {line!r}")
    return f"{found[1].replace('end', str(count))} {' '.join(found[2].split())}"


def _saved(kind: str, enabled: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """What pam-auth-update compares with later, to find local changes."""
    primary = list(_modules(kind, "Primary", enabled))
    for name, lines in primary or [("null", ["[default=1]\t\t\tpam_permit.so"])]:
        yield "\n".join([f"Module: {name}", *lines, ""])
    for name, lines in _modules(kind, "Additional", enabled):
        yield "\n".join([f"Module: {name}", *lines, ""])
