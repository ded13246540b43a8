"""What proofs share: verdicts, parts of sources, stand-ins, compilers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagefactory.inbuild import overlay, proofkit

SOURCE = '''\
"""Chooses."""

from __future__ import annotations

import os
from vllm.platforms import current_platform, unused as used

if os.name == "nt":
    import winreg
else:
    FALLBACK = 3

TABLE: dict[str, Missing] = {"a": 1}
FIRST = SECOND = 2


@decorate
def choose(capability: Capability = None) -> Missing:
    return helper(capability) + SECOND


def helper(capability):
    return 1 if current_platform.is_cuda() else FALLBACK


def broken():
    return nowhere


class Kernel(Base, metaclass=Meta):
    size: int = 7

    def can(self):
        return True

    def can_twice(self):
        return self.can()

    def can_twice(self):  # the last counts
        return "twice"
'''


@pytest.fixture
def source(tmp_path: Path) -> proofkit.Source:
    (tmp_path / "choose.py").write_text(SOURCE)
    return proofkit.Source(tmp_path / "choose.py")


def run(folder: Path, body: str, *arguments: str) -> tuple[int, str]:
    """How a proof ends whose ``judge`` has this body: its exit code and what it prints."""
    script = folder / "proof.py"
    lines = "\n    ".join(body.splitlines())
    script.write_text(
        f"import proofkit\n\n\ndef judge(tree):\n    {lines}\n\n\nproofkit.main(judge)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(proofkit.__file__).parent.parent)}
    argv = [sys.executable, "-B", str(script), *(arguments or [str(folder)])]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_codes_are_those_that_the_build_knows() -> None:
    assert (proofkit.RIGHT, proofkit.SYMPTOM, proofkit.INCONCLUSIVE) == (
        overlay.RIGHT,
        overlay.SYMPTOM,
        overlay.INCONCLUSIVE,
    )


def test_symptoms_are_said_once_each_and_none_is_right() -> None:
    assert proofkit.verdict(["a", "b", "a"], right="fine") == (proofkit.SYMPTOM, "a; b")
    assert proofkit.verdict(iter([]), right="fine") == (proofkit.RIGHT, "fine")


@pytest.mark.programs
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("return proofkit.verdict([], 'seen\\n  twice')", 0, "seen twice\n"),
        ("return proofkit.verdict(['it is red'], 'green')", 1, "it is red\n"),
        ("raise proofkit.Inconclusive('no GPU')", 3, "inconclusive: no GPU\n"),
        ("return {}['x']", 3, "inconclusive: KeyError: 'x' (proof.py line 5)\n"),
        ("raise SystemExit(1)", 3, "inconclusive: SystemExit: 1 (proof.py line 5)\n"),
    ],
)
def test_a_proof_ends_with_its_verdict_in_one_line(
    tmp_path: Path, body: str, code: int, said: str
) -> None:
    assert run(tmp_path, body) == (code, said)


@pytest.mark.programs
def test_the_tree_is_named_by_the_command_line_and_left_out_of_what_is_said(tmp_path: Path) -> None:
    body = "return proofkit.verdict([], f'{tree.is_absolute()} {tree}/vllm/a.py')"
    assert run(tmp_path, body, os.path.relpath(tmp_path)) == (0, "True vllm/a.py\n")


@pytest.mark.programs
@pytest.mark.parametrize("arguments", [("/", "/"), ("/nonexistent",)])
def test_without_a_tree_nothing_is_claimed(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, said = run(tmp_path, "return proofkit.verdict([], 'right')", *arguments)
    assert (code, said.startswith("inconclusive: ")) == (3, True)


def test_a_missing_file_is_inconclusive(tmp_path: Path) -> None:
    (tmp_path / "there.py").write_text("x = 1\n")
    assert proofkit.read(tmp_path / "there.py") == "x = 1\n"
    for look in (proofkit.read, proofkit.Source):
        with pytest.raises(proofkit.Inconclusive, match="there is no file"):
            look(tmp_path / "gone.py")


def test_a_source_knows_what_it_defines_and_every_name_that_it_has(
    source: proofkit.Source,
) -> None:
    top = {"TABLE", "FIRST", "SECOND", "choose", "helper", "broken", "Kernel"}
    assert source.definitions.keys() == top
    assert source.names == top | {
        *("annotations", "os", "current_platform", "used", "winreg", "FALLBACK")
    }


def test_definitions_are_found_by_name_and_kind(source: proofkit.Source) -> None:
    assert source.cls("Kernel").name == "Kernel"
    assert source.function("choose").name == "choose"
    assert ast.unparse(source.function("can_twice", of="Kernel").body[0]) == "return 'twice'"
    missing: list[Callable[[], ast.stmt]] = [
        lambda: source.definition("gone"),
        lambda: source.cls("choose"),
        lambda: source.function("Kernel"),
        lambda: source.function("choose", of="Kernel"),
        lambda: source.function("can", of="Gone"),
    ]
    for find in missing:
        with pytest.raises(proofkit.Inconclusive):
            find()


def test_parts_run_with_stand_ins_for_what_the_file_has(source: proofkit.Source) -> None:
    made: list[str] = []

    def stand_in(name: str) -> object:
        made.append(name)
        return 5 if name == "FALLBACK" else proofkit.mocked(name)

    platform = proofkit.mocked("platform")
    platform.is_cuda.return_value = False
    choose = proofkit.bare(source.function("choose"))
    space = source.run(
        ["FIRST", "helper", choose, "broken"], {"current_platform": platform}, stand_in
    )
    assert space["choose"]() == 7
    assert made == ["FALLBACK"]
    with pytest.raises(NameError):  # as upstream: the file has no such name
        space["broken"]()


def test_parts_run_without_stand_ins_unless_they_are_given(source: proofkit.Source) -> None:
    with pytest.raises(NameError):
        source.run(["helper"])["helper"](None)
    with pytest.raises(proofkit.Inconclusive):
        source.run(["gone"])


def test_annotations_are_evaluated_only_where_they_are_asked_for(source: proofkit.Source) -> None:
    assert source.run(["TABLE"])["TABLE"] == {"a": 1}

    def annotated() -> None:
        space = source.run(["TABLE"], annotated=True)
        space["__annotate__"](1)  # Python 3.14 evaluates them when something looks at them

    with pytest.raises(NameError):
        annotated()


def test_running_a_part_again_asks_for_nothing_that_the_space_has(source: proofkit.Source) -> None:
    for value in (1, 2):
        space = source.run(["helper"], {"FALLBACK": value}, proofkit.mocked)
        space["current_platform"].is_cuda.return_value = False
        assert space["helper"](None) == value


def test_a_bare_class_has_no_bases_and_only_the_methods_asked_for(source: proofkit.Source) -> None:
    kernel = source.run([proofkit.bare(source.cls("Kernel"), ["can"])])["Kernel"]
    assert kernel.__mro__ == (kernel, object)
    assert kernel().can() is True
    assert not hasattr(kernel, "can_twice")
    assert not hasattr(kernel, "size")
    assert source.run([proofkit.bare(source.cls("Kernel"))])["Kernel"]
    assert len(source.cls("Kernel").body) == 4  # what is in the file stays


def test_a_bare_function_is_not_decorated(source: proofkit.Source) -> None:
    with pytest.raises(NameError):
        source.run(["choose"])
    assert source.run([proofkit.bare(source.function("choose"))])["choose"]


def test_an_expression_has_the_value_that_its_names_give_it() -> None:
    tree = ast.parse('f"{prefix}.fc"', mode="eval").body
    assert proofkit.evaluate(tree, {"prefix": "mtp"}) == "mtp.fc"
    assert proofkit.names_in([tree]) == {"prefix"}
    with pytest.raises(NameError):
        proofkit.evaluate(tree, {})


def test_modules_can_be_imported_meanwhile_and_are_gone_afterwards() -> None:
    before = sys.modules["ast"]
    with proofkit.modules({"gone.inner": {"value": 1}, "ast": {"value": 2}}):
        from gone.inner import (  # type: ignore[import-not-found]  # noqa: PLC0415 - what is tested
            value,
        )

        assert (value, sys.modules["ast"].value) == (1, 2)
    assert "gone.inner" not in sys.modules
    assert "gone" not in sys.modules
    assert sys.modules["ast"] is before


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """An environment whose only tools are g++ and nvcc."""
    for name in ("g++", "cuda/bin/nvcc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    return {"PATH": str(tmp_path), proofkit.CUDA: str(tmp_path / "cuda")}


def test_what_a_machine_lacks_is_named(tools: dict[str, str]) -> None:
    assert proofkit.missing(["g++", "nvcc", "numpy"], tools) == ""
    assert proofkit.missing(["g++", "cmake"], tools) == "needs cmake"
    for name in ("g++", "cuda/bin/nvcc"):
        Path(tools["PATH"], name).chmod(0o644)
    lacking = f"needs g++ and a CUDA toolchain in {proofkit.CUDA}"
    assert proofkit.missing(["g++", "nvcc"], tools) == lacking
    assert proofkit.missing(["g++", "nvcc"], {**tools, proofkit.CUDA: ""}) == lacking


def test_a_toolchain_is_where_the_variable_says_or_the_proof_is_inconclusive(
    tools: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in tools.items():
        monkeypatch.setenv(name, value)
    assert proofkit.cuda_home() == Path(tools[proofkit.CUDA])
    proofkit.require("nvcc", "g++")
    with pytest.raises(proofkit.Inconclusive, match="needs cmake"):
        proofkit.require("nvcc", "cmake")
    monkeypatch.delenv(proofkit.CUDA)
    with pytest.raises(proofkit.Inconclusive, match="needs a CUDA toolchain"):
        proofkit.cuda_home()


@pytest.mark.programs
def test_a_command_ends_with_its_code_and_all_that_it_wrote(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getcwd()); sys.stderr.write('no'); sys.exit(4)"
    found = proofkit.command([sys.executable, "-c", program], tmp_path)
    assert found == (4, f"{tmp_path}\nno")


@pytest.mark.programs
def test_nvcc_compiles_for_one_target_and_gives_the_ptx(
    tools: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = (
        f"#!{sys.executable}\nimport pathlib, sys\n"
        "kept = sys.argv[sys.argv.index('--keep-dir') + 1]\n"
        "pathlib.Path(kept, 'probe.ptx').write_text(pathlib.Path(sys.argv[-1]).read_text())\n"
        "print(*[a for a in sys.argv if 'gencode' in a or a.startswith('-I')])\n"
        "sys.exit('sm_120f' in sys.argv[-7])\n"
    )
    Path(tools[proofkit.CUDA], "bin/nvcc").write_text(compiler)
    monkeypatch.setenv(proofkit.CUDA, tools[proofkit.CUDA])
    (tmp_path / "probe.cu").write_text("cvt")
    asked = "-I/x -gencode=arch=compute_{0},code=sm_{0}\n"
    assert proofkit.nvcc(tmp_path / "probe.cu", "121a", "-I/x") == (0, asked.format("121a"), "cvt")
    assert proofkit.nvcc(tmp_path / "probe.cu", "120f", "-I/x")[0] == 1


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("warning: odd\nprobe.cu(3): error: no such type\n1 error detected", "no such type"),
        ("ptxas x.ptx, line 9; error   : cvt not supported", "cvt not supported"),
        ("note\nInstruction not supported on sm_121", "Instruction not supported on sm_121"),
        ("\n  first\nsecond", "first"),
        ("", "no message"),
    ],
)
def test_the_first_error_says_what_went_wrong(output: str, line: str) -> None:
    assert proofkit.first_error(output) == line


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A tree whose choice needs names of two files."""
    folder = tmp_path / "vllm"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels/tables.py").write_text(
        "from vllm.platforms import current_platform as here\n\nWIDTH = 3\n"
        "class Base:\n    width = WIDTH\n\n"
        "def table():\n    return ['a', 'b'] if here.is_cuda() else []\n"
    )
    (folder / "kernels/__init__.py").write_text(
        "import functools\nimport vllm.envs as envs\nfrom .tables import Base, table as names\n"
        "from elsewhere import helper, decorate\n\n"
        "@decorate\n@functools.cache\ndef choose():\n    return [n for n in names() if own(n)]\n\n"
        "def own(name):\n    from vllm.kernels.tables import WIDTH\n    return len(name) < WIDTH\n\n"
        "def guess():\n    return 'a' if helper() else 'b'\n\n"
        "def hidden():\n    try:\n        return [n for n in helper.names]\n"
        "    except Exception:\n        return []\n\n"
        "class Wide(Base):\n    twice = envs.FACTOR * Base.width\n"
    )
    return tmp_path


