"""A row for each rule: what breaks it, and the only problem with its line that is reported then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.matrices import changed, problems
from support.project import project_matrix

from imagefactory.matrix.cell import AXES, Cell
from imagefactory.matrix.explain import explain
from imagefactory.matrix.pins import pin_conflicts

Pairs = tuple[tuple[str, str], ...]
SUITE = "    suite: trixie\n"
SUMMARY = "    summary: DGX Spark\n"
OVERRIDES = "overrides:\n"
CHANNEL, CUDA = "  channel: [cu130]\n", '  cuda: ["13.0"]\n'
INCLUDED = '{flavor: gb10, platform: linux/amd64, python: "3.13", cuda: "13.0", channel: cu130,'
TOOLS = 'toolchains:\n  tools: {requirements: ["x==1"], platforms: [linux/arm64]}\nflavors:\n'
REF = "git+https://host.example/r@v1"


def build(text: str) -> Pairs:
    return (("flavors:\n", TOOLS), (SUMMARY, f"{SUMMARY}    build:\n      tools: tools\n{text}"))


COMPILED = "      binaries: compiled\n      extensions: [_C]\n"
ARCHS = ("env: {A: b}", "env: {TORCH_CUDA_ARCH_LIST: '12.1a'}\n    toolchain: tools")

#: What is changed, the code of the problem, and text of its line.
RULES: list[tuple[Pairs, str, str]] = [
    (((SUITE, ""),), "bad-base", "trixie:"),
    (((SUITE, f"{SUITE}    image: debian:13\n"),), "bad-base", "image: debian:13"),
    ((("[python3]", "[python3, vim=1]"),), "bad-package", "packages:"),
    ((("base: trixie", "base: other"),), "unknown-base", "base: other"),
    (((SUMMARY, f"{SUMMARY}    toolchain: x\n"),), "unknown-toolchain", "toolchain: x"),
    (
        (
            ("flavors:\n", TOOLS),
            (SUMMARY, f"{SUMMARY}    build: {{binaries: official, tools: x}}\n"),
        ),
        "unknown-toolchain",
        "tools: x}",
    ),
    (build("      binaries: official\n      extensions: [_C]\n"), "build-idle", "extensions"),
    (build(f"      binaries: official\n      sources: {{A: {REF}}}\n"), "build-idle", "sources"),
    ((*build("      binaries: compiled\n"), ARCHS), "build-lacks", "    build:"),
    ((*build(COMPILED), ("A: b", "TORCH_CUDA_ARCH_LIST: x")), "build-lacks", "    build:"),
    (
        (*build(COMPILED), ("    env:", "    toolchain: tools\n    env:")),
        "build-lacks",
        "    build:",
    ),
    ((*build(f"{COMPILED}      sources:\n        A: x y\n"), ARCHS), "bad-origin", "A: x y"),
    ((('driver: "580.95"', 'driver: "x"'),), "bad-driver", 'driver: "x"'),
    ((("vllm/one", "vllm"),), "bad-patch", "patches"),
    ((("vllm/one", "vllm/One"),), "bad-patch", "patches"),
    ((('"torch=={torch}"]', '"torch=={torch}", "=1"]'),), "bad-requirement", "=1"),
    ((('"torch=={torch}"]', '"torch=={torch}", "x @ https://h/x.whl"]'),), "no-hash", "x.whl"),
    (
        (
            ("flavors:\n", "indexes:\n  own: {url: 'https://h.example/simple'}\nflavors:\n"),
            (SUMMARY, f"{SUMMARY}    indexes:\n      other: own\n"),
        ),
        "idle-index",
        "other: own",
    ),
    (
        (
            ("flavors:\n", "indexes:\n  own: {url: 'https://h.example/simple'}\nflavors:\n"),
            (SUMMARY, f"{SUMMARY}    indexes:\n      vllm: own\n      torch: '{{nope}}'\n"),
        ),
        "unknown-index unknown-placeholder",
        "torch: '{nope}'",
    ),
    (
        (
            ("flavors:\n", TOOLS.replace('["x==1"]', '["x==1",\n    "=1"\n    ]')),
            (SUMMARY, f"{SUMMARY}    toolchain: tools\n"),
        ),
        "bad-requirement",
        '    "=1"',
    ),
    (
        (
            ('["2.11.0", "2.14.0"]', '["2.11.0"]'),
            ('when: {vllm: "0.33.0"}', "when: {flavor: gb10}"),
        ),
        "uneven-zip",
        "- vllm:",
    ),
    (((OVERRIDES, f"{OVERRIDES}  - {{reason: r}}\n"),), "bad-override", "- {reason"),
    (
        ((OVERRIDES, f"{OVERRIDES}  - {{reason: r, drop: x, requirement: y}}\n"),),
        "bad-override",
        "- {reason",
    ),
    (
        ((OVERRIDES, f"{OVERRIDES}  - {{reason: r, driver: x}}\n"),),
        "bad-driver idle-override",
        "driver: x",
    ),
    (
        ((OVERRIDES, f"{OVERRIDES}  - {{reason: r, drop: x y}}\n"),),
        "bad-override bad-requirement",
        "drop: x y",
    ),
    (((OVERRIDES, f'{OVERRIDES}  - {{reason: r, drop: "x>1"}}\n'),), "bad-override", "drop:"),
    ((('when: {vllm: "0.33.0"}', 'when: {vllm: "9"}'),), "dead-override", "requirement: "),
    (
        ((OVERRIDES, f"{OVERRIDES}  - {{reason: r, driver: '1'}}\n"),),
        "idle-override",
        "driver: '1'",
    ),
    ((('python: "3.13", cuda', 'python: "3.12", cuda'),), "python-of-base", "linux/amd64"),
    ((("linux/amd64", "linux/s390x"),), "unknown-platform", "linux/s390x"),
    ((('cuda: "13.0", channel: cu130', 'cuda: "13.0", channel: cu13'),), "bad-channel", "cu13,"),
    ((('cuda: "13.0", channel: cu130', 'cuda: "13.0", channel: cpu'),), "cuda-on-cpu", "cpu,"),
    ((('cuda: "13.0", channel', 'cuda: "12.9", channel'),), "cuda-major unknown-toolkit", '"12.9"'),
    ((('cuda: "13.0", channel', 'cuda: "13", channel'),), "bad-version", '"13",'),
    ((('cuda: "13.0", channel', 'cuda: "13.99", channel'),), "unknown-toolkit", "13.99"),
    ((('vllm: "0.23.0"', 'vllm: "0.23.0.post"'),), "bad-version", "0.23.0.post"),
]


@pytest.mark.parametrize(
    ("pairs", "code", "line"), RULES, ids=[f"{n}-{r[1]}" for n, r in enumerate(RULES)]
)
def test_a_rule_that_is_broken_is_one_problem_at_its_line(
    tmp_path: Path, pairs: Pairs, code: str, line: str
) -> None:
    path = changed(tmp_path, *pairs)
    lines = path.read_text().splitlines()
    found = {
        (one.code, lines[int(str(one.where).rpartition(":")[2]) - 1]) for one in problems(path)
    }
    assert sorted(one for one, _ in found) == [f"matrix-{one}" for one in code.split()]
    assert all(line in text for _, text in found)
    assert all(one.fix for one in problems(path))


FINE: list[Pairs] = [
    ((('"torch=={torch}"]', f'"torch=={{torch}}", "x @ https://h/x.whl#sha256={"0" * 64}"]'),)),
    (("vllm/one", "vllm/one.2-x"),),
    (("[python3]", "[python3, g++, libc6-dev.x]"),),
    build("      binaries: official\n"),
    (*build(COMPILED), ARCHS),
    (*build(f"{COMPILED}      sources: {{A: {REF}, B: ./here}}\n"), ARCHS),
    ((OVERRIDES, f"{OVERRIDES}  - {{reason: r, drop: x.y_z-1}}\n"),),
    ((SUITE, "    image: debian:13\n"),),
]


@pytest.mark.parametrize("pairs", FINE)
def test_what_breaks_no_rule_is_accepted(tmp_path: Path, pairs: Pairs) -> None:
    assert problems(changed(tmp_path, *pairs)) == []


#: Markers of upstream's requirements, and whether they hold for a cell on arm64 with Python 3.13.
MARKERS = {
    "platform_machine == 'aarch64'": True,
    "platform_machine == 'x86_64'": False,
    "sys_platform == 'linux'": True,
    "platform_system == 'Linux'": True,
    "os_name == 'posix'": True,
    "python_version == '3.13'": True,
    "python_full_version == '3.13.0'": True,
    "implementation_name == 'cpython'": True,
    "extra == 'bench'": False,
}


def gb10() -> Cell:
    return next(cell for cell in project_matrix().cells if cell.python == "3.13")


@pytest.mark.parametrize(("marker", "holds"), MARKERS.items())
def test_a_pin_is_compared_with_what_upstream_requires_on_the_target(
    marker: str, holds: bool
) -> None:
    cell = gb10()
    lines = [f"torch==1.0; {marker}", "Torch>1; sys_platform == 'win32'", "other==1"]
    found = list(pin_conflicts(cell, {"vllm": lines}))
    assert [one.code for one in found] == ["matrix-pin-conflict"] * holds
    for one in found:
        assert one.where == str(cell.locations["torch"])
        assert one.what.endswith(f"requires torch==1.0, and {cell.axes['torch']} is pinned")
        assert one.fix == 'add an override for torch with a reason, or write "1.0"'


def test_a_pin_that_fits_or_is_overridden_is_no_conflict() -> None:
    cell = gb10()
    version = cell.axes["torch"]
    assert list(pin_conflicts(cell, {"vllm": [f"torch=={version}", "torch>1", "torch"]})) == []
    (found,) = pin_conflicts(cell, {"vllm": ["torch<1"]})
    assert found.fix == "add an override for torch with a reason"
    cells = [one for one in project_matrix().cells if one.overrides]
    for one in cells:
        name = one.overrides[0].package
        plain = replace(one, overrides=())
        lines = {"vllm": [f"{name}==0.0.1"]}
        assert list(pin_conflicts(one, lines)) == []
        pinned = any(text.startswith(f"{name}==") for text in one.requirements)
        assert bool(list(pin_conflicts(plain, lines))) == pinned


#: What stands in one line as it is shown.
DECLARED = {"base", "package", "patch", "env", "toolchain", "driver", *AXES}


def test_whatever_a_cell_declares_is_explained_with_the_line_that_has_it() -> None:
    seen = set()
    for cell in project_matrix().cells:
        for what, value, where, _ in explain(cell):
            path, _, line = where.rpartition(":")
            if what in DECLARED:
                name = value.partition("=" if what == "env" else " ")[0]
                assert name in Path(path).read_text().splitlines()[int(line) - 1], (what, value)
                seen.add(what)
    assert seen == DECLARED
