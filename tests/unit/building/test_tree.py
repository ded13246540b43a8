from __future__ import annotations

import pytest

from imagefactory.building.tree import Tree
from imagefactory.errors import InputError


def test_links_are_followed_as_inside_the_image() -> None:
    tree = Tree()
    tree.symlink("lib", "usr/lib")
    tree.symlink("usr/lib/own", "/opt/own")
    tree.symlink("opt/own", "../srv/./real")
    assert tree.real("lib/own/x") == "srv/real/x"
    tree.file("lib/own/x", "found")
    assert tree.text("srv/real/x") == tree.text("usr/lib/own/x") == "found"
    assert tree.entries["srv/real"].mode == 0o755


def test_a_link_is_replaced_rather_than_followed_when_it_is_made_again() -> None:
    tree = Tree()
    for target in ("one", "two"):
        tree.symlink("etc/x", target)
    assert tree.entries["etc/x"].target == "two"


def test_links_in_a_loop_are_refused() -> None:
    tree = Tree()
    tree.symlink("a", "b")
    tree.symlink("b", "a")
    with pytest.raises(InputError, match="/a/x form a loop"):
        tree.find("a/x")


def test_a_text_that_no_package_has_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="/etc/none is in none of the packages"):
        Tree().text("etc/none")


def test_removing_a_folder_removes_what_is_in_it_and_nothing_else() -> None:
    tree = Tree()
    for path in ("var/run/x", "var/run.d/x"):
        tree.file(path, "")
    tree.remove("var/run")
    assert [path for path, _ in tree] == ["var", "var/run.d", "var/run.d/x"]
