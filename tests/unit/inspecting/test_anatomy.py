"""What an image contains, and how two images differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.inspecting.anatomy import (
    Anatomy,
    Change,
    Layer,
    biggest,
    compare,
    copies,
    layers_of,
)

PIN = "io.imagefactory.pin."
OLD = Anatomy(
    ref="a",
    digest="sha256:1",
    platform="linux/arm64",
    labels={f"{PIN}vllm": "0.22.1", f"{PIN}cuda": "13.0"},
    env={"A": "1"},
    layers=(
        Layer(digest="l1", purpose="base", size=10),
        Layer(digest="l2", purpose="vLLM", size=20),
    ),
    packages={"vllm": "0.22.1", "numpy": "2.0", "gone": "1"},
    patches={"vllm/one": "needed"},
)


def test_an_image_does_not_differ_from_itself() -> None:
    found = compare(OLD, OLD, pin_prefix=PIN)
    assert found.changes == ()
    assert (found.bytes_moved, len(found.shared)) == (0, 2)


def test_the_biggest_wheels_are_found_by_the_hashes_in_the_image() -> None:
    image = replace(OLD, hashes={"vllm": "arm", "numpy": "np", "gone": "unknown"})
    found = biggest(image, {"arm": 300, "amd": 900, "np": 5}, 2)
    assert found == [("vllm", "0.22.1", 300), ("numpy", "2.0", 5)]


def test_every_kind_of_change_is_reported_with_both_values() -> None:
    new = replace(
        OLD,
        labels={f"{PIN}vllm": "0.33.0", f"{PIN}cuda": "13.0"},
        env={"A": "1", "B": "2"},
        layers=(OLD.layers[0], Layer(digest="l3", purpose="vLLM", size=30)),
        packages={"vllm": "0.33.0", "numpy": "2.0", "fresh": "2"},
        patches={"vllm/one": "obsolete"},
    )
    found = compare(OLD, new, pin_prefix=PIN)
    assert found.changes == (
        Change(kind="pin", name="vllm", old="0.22.1", new="0.33.0"),
        Change(kind="package", name="fresh", old="", new="2"),
        Change(kind="package", name="gone", old="1", new=""),
        Change(kind="package", name="vllm", old="0.22.1", new="0.33.0"),
        Change(kind="patch", name="vllm/one", old="needed", new="obsolete"),
        Change(kind="setting", name="B", old="", new="2"),
    )
    assert [layer.digest for layer in found.shared] == ["l1"]
    assert found.bytes_moved == 30
    assert found.as_dict()["bytes_moved"] == 30


MANIFEST = {
    "toolchain": {"nvcc": "13"},
    "layers": [{"group": "torch"}, {"group": "cuda-torch"}, {"group": "vllm"}],
}


def test_a_layer_is_named_by_its_step_and_a_copied_layer_by_its_position() -> None:
    made = ("compilers", "torch", "cuda-torch", "vllm", "torch, where it had been replaced")
    history = [
        ("", 5),
        ("RUN apt-get update", 6),
        *((f"imagefactory: {name}", n) for n, name in enumerate(made)),
        *(("COPY /layer/ / # buildkit", n) for n in (5, 6)),
    ]
    found = layers_of([str(n) for n in range(9)], history, copies(MANIFEST))
    assert [layer.purpose for layer in found] == [
        "base",
        "distribution packages",
        "compilers",
        "torch",
        "small wheels of CUDA and torch",
        "vLLM and FlashInfer",
        "torch, where it had been replaced",
        "patches",
        "manifest and entrypoint",
    ]
    assert [layer.size for layer in found] == [5, 6, 0, 1, 2, 3, 4, 5, 6]


def test_what_a_base_of_packages_copies_is_no_layer_of_the_cell() -> None:
    history = [("Debian bookworm: 153 packages", 5), ("COPY /venv/ / # buildkit", 1)]
    history += [("COPY /layer/ / # buildkit", 2)]
    found = layers_of(("a", "b", "c"), history, ["torch"])
    assert [layer.purpose for layer in found] == ["base", "Python environment", "torch"]


def test_layers_that_do_not_match_the_history_have_no_purpose() -> None:
    assert [layer.purpose for layer in layers_of(("a", "b"), [("COPY x", 5)])] == ["", ""]
    assert [
        layer.purpose
        for layer in layers_of(("a", "b"), [("RUN x", 5), ("COPY x", 5)], ["one", "two"])
    ] == [
        "base",
        "",
    ]
    assert copies({}) == []


packages = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["1", "2"]))


@given(packages, packages)
def test_applying_the_changes_to_one_image_gives_the_other(
    old: dict[str, str], new: dict[str, str]
) -> None:
    found = compare(replace(OLD, packages=old), replace(OLD, packages=new), pin_prefix=PIN)
    made = dict(old)
    for change in found.changes:
        made.pop(change.name, None)
        if change.new:
            made[change.name] = change.new
    assert made == new


@pytest.mark.parametrize(
    "history", [[("FROM", 0), ("COPY", 0)], [("squashed", 30)]], ids=["not unpacked", "squashed"]
)
def test_sizes_that_the_engine_does_not_know_are_unknown_and_not_0(
    history: list[tuple[str, int]],
) -> None:
    found = replace(OLD, layers=layers_of(["l1", "l3"], history))
    assert [layer.size for layer in found.layers] == [None, None]
    assert found.size is None
    assert found.as_dict()["size"] is None
    assert compare(OLD, found, pin_prefix=PIN).bytes_moved is None


def test_contents_that_cannot_be_read_are_null_and_not_empty() -> None:
    found = replace(OLD, packages={}, patches={}, unknown="no manifest").as_dict()
    assert {found[name] for name in ("packages", "patches", "hashes", "dropped")} == {None}
    assert OLD.as_dict()["packages"] == OLD.packages
