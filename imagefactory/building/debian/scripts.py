"""Which maintainer scripts were reviewed, and what they do on a first installation. Pure.

No script is run. Each is compared with ``reviewed.toml``, which says what it does to a new system;
that is then done by :mod:`imagefactory.building.debian.actions`. A script that nobody has reviewed
is refused.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from imagefactory.building.debian.package import Package
from imagefactory.errors import InputError, Problem

#: The scripts that dpkg runs when it installs a package for the first time. A `config` script only
#: asks questions, and there is nobody to ask.
INSTALLING = ("preinst", "postinst")
#: What debhelper adds to scripts and a new image does not need: removal of old configuration files
#: (on upgrades only), services and temporary files (there is no init system), menus, byte code.
_IGNORED = frozenset(
    {
        *("dh_installdeb", "dh_installsystemd", "dh_installinit", "dh_installmenu"),
        *("dh_installtmpfiles", "dh_installalternatives", "dh_python3", "dh_icons"),
        "dh_installsystemduser",
    }
)
_SECTION = re.compile(
    r"# Automatically added by (\w+)/\S+\n(.*?)# End automatically added section\n", re.DOTALL
)
_TRIPLET = re.compile(r"\b(x86_64|aarch64)-linux-gnu\b")
_ARCH = re.compile(r":(amd64|arm64)\b")
_NOTHING = frozenset({"set -e", "set -eu", "exit 0", ":"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What some versions of a package's scripts do. Several reviews may share a script.

    Attributes:
        hashes: those of the reviewed texts, by the script's name.
        steps: what they do to a new system: the name of an action and its arguments.
        why: why that is all, for a person.
    """

    hashes: Mapping[str, frozenset[str]]
    steps: tuple[tuple[str, ...], ...]
    why: str

    def covers(self, name: str, text: str) -> bool:
        """Whether this is about the script ``name`` with this text."""
        return identity(text) in self.hashes[name]


#: The reviews of packages by name.
Table = Mapping[str, tuple[Review, ...]]


@cache
def table() -> Table:
    """The reviews that come with imagefactory."""
    file = resources.files(__package__).joinpath("reviewed.toml")
    return read(file.read_text(encoding="utf-8"))


def read(text: str) -> Table:
    """The reviews in the text of a table. Raises ValueError or KeyError if it is malformed."""
    return {
        name: tuple(
            Review(
                hashes={script: frozenset(row.get(script, ())) for script in INSTALLING},
                steps=tuple(tuple(step) for step in row.get("do", ())),
                why=row["why"],
            )
            for row in rows
        )
        for name, rows in tomllib.loads(text).items()
    }


def acting(package: Package) -> dict[str, str]:
    """The texts of the scripts that do something on a first installation, by name."""
    found = {name: package.script(name) for name in INSTALLING}
    return {name: text for name, text in found.items() if text and not does_nothing(text)}


def steps(package: Package, reviews: Table) -> tuple[tuple[str, ...], ...]:
    """What is done instead of the package's scripts, which ``check`` has accepted."""
    scripts = acting(package).items()
    return tuple(
        step
        for review in reviews.get(package.name, ())
        if any(review.covers(name, text) for name, text in scripts)
        for step in review.steps
    )


def normalized(script: str) -> str:
    """A script's text without what differs from build to build and without debhelper's sections."""

    def kept(section: re.Match[str]) -> str:
        return "" if section[1] in _IGNORED and _is_known(section[1], section[2]) else section[0]

    text = _SECTION.sub(kept, script + "\n")
    text = _ARCH.sub(":{arch}", _TRIPLET.sub("{triplet}", text))
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())


def _is_known(tool: str, section: str) -> bool:
    """Whether a section of debhelper does what sections of its tool always do."""
    lines = [line for line in section.splitlines() if line.strip()]
    return tool != "dh_installdeb" or all(
        line.startswith("dpkg-maintscript-helper ") for line in lines
    )


def identity(script: str) -> str:
    """What a reviewed script is recognized by."""
    return hashlib.sha256(normalized(script).encode(errors="surrogateescape")).hexdigest()[:16]


def does_nothing(script: str) -> bool:
    """Whether a script has no commands of its own."""
    lines = (line.strip() for line in normalized(script).splitlines())
    return all(line.startswith("#") or line in _NOTHING for line in lines)


def check(packages: Iterable[Package], reviews: Table) -> None:
    """Raise InputError naming every script that was not reviewed, with its text as detail."""
    problems = [
        _problem(package, name, text)
        for package in packages
        for name, text in acting(package).items()
        if not any(review.covers(name, text) for review in reviews.get(package.name, ()))
    ]
    if problems:
        raise InputError(problems)


def _problem(package: Package, name: str, text: str) -> Problem:
    return Problem(
        code="deb-script",
        what=f"the {name} script of {package.name} {package.fields['Version']} was not reviewed, "
        "and scripts are not run",
        where=str(package.file),
        fix="leave the package out, use a base image from a registry, or read the script and add "
        f"what it does to reviewed.toml, as {name} {identity(text)}",
        detail=normalized(text),
    )
