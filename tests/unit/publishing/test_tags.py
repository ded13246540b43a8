"""The names that images have in a registry."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import all_planned
from support.promoting import labels

from imagefactory.errors import InputError
from imagefactory.matrix.cell import AXES
from imagefactory.planning.cell_plan import LABEL
from imagefactory.publishing import tags
from imagefactory.publishing.tags import Immutable, Record
from imagefactory.system import reference


def test_the_immutable_tag_of_every_cell_is_a_tag_and_says_what_it_is() -> None:
    made = {tags.of_plan(plan): plan for plan in all_planned()}
    assert len(made) == len(all_planned())
    for tag, plan in made.items():
        assert reference.is_tag(tag)
        found = tags.parse(tag)
        assert found is not None
        assert (found.vllm, found.flavor) == (plan.cell.vllm, plan.cell.flavor.name)
        assert plan.build_key.startswith(found.key)
    assert {tags.parse(tag).accelerator for tag in made} == {"cu130", "cpu"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changed", "tag"),
    [
        ({}, "0.33.0-cu130-gb10-20261120-1a2b3c4d"),
        ({"vllm": "0.25.1.dev12+g1234567"}, "0.25.1.dev12_g1234567-cu130-gb10-20261120-1a2b3c4d"),
        ({"pin.cuda": "", "channel": "cpu"}, "0.33.0-cpu-gb10-20261120-1a2b3c4d"),
        ({"pin.cuda": "", "channel": "xpu"}, "0.33.0-xpu-gb10-20261120-1a2b3c4d"),
        ({"flavor": "cpu-arm64"}, "0.33.0-cu130-cpu-arm64-20261120-1a2b3c4d"),
        ({"flavor": "x-cu130-20261120-1a2b3c4d"},
         "0.33.0-cu130-x-cu130-20261120-1a2b3c4d-20261120-1a2b3c4d"),
        ({"pin.transformers": "5.0"}, "0.33.0-cu130-gb10-20261120-1a2b3c4d"),
        ({"vllm": "pull/12/head"}, "pull.12.head-cu130-gb10-20261120-1a2b3c4d"),
    ],
)  # fmt: skip
def test_versions_flavors_and_axes_of_all_kinds_have_a_tag_that_can_be_read(
    changed: dict[str, str], tag: str
) -> None:
    found = tags.of_labels(labels("1a2b3c4d", **changed))
    assert found is not None
    assert str(found) == tag
    assert str(tags.parse(tag)) == tag
    assert tags.parse(tag) == replace(found, vllm=found.vllm.replace("/", "."))


WORD = st.text("abcdefXYZ0123456789._-", min_size=1, max_size=47)


@given(numbers=st.lists(st.integers(0, 999), min_size=1, max_size=5), more=WORD, day=st.dates())
def test_what_is_written_is_read_back(numbers: list[int], more: str, day: date) -> None:
    local = more.replace("-", ".").replace("_", ".")[:9]
    vllm = ".".join(map(str, numbers)) + f"+{local}"
    made = Immutable(vllm=vllm, accelerator="cu130", flavor=f"f{more}", day=day, key="0a1b2c3d")
    if day.year >= 1000:
        assert reference.is_tag(str(made))
        assert tags.parse(str(made)) == made


def test_the_longest_names_still_fit_a_tag() -> None:
    found = tags.of_labels(labels("1a2b3c4d", vllm="1" * 300, flavor="f" * 300, channel="cpu"))
    assert str(found) == f"{'1' * 40}-cu130-{'f' * 48}-20261120-1a2b3c4d"
    assert reference.is_tag(str(found))
    assert reference.is_tag(f"{'t' * 90}.20261122T021700Z.0123456789ab")


@pytest.mark.parametrize(
    "tag",
    ["nightly", "gb10-vllm0.33.0", "0.33.0-cu130-gb10-20261320-1a2b3c4d", "a-b-c-20261120-xyz"],
)
def test_other_tags_are_not_taken_for_immutable_ones(tag: str) -> None:
    assert tags.parse(tag) is None
    assert tags.check_moving(tag) == tag


@pytest.mark.parametrize("missing", ["pin.vllm", "channel", "flavor", "build-key"])
def test_an_image_without_our_labels_has_no_immutable_tag(missing: str) -> None:
    own = labels("1a2b3c4d")
    assert tags.of_labels({**own, tags.CREATED: "yesterday"}) is None
    del own[f"{LABEL}.{missing}"]
    assert tags.of_labels(own) is None


def test_records_are_read_in_the_order_of_their_times() -> None:
    early, late = (
        Record(tag="nightly", at=datetime(2026, 11, day, 2, tzinfo=UTC), digest="0123456789ab")
        for day in (20, 21)
    )
    names = [str(late), "nightly", "nightly.20261399T000000Z.0123456789ab", str(early)]
    names += [f"other.{str(early).partition('.')[2]}"]
    assert tags.records("nightly", names) == [early, late]
    with pytest.raises(InputError):
        tags.check_moving(str(early))


def test_images_that_would_share_an_immutable_tag_are_refused_when_they_are_planned() -> None:
    first = all_planned()[0]
    key = first.build_key[:8].ljust(64, "f")
    other = replace(first, build_key=key, labels={**first.labels, f"{LABEL}.build-key": key})
    tags.check([first, first])
    with pytest.raises(InputError) as caught:
        tags.check([first, other])
    assert caught.value.problems[0].code == "tag-collision"


def test_a_cells_tag_in_the_form_of_an_immutable_one_is_refused() -> None:
    first = all_planned()[0]
    names = ("imagefactory/vllm:0.33.0-cu130-gb10-20261120-1a2b3c4d",)
    with pytest.raises(InputError) as caught:
        tags.check([replace(first, cell=replace(first.cell, tags=names))])
    assert caught.value.problems[0].code == "tag-reserved"


def test_the_axes_of_an_image_are_all_of_its_pins_in_the_usual_order() -> None:
    own = labels("1a2b3c4d", **{"pin.transformers": "5.0", "pin.torch": "2.14.0"})
    found = tags.axes_of(own, "linux/arm64")
    assert found == {
        "flavor": "gb10",
        "platform": "linux/arm64",
        "cuda": "13.0",
        "channel": "cu130",
        "torch": "2.14.0",
        "vllm": "0.33.0",
        "transformers": "5.0",
    }
    assert [*found] == [axis for axis in AXES if axis in found] + ["transformers"]
    ref = tags.axes_of({**own, f"{LABEL}.ref": "main"}, "linux/arm64")
    assert ref == {**found, "vllm": "main"}
