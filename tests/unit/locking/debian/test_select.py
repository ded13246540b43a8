"""The packages of a base: what is essential, what was asked for, and what those depend on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.debian import BASIC, package, text
from support.image_layers import status

from imagefactory.errors import FactoryError
from imagefactory.locking.debian import select
from imagefactory.locking.debian.archive import Index
from imagefactory.locking.debian.packages import Relation, Universe, installed

ALWAYS = ["apt", "base-files", "ca-certificates"]


def universe(*rows: Mapping[str, str], security: tuple[Mapping[str, str], ...] = ()) -> Universe:
    return Universe(
        [
            Index(archive="debian", text=text(*BASIC, *rows)),
            Index(archive="debian-security", text=text(*security)),
        ]
    )


def base(*rows: Mapping[str, str], wanted: str = "tool") -> list[str]:
    """The names of the packages of a base with ``wanted``, without those of every base."""
    found = select.base(universe(*rows), wanted.split(), where="trixie")
    return [package.name for package in found if package.name not in ALWAYS]


def problems(*rows: Mapping[str, str], wanted: str = "tool") -> list[str]:
    with pytest.raises(FactoryError) as caught:
        base(*rows, wanted=wanted)
    return [f"{problem.code}: {problem.what}" for problem in caught.value.problems]


def test_a_base_has_the_essential_and_required_packages_apt_and_certificates() -> None:
    found = select.base(
        universe(package("mawk", priority="required"), package("vim")), [], where="trixie"
    )
    assert [package.name for package in found] == sorted([*ALWAYS, "mawk"])


def test_dependencies_are_followed_but_recommendations_are_not() -> None:
    rows = (
        package("tool", depends="one, two (>= 1:2)", recommends="more", suggests="more"),
        package("one", pre_depends="three"),
        package("two", "1:2-1"),
        package("three", depends="tool"),
        package("more"),
    )
    assert base(*rows) == ["one", "three", "tool", "two"]


def test_the_highest_version_of_all_parts_of_the_suite_is_taken_with_its_archive() -> None:
    many = universe(
        package("tool", "1.9-1"),
        package("tool", "1.10-1"),
        security=(package("tool", "1.10-1+deb13u1"), package("apt", "0.9")),
    )
    found = {one.name: one for one in select.base(many, ["tool"], where="trixie")}
    assert found["tool"].deb.version == "1.10-1+deb13u1"
    assert found["tool"].deb.archive == "debian-security"
    assert found["apt"].deb.archive == "debian"


def test_an_alternative_that_is_selected_already_is_preferred_to_an_earlier_one() -> None:
    rows = (package("tool", depends="first | second"), package("first"), package("second"))
    assert base(*rows) == ["first", "tool"]
    assert base(*rows, wanted="tool second") == ["second", "tool"]


def test_an_alternative_whose_version_does_not_fit_is_not_taken() -> None:
    rows = (package("tool", depends="first (>= 2) | second"), package("first"), package("second"))
    assert base(*rows) == ["second", "tool"]


def test_a_virtual_package_is_provided_by_the_most_important_provider() -> None:
    rows = (
        package("tool", depends="virtual"),
        package("a", provides="virtual"),
        package("b", provides="other, virtual (= 3)", priority="important"),
    )
    assert base(*rows) == ["b", "tool"]
    assert base(*rows, wanted="tool a") == ["a", "tool"]


def test_only_a_versioned_provides_satisfies_a_version() -> None:
    tool = package("tool", depends="virtual (>= 3)")
    unversioned = package("a", provides="virtual")
    assert base(tool, unversioned, package("b", provides="virtual (= 3)")) == ["b", "tool"]
    assert problems(tool, unversioned, package("b", provides="virtual (= 2)")) == [
        "debian-unsatisfied: tool 1 needs virtual (>= 3), which the suite does not have"
    ]


@pytest.mark.parametrize(
    ("operator", "fits"),
    [
        ("<<", ["1~rc"]),
        ("<=", ["1~rc", "1"]),
        ("=", ["1"]),
        (">=", ["1", "1+b1"]),
        (">>", ["1+b1"]),
    ],
)
def test_versions_are_ordered_as_debian_does(operator: str, fits: list[str]) -> None:
    relation = Relation(name="a", operator=operator, version="1")
    assert [version for version in ("1~rc", "1", "1+b1") if relation.allows(version)] == fits


def test_qualified_names_are_those_of_the_same_architecture() -> None:
    assert base(package("tool", depends="python3-core:any"), package("python3-core")) == [
        "python3-core",
        "tool",
    ]


def test_the_package_that_converts_installed_systems_is_never_selected() -> None:
    rows = (
        package("tool", depends="usrmerge | usr-is-merged"),
        package("usrmerge"),
        package("usr-is-merged"),
    )
    assert base(*rows) == ["tool", "usr-is-merged"]


def test_unknown_packages_are_all_reported_by_name() -> None:
    assert problems(wanted="tool other") == [
        "debian-no-package: the suite has no package tool",
        "debian-no-package: the suite has no package other",
    ]


@pytest.mark.parametrize("field", ["conflicts", "breaks"])
def test_packages_that_exclude_each_other_are_reported_by_name(field: str) -> None:
    rows = (package("tool", depends="other"), package("other", "2", **{field: "tool (<< 2)"}))
    assert problems(*rows) == ["debian-conflict: other 2 cannot be installed with tool 1"]
    newer = (package("tool", "2", depends="other"), rows[1])
    assert base(*newer) == ["other", "tool"]


def test_a_package_may_exclude_the_other_providers_of_what_it_provides() -> None:
    row = package("tool", provides="virtual", conflicts="virtual")
    assert base(row) == ["tool"]
    assert problems(row, package("other", provides="virtual"), wanted="tool other") == [
        "debian-conflict: tool 1 cannot be installed with other 1"
    ]


def test_the_builder_has_only_what_the_base_lacks() -> None:
    many = universe(package("venv-files"), package("tool", depends="python3"))
    selected = select.base(many, ["tool"], where="trixie")
    more = select.more(many, selected, select.BUILDER, where="trixie")
    assert [one.name for one in more] == ["git", "python3-venv"]


def added(*rows: Mapping[str, str], present: str, wanted: str = "tool") -> list[str]:
    """The names and versions of the packages that are added to an image."""
    found = select.added(universe(*rows), installed(present), wanted.split(), where="cuda")
    return [f"{package.name} {package.deb.version}" for package in found]


def test_only_what_an_image_lacks_is_added() -> None:
    rows = (package("tool", depends="one, two"), package("one"), package("two"))
    assert added(*rows, present=status("one")) == ["tool 1", "two 1"]
    assert added(*rows, present=status("one", "two", "tool")) == []


def test_a_package_of_the_image_is_upgraded_only_if_something_needs_the_newer_one() -> None:
    rows = (package("tool", depends="lib (>= 2)"), package("lib", "2"), package("other", "2"))
    assert added(*rows, present=status("lib", "other")) == ["lib 2", "tool 1"]
    assert added(package("tool", depends="lib"), rows[1], present=status("lib")) == ["tool 1"]


def test_what_needs_exactly_the_old_version_is_upgraded_with_it() -> None:
    exact = status("lib").replace("Version: 1", "Version: 1\nDepends: apt, data (= 1)")
    rows = (
        package("tool", depends="data (= 2)"),
        package("data", "2"),
        package("lib", "2", depends="data (= 2)"),
    )
    assert added(*rows, present=exact + status("data", "apt")) == ["data 2", "lib 2", "tool 1"]
    for others in ([package("lib", depends="apt, data (= 1)")], []):  # the same lib, or none
        with pytest.raises(FactoryError) as caught:
            added(*rows[:2], *others, present=exact + status("data", "apt"))
        (problem,) = caught.value.problems
        assert (problem.code, problem.where) == ("debian-unsatisfied", "cuda")
        assert "lib 1 needs data (= 1)" in problem.what


def test_packages_that_an_image_only_remembers_are_not_there() -> None:
    removed = status("tool").replace("install ok installed", "deinstall ok config-files")
    held = status("tool").replace("install ok installed", "hold ok installed")
    assert added(package("tool"), present=removed) == ["tool 1"]
    assert added(package("tool"), present=held) == []


def test_a_package_that_excludes_one_of_the_image_is_rejected() -> None:
    bad = status("one").replace("Version: 1", "Version: 1\nConflicts: two") + status("two")
    assert added(package("tool"), present=bad) == ["tool 1"]  # not our concern
    with pytest.raises(FactoryError) as caught:
        added(package("tool", conflicts="one"), present=status("one"))
    assert caught.value.problems[0].code == "debian-conflict"


def test_a_name_that_the_suite_of_an_image_lacks_is_reported() -> None:
    with pytest.raises(FactoryError) as caught:
        added(present=status("one"))
    assert caught.value.problems[0].code == "debian-no-package"
