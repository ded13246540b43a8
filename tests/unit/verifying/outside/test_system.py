"""What the image says about itself: every statement is compared with the plan and the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.whole_images import BASE_CONFIG, PATH, WholeImage, names

from imagefactory.inbuild import overlay
from imagefactory.verifying.outside import configured, system
from imagefactory.verifying.outside.patched import Patched
from imagefactory.verifying.outside.tree import Entry, Layer

SHA = "ab" * 32
FILE = Entry("file", 0o644, "0:0", 1, SHA, "", "")
TREE = Layer(entries={"site/x.py": FILE, "site/link": replace(FILE, kind="link")})
PATCHED = Patched(files={}, patches={"a/b": (("x.py", "gone.py"), ("x.py",))}, faults=())
STEP = {"name": "a/b", "diff": "x.diff"}
ROW: Mapping[str, Any] = {
    "name": "a/b",
    "state": "needed",
    "detail": "",
    "offsets": [],
    "files": {"x.py": SHA, "gone.py": ""},
    "created": ["x.py"],
}
NOTHING: Mapping[str, Any] = {"files": {}, "created": []}


def fault(row: object, step: Mapping[str, Any] = STEP, patched: Patched = PATCHED) -> str:
    return system._patch_fault(row, step, patched, "site/", TREE)


def test_every_field_of_a_patch_in_the_manifest_is_judged() -> None:
    assert fault(ROW) == ""
    shape = "has a patch without the fields of one"
    assert fault([]) == fault({**ROW, "more": ""}) == shape
    for name in ROW:
        assert fault({k: v for k, v in ROW.items() if k != name}) == shape
        assert fault({**ROW, name: None}) == shape
    assert set(ROW) == {*system._PATCH}
    others = {
        "name": ("c/d", "has the patch c/d, planned is a/b"),
        "state": ("obsolete", "says obsolete of a/b, which is not what was planned"),
        "detail": ("x" * 20_001, "has a text of 20001 characters about a/b"),
        "offsets": ([1], ""),  # is only shown
        "files": ({"x.py": SHA}, "has other hashes for the files of a/b"),
        "created": ([], "says needed of a/b, which is not what was planned"),
    }
    assert set(others) == set(ROW)
    for name, (value, said) in others.items():
        assert fault({**ROW, name: value}) == said
    assert fault({**ROW, "detail": "x" * 20_000}) == ""
    assert "hashes" in fault({**ROW, "files": {"x.py": "other", "gone.py": ""}})


UNPROVEN = {overlay.UNPROVEN: True}


@pytest.mark.parametrize(
    ("step", "right"),
    [
        ({}, {"needed", "unknown"}),
        (UNPROVEN, {"unproven"}),
        ({"exempt": "why"}, {"n/a"}),
        ({"exempt": "why", **UNPROVEN}, {"n/a"}),
        ({"compiled": True}, {overlay.COMPILED}),
        ({"compiled": True, **UNPROVEN}, {"unproven"}),
        ({"in_wheel": True}, {"in the wheel"}),
        ({"in_wheel": True, **UNPROVEN}, {"unproven"}),
    ],
)
def test_a_patch_has_the_states_that_its_step_allows(
    step: Mapping[str, Any], right: set[str]
) -> None:
    states = {"needed", "unknown", "obsolete", "unproven", "n/a", overlay.COMPILED, "in the wheel"}
    row = {**ROW, "detail": step.get("exempt", "")}
    assert {one for one in states if not fault({**row, "state": one}, {**STEP, **step})} == right
    if "exempt" in step:
        assert fault({**row, "state": "n/a", "detail": "other"}, {**STEP, **step})


@pytest.mark.parametrize(
    ("step", "right"),
    [
        ({}, {"obsolete"}),
        (UNPROVEN, set()),
        ({"diff": None}, {"obsolete", "unknown"}),
        ({"diff": None, **UNPROVEN}, set()),
    ],
)
def test_a_patch_that_touched_nothing_was_not_needed(
    step: Mapping[str, Any], right: set[str]
) -> None:
    none = Patched(files={}, patches={}, faults=())
    states = ("needed", "unknown", "obsolete", "unproven", "n/a")
    rows = {one: {**ROW, **NOTHING, "state": one} for one in states}
    assert {one for one, row in rows.items() if not fault(row, {**STEP, **step}, none)} == right


LEFT_OUT: Mapping[str, Any] = {"layer": "top", "rule": "r", "why": "w", "files": [["a.pyc", 7]]}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([LEFT_OUT], ""),
        ([LEFT_OUT, {**LEFT_OUT, "files": [["link", 0]]}], ""),  # a copy that became a link
        ([], "does not list site/a.pyc"),
        ([{**LEFT_OUT, "layer": "other"}], "has a row of no layer"),
        ([{**LEFT_OUT, "more": 1}], "has a row of no layer"),
        ([{k: v for k, v in LEFT_OUT.items() if k != "why"}], "has a row of no layer"),
        ([{**LEFT_OUT, "files": [["x.py", 7]]}], "lists x.py, which is in the image"),
        ([{**LEFT_OUT, "files": [["a.pyc", -1]]}], "has a wrong size for a.pyc"),
        ([{**LEFT_OUT, "files": [["a.pyc", "7"]]}], "has a wrong size for a.pyc"),
    ],
)
def test_the_list_of_what_was_left_out_is_complete_and_true(rows: list[Any], said: str) -> None:
    assert system._dropped_fault(rows, ["top"], [["site/a.pyc"], []], "site/", TREE) == said


def test_every_statement_of_the_manifest_is_compared_with_the_plan(image: WholeImage) -> None:
    manifest = json.loads(image.data("opt/imagefactory/manifest.json"))
    dropped = json.loads(image.data("opt/imagefactory/dropped.json"))

    def said(found: Mapping[str, Any], rows: object = dropped) -> str:
        series = json.loads(image.plan.files["patches/series.json"])
        tree = Layer(entries={})
        return system._manifest_fault(found, image.plan, PATCHED, rows, series, "site/", tree)

    ours = [name for name in manifest if name != "patches"]
    assert {"cell", "wheels", "layers", "dropped"} < set(ours)
    for name in ours:
        differs = f"says something else about {name} than the plan"
        assert said({**manifest, name: "other"}) == differs
        if manifest[name] is not None:
            assert said({k: v for k, v in manifest.items() if k != name}) == differs
    assert said({**manifest, "evil": 1}) == "says something else about evil than the plan"
    assert said(manifest, []) == "says something else about dropped than the plan"
    others: tuple[object, ...] = ([], None, manifest["patches"] * 2)
    for patches in others:
        assert said({**manifest, "patches": patches}) == "has other patches than the plan"
    assert said({**manifest, "patches": [3]}) == "has a patch without the fields of one"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", set()),
        (b"{", set()),
        (b"[]", set()),
        (b"{}", set()),
        (b'{"patches": [3, {"name": "a"}]}', set()),
        (
            b'{"patches": [{"name": "a", "state": "needed"}, {"name": "b", "state": "obsolete"}]}',
            {"b"},
        ),
    ],
)
def test_the_manifest_says_which_patches_were_obsolete(text: bytes, found: set[str]) -> None:
    tree = Layer(entries={}, texts={"opt/imagefactory/manifest.json": text})
    assert system.obsolete(tree) == found


def test_the_scripts_of_an_environment_are_made_as_each_python_makes_them() -> None:
    template = "__VENV_DIR__ __VENV_NAME__ __VENV_PROMPT__ __VENV_BIN_NAME__ __VENV_PYTHON__"
    made = "/opt/venv venv {} bin /opt/venv/bin/python3"
    prompts = ("'(venv) '", "(venv) ", "venv", "venv")
    assert system._scripts(template, "activate") == [made.format(p).encode() for p in prompts]
    quoted = b"'/opt/venv' 'venv' '(venv) ' 'bin' '/opt/venv/bin/python3'"
    assert system._scripts(template, "Activate.ps1")[0] == quoted


def test_a_setting_that_every_build_makes_is_missed(image: WholeImage) -> None:
    for name, value in configured.FIXED.items():
        config = {k: v for k, v in image.config["config"].items() if k != name}
        found = configured.faults({**image.config, "config": config}, image.plan, BASE_CONFIG)
        assert found == [f"{name} is not set, not {value!r}"]


def test_what_means_something_on_windows_only_is_no_fault(image: WholeImage) -> None:
    image.config["config"]["ArgsEscaped"] = True


BENDING = (
    *("LD_PRELOAD", "PYTHONPATH", "BASH_ENV", "ENV", "GCONV_PATH", "GLIBC_TUNABLES"),
    *("VLLM_PLUGINS", "IMAGEFACTORY_DRY_RUN"),
)


def test_every_variable_that_bends_a_program_is_named(
    image: WholeImage,
) -> None:
    image.config["config"]["Env"] += [f"{name}=1" for name in BENDING]
    found = configured.faults(image.config, image.plan, BASE_CONFIG)
    assert sorted(found) == [
        f"the variable {name} is '1', and should not be set" for name in sorted(BENDING)
    ]


def test_the_labels_of_the_base_are_expected(
    image: WholeImage,
) -> None:
    base = {"config": {"Env": [PATH], "Labels": {"of": "the base"}}}
    missing = "the label of is not set, not 'the base'"
    assert missing in configured.faults(image.config, image.plan, base)
    image.config["config"]["Labels"]["of"] = "the base"
    assert configured.faults(image.config, image.plan, base) == []
    assert "the label of" in names(configured.faults(image.config, image.plan, {}))
    ours = next(iter(image.plan.labels))
    del image.config["config"]["Labels"][ours]
    assert f"the label {ours} is not set" in names(
        configured.faults(image.config, image.plan, base)
    )
