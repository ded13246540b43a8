"""What a file may be, and what is said of one that is something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from imagefactory.verifying.outside import judging, want
from imagefactory.verifying.outside.tree import Entry, Layer
from imagefactory.verifying.outside.want import Want, Wants

SHA, OTHER_SHA = "ab" * 32, "cd" * 32
ENTRY = Entry(kind="file", mode=0o644, owner="0:0", size=1, sha256=SHA, link="", attributes="")
#: Another value of each field of a file, what is said of it if the file is of the base, and if it
#: is of a wheel. Nothing has another size and the same hash, and only a link has a target.
OTHERS: Mapping[str, tuple[object, str, str]] = {
    "kind": ("folder", "is a folder, not a file", "is a folder, not a file"),
    "mode": (0o755, "mode is 755, not 644", "has the mode 755, not 644 or 600"),
    "owner": ("1:0", "owner is 1:0, not 0:0", "belongs to 1:0"),
    "size": (2, "", ""),
    "sha256": (OTHER_SHA, "has other content", f"has other content (sha256 {OTHER_SHA[:12]})"),
    "link": ("x", "link is x, not none", ""),
    "attributes": ("a=1", "attributes is a=1, not none", "has the attributes a=1"),
}
OF_BASE = Want(origin="the base", entry=ENTRY)
OF_WHEEL = Want(origin="wheel a", hashes=frozenset({SHA}), size=1, modes=(0o644, 0o600))


def said(entry: Entry, *wants: Want, text: bytes | None = None) -> list[str]:
    return want.differences(entry, wants, text)


def test_every_field_of_a_file_is_compared() -> None:
    assert list(OTHERS) == [one.name for one in fields(Entry)]
    assert said(ENTRY, OF_BASE) == said(ENTRY, OF_WHEEL) == []
    for name, (value, base, wheel) in OTHERS.items():
        changed: dict[str, Any] = {name: value}
        other = replace(ENTRY, **changed)
        assert (name, said(other, OF_BASE)) == (name, [base] if base else [])
        assert (name, said(other, OF_WHEEL)) == (name, [wheel] if wheel else [])


def test_everything_that_differs_is_said_with_the_sizes() -> None:
    other = replace(ENTRY, size=2, sha256=OTHER_SHA, mode=0o755, owner="1:0")
    longer = "has other content: 2 bytes, not 1"
    assert said(other, OF_BASE) == [longer, "mode is 755, not 644", "owner is 1:0, not 0:0"]
    assert said(other, OF_WHEEL) == [longer, "has the mode 755, not 644 or 600", "belongs to 1:0"]
    assert said(replace(other, size=1), OF_BASE)[0] == "has other content"
    unknown = replace(OF_WHEEL, size=None)
    assert said(other, unknown)[0] == f"has other content (sha256 {OTHER_SHA[:12]})"


def test_a_link_is_judged_by_its_targets_and_has_no_mode() -> None:
    wanted = Want(origin="o", kind="link", links=("a", "b"))
    link = replace(ENTRY, kind="link", link="b", mode=0o777, sha256="")
    assert said(link, wanted) == []
    assert said(replace(link, link="c"), wanted) == ["is a link to c, not to a or b"]
    assert said(replace(link, owner="1:0"), wanted) == ["belongs to 1:0"]


def test_a_text_is_judged_by_what_it_says() -> None:
    wanted = Want(origin="o", reading=lambda text: "" if text == b"good" else "says no")
    assert said(ENTRY, wanted, text=b"good") == []
    assert said(ENTRY, wanted, text=b"bad") == ["says no"]
    assert said(ENTRY, wanted) == ["is too large to be read"]


def test_a_file_with_several_sources_is_compared_with_the_likest() -> None:
    other = replace(ENTRY, mode=0o755, owner="1:0")
    assert said(other, OF_BASE, OF_WHEEL, replace(OF_BASE, entry=other)) == []
    assert said(replace(other, owner="0:0"), Want(origin="o", kind="link"), OF_BASE) == [
        "is a file, not a link"
    ]
    assert said(ENTRY) == []


def test_a_layer_above_replaces_what_was_wanted_and_folders_above_a_file_may_be_there() -> None:
    wants = Wants(absent={"a/b/c": "is left out"})
    wants.add("a/b/c", OF_BASE)
    wants.add("a/b/c", OF_WHEEL)
    assert wants.paths == {"a/b/c": [OF_BASE, OF_WHEEL]}
    assert (wants.folders, list(wants.absent)) == ({"a", "a/b"}, ["a/b/c"])
    wants.replace("a/b/c", OF_WHEEL)
    assert (wants.paths, wants.absent) == ({"a/b/c": [OF_WHEEL]}, {})
    wants.allow("x/y")
    assert wants.folders == {"a", "a/b", "x", "x/y"}


FOLDER = Entry(kind="folder", mode=0o755, owner="0:0", size=0, sha256="", link="", attributes="")
MEMBER = replace(OF_WHEEL, member="a/file", wheel="w")


def judged(changes: Mapping[str, Entry | None], *, confirms: bool = False) -> list[str]:
    wants = Wants(absent={"a/gone": "is left out"}, together={"t": ["t/1", "t/2"]})
    for path in ("a/file", "t/1", "t/2"):
        wants.add(path, MEMBER)
    wants.add("a/built", OF_WHEEL)
    wants.add("a/maybe", replace(OF_WHEEL, required=False))
    tree = {"a": FOLDER, "a/file": ENTRY, "a/built": ENTRY, "t": FOLDER, "t/1": ENTRY, "t/2": ENTRY}
    left = {path: one for path, one in {**tree, **changes}.items() if one}
    found = judging.judge(
        Layer(entries=left),
        wants,
        lambda want, _: confirms and want is MEMBER,
    )
    return [f"{one.path} {one.what}" for part in found for one in part]


CONTENT = replace(ENTRY, sha256=OTHER_SHA)
DIFFERS = f"has other content (sha256 {OTHER_SHA[:12]})"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"a/maybe": ENTRY}, []),
        ({"a/file": None}, ["a/file is missing"]),
        ({"a/file": CONTENT}, [f"a/file {DIFFERS}"]),
        ({"t/1": None}, ["t/1 is missing"]),
        ({"t/1": None, "t/2": None}, []),
        ({"a/evil": ENTRY}, ["a/evil is explained by nothing"]),
        ({"a/gone": ENTRY}, ["a/gone is left out"]),
        ({"x": FOLDER, "x/y": ENTRY}, ["x is explained by nothing with 2 entries"]),
        ({"a": replace(FOLDER, mode=0o777)}, ["a has the mode 777 and belongs to 0:0"]),
        ({"a": replace(FOLDER, owner="1:0")}, ["a has the mode 755 and belongs to 1:0"]),
        ({"a": replace(FOLDER, attributes="x")}, ["a has the mode 755 and belongs to 0:0"]),
        ({"a": replace(ENTRY, kind="link")}, ["a is a link, not a folder"]),
        (
            {"a/usercustomize.py": ENTRY},
            ["a/usercustomize.py is explained by nothing, and runs whenever Python starts"],
        ),
    ],
)
def test_a_file_that_is_not_wanted_or_missing_is_said(
    changes: Mapping[str, Entry | None], said: list[str]
) -> None:
    assert judged(changes) == said


@pytest.mark.parametrize(
    ("path", "entry", "said"),
    [
        ("a/file", CONTENT, []),
        ("a/built", CONTENT, [f"a/built {DIFFERS}"]),  # of no wheel that could be asked
        ("a/file", replace(ENTRY, owner="1:0"), ["a/file belongs to 1:0"]),
        ("a/file", replace(CONTENT, owner="1:0"), [f"a/file {DIFFERS}, belongs to 1:0"]),
    ],
)
def test_a_wheel_is_believed_about_the_content_of_its_own_files_only(
    path: str, entry: Entry, said: list[str]
) -> None:
    assert judged({path: entry}, confirms=True) == said
