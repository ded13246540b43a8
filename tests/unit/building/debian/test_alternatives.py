from __future__ import annotations

import pytest

from imagefactory.building.debian import alternatives
from imagefactory.building.tree import Tree

SCRIPT = """\
case "$1" in configure)
    update-alternatives --quiet --install /usr/bin/awk awk /usr/bin/mawk 5 \\
        --slave /usr/share/man/man1/awk.1.gz awk.1.gz /usr/share/man/man1/mawk.1.gz \\
        --slave /usr/bin/nawk nawk /usr/bin/mawk
    update-alternatives --install /usr/bin/cc cc /usr/bin/gcc 20 \\
        #--slave /usr/share/man/man1/cc.1.gz cc.1.gz /usr/share/man/man1/gcc.1.gz
    update-alternatives --install /usr/share/man/b.7.gz b.7.gz /usr/share/man/bash-b.7.gz 10 || true
    update-alternatives --remove rename /usr/bin/prename
esac
"""
ADMIN = "var/lib/dpkg/alternatives"


def installed(*scripts: str) -> Tree:
    tree = Tree()
    for path in ("usr/bin/mawk", "usr/bin/gawk", "usr/bin/gcc"):
        tree.file(path, "")
    alternatives.install(tree, [each for script in scripts for each in alternatives.parse(script)])
    return tree


def links(tree: Tree) -> dict[str, str]:
    return {path: entry.target for path, entry in tree if entry.target}


def test_links_are_made_where_their_files_exist() -> None:
    assert links(installed(SCRIPT)) == {
        "etc/alternatives/awk": "/usr/bin/mawk",
        "etc/alternatives/cc": "/usr/bin/gcc",
        "etc/alternatives/nawk": "/usr/bin/mawk",
        "usr/bin/awk": "/etc/alternatives/awk",
        "usr/bin/cc": "/etc/alternatives/cc",
        "usr/bin/nawk": "/etc/alternatives/nawk",
    }


def test_what_is_recorded_is_what_update_alternatives_records() -> None:
    tree = installed(SCRIPT)
    assert [path for path, _ in tree.below(f"{ADMIN}/")] == [f"{ADMIN}/awk", f"{ADMIN}/cc"]
    assert tree.text(f"{ADMIN}/cc") == "auto\n/usr/bin/cc\n\n/usr/bin/gcc\n20\n\n"
    assert tree.text(f"{ADMIN}/awk").splitlines() == [
        *("auto", "/usr/bin/awk", "awk.1.gz", "/usr/share/man/man1/awk.1.gz"),
        *("nawk", "/usr/bin/nawk", "", "/usr/bin/mawk", "5"),
        *("/usr/share/man/man1/mawk.1.gz", "/usr/bin/mawk", ""),
    ]


def test_the_highest_priority_wins() -> None:
    more = "update-alternatives --install /usr/bin/awk awk /usr/bin/gawk 10"
    tree = installed(SCRIPT, more)
    assert links(tree)["etc/alternatives/awk"] == "/usr/bin/gawk"
    assert "usr/bin/nawk" not in tree
    assert tree.text(f"{ADMIN}/awk").splitlines()[7:] == [
        *("/usr/bin/gawk", "10", "", ""),
        *("/usr/bin/mawk", "5", "/usr/share/man/man1/mawk.1.gz", "/usr/bin/mawk", ""),
    ]


@pytest.mark.parametrize(
    "call",
    [
        "update-alternatives --install /usr/bin/x x /usr/bin/y",
        "update-alternatives --install /usr/bin/x x /usr/bin/y 10 --verbose",
        "update-alternatives --install /usr/bin/x x /usr/bin/y high",
        "update-alternatives --install /usr/bin/$name $name /usr/bin/y 10",
    ],
)
def test_a_call_that_is_not_understood_is_refused(call: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(alternatives.parse(call))