def names_of(package: Path) -> proofkit.Space:
    known = {
        "current_platform": SimpleNamespace(is_cuda=lambda: True),
        "envs": SimpleNamespace(FACTOR=2),
    }
    return proofkit.Source(package / "vllm/kernels/__init__.py").in_tree(package, known)


def test_a_name_is_what_it_is_in_the_tree_whichever_file_defines_it(package: Path) -> None:
    space = names_of(package)
    assert space["choose"]() == ["a", "b"]
    assert space["Wide"].twice == 6
    with pytest.raises(KeyError):
        space["gone"]


@pytest.mark.parametrize("function", ["guess", "hidden"])
def test_what_nobody_knows_decides_nothing(package: Path, function: str) -> None:
    space = names_of(package)
    with pytest.raises(proofkit.Inconclusive, match=r"elsewhere\.helper.*would decide"):
        space[function]()


@pytest.mark.parametrize(
    "decide",
    [
        bool,
        list,
        len,
        lambda one: one == 1,
        lambda one: one < 1,
        lambda one: 1 in one,
        lambda one: one.attribute().other >= 2,
    ],
)
def test_an_unknown_thing_can_be_handed_on_and_never_decides(
    decide: Callable[[object], object],
) -> None:
    unknown = proofkit.Unknown("thing")
    assert {unknown: 1}[unknown] == 1
    assert unknown.same is unknown.same
    with pytest.raises(proofkit.Inconclusive, match=r"thing.* would decide"):
        decide(unknown)


def test_stand_ins_are_made_for_the_names_of_a_pattern_once_each() -> None:
    known = proofkit.Known(r"\w+Kernel", lambda name: [name], envs=1)
    assert known["MarlinKernel"] is known["MarlinKernel"]
    assert ("MarlinKernel" in known, "envs" in known, "Kernels" in known) == (True, True, False)
    fields = proofkit.Fields(flag=False)
    assert not fields.flag
    with pytest.raises(proofkit.Inconclusive, match="other would decide"):
        bool(fields.other)


def test_methods_that_a_method_calls_stay_with_it(tmp_path: Path) -> None:
    text = "class K:\n    LIMIT = 2\n    def can(self):\n        return self.own() < self.LIMIT\n"
    text += "    def own(self):\n        return 1\n    def gone(self):\n        return nothing\n"
    (tmp_path / "k.py").write_text(text)
    source = proofkit.Source(tmp_path / "k.py")
    made = source.run([proofkit.bare(source.cls("K"), ["can"])])["K"]
    assert (made().can(), hasattr(made, "gone")) == (True, False)
