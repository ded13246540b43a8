"""What is said of keys and values that a matrix cannot have: the cure fits the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.matrices import changed, problems, write

REQUIREMENT, WHEN = '  - requirement: "numpy==2.3"\n', '    when: {vllm: "0.33.0"}\n'
OF_OVERRIDES = "driver, drop, reason, requirement, when"
MAPPING = "write `key: value` lines below it"


@pytest.mark.parametrize(
    ("old", "new", "what", "fix"),
    [
        # `to` is a key elsewhere, in `follow` and `hold`
        (WHEN, f'    to: "2.3"\n{WHEN}', "there is no key 'overrides.0.to'", OF_OVERRIDES),
        (REQUIREMENT, "  - requirements: numpy\n", "'overrides.0.requirements'", "'requirement'"),
        ('    driver: "580.95"', '    drivers: "580.95"', "'flavors.gb10.drivers'", "'driver'"),
        ("suite: trixie", "suit: trixie", "'bases.trixie.suit'", "write 'suite'"),
        (
            f"{REQUIREMENT}{WHEN}    reason: a reason\n",
            "  - numpy==2.3\n",
            "'overrides.0' has to be a mapping (it is 'numpy==2.3')",
            f"{MAPPING}; the keys are {OF_OVERRIDES}",
        ),
        ("env: {A: b}", "env: [A=b]", "'flavors.gb10.env' has to be a mapping", MAPPING),
        (
            "[vllm/one]",
            "vllm/one",
            "'flavors.gb10.patches' has to be a list (it is",
            "write [a, b]",
        ),
        ("reason: a reason", 'reason: ""', "has to be a text that is not empty", "write a text"),
        ("version: 1", "version: 2", "'version': Input should be 1 (it is '2')", "of that kind"),
        ("exclude: []", "indexes: {x: {}}", "'indexes.x.url' is missing", "add 'url'"),
    ],
)
def test_the_cure_names_what_may_be_written_there(
    tmp_path: Path, old: str, new: str, what: str, fix: str
) -> None:
    found = problems(write(tmp_path, old, new))
    assert [one for one in found if what in one.what and fix in one.fix], found


def test_what_may_have_any_key_is_not_said_to_have_some(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, "env: {A: b}", "env: [A=b]"))
    assert found.fix == MAPPING


@pytest.mark.parametrize(
    ("image", "what"),
    [
        ("nvidia/cuda:13@sha256:abcd", "has a malformed digest"),
        ("Nvidia/CUDA:13", "has uppercase letters"),
        ("http://host/cuda", "begins with http://"),
    ],
)
def test_an_image_that_no_registry_can_have_is_refused_where_it_is_written(
    tmp_path: Path, image: str, what: str
) -> None:
    path = write(tmp_path, "suite: trixie", f"image: {image}")
    (found,) = problems(path)
    assert (found.code, found.where) == ("matrix-bad-image", f"{path}:7")
    assert what in found.what


def test_a_requirement_that_the_value_of_an_axis_makes_invalid_is_reported(tmp_path: Path) -> None:
    changes = [
        ('"torch=={torch}"', '"torch=={torch}+{channel}"'),
        ('"2.11.0", "2.14', '"2.11.0+cu130", "2.14'),
    ]
    (found,) = problems(changed(tmp_path, *changes))
    assert found.code == "matrix-bad-requirement"
    assert "'torch==2.11.0+cu130+cu130' is not a valid requirement" in found.what
    assert "torch '2.11.0+cu130'" in found.fix


def test_what_is_wrong_with_a_requirement_is_said_once(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, '"torch=={torch}"', '"torch=>{torch}"'))
    assert found.code == "matrix-bad-requirement"
