"""The engines that spoil patches and the factory's code: what they change, and what they do not."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from support import code_changes
from support.mutation import edits

BEFORE = "def choose(gpu):\n    return table[gpu]\n"
AFTER = '''\
def choose(gpu):
    """Chooses."""
    # GB10
    if gpu.startswith("12.1") and gpu != "x":
        raise ValueError("never 12")
    found = list(table[gpu])
    return sorted(found * 3)
'''


def changes(before: str, after: str, file: str = "a.py") -> list[str]:
    return [edit.change for edit in edits(file, before, after)]


@pytest.mark.parametrize(
    "change",
    [
        "4: gpu.startswith(\"12.1\") -> ('12.1' in gpu)",
        "4: gpu.startswith(\"12.1\") and gpu != \"x\" -> (gpu.startswith('12.1') or gpu != 'x')",
        '4: gpu.startswith("12.1") and gpu != "x" -> not (gpu.startswith("12.1") and gpu != "x")',
        "4: gpu != \"x\" -> (gpu) == ('x')",
        "4: \"12.1\" -> '12.1x'",
        "6: list(table[gpu]) -> (table[gpu])",
        "7: found * 3 -> ((found) / (3))",
        "7: found * 3 -> (found * 3 * 1.08)",
        "7: 3 -> 4",
        "7: return sorted(found * 3) -> return None",
        '5: raise ValueError("never 12") -> pass',
    ],
)
def test_python_is_changed_where_it_decides(change: str) -> None:
    assert f"a.py:{change}" in changes(BEFORE, AFTER)


def test_another_question_is_asked_of_a_gpu_and_never_the_same_in_brackets() -> None:
    found = changes("", "is_it = gpu.is_device_capability(120)\n")
    assert "a.py:1: gpu.is_device_capability(120) -> (gpu.has_device_capability(120))" in found
    assert not [change for change in found if change.endswith("(gpu.is_device_capability(120))")]


def test_messages_comments_and_lines_that_were_there_are_left_alone() -> None:
    found = changes(BEFORE, AFTER)
    assert not [change for change in found if "never 13" in change or "Chooses" in change]
    assert not [change for change in found if change.startswith(("a.py:1:", "a.py:3:"))]


def test_every_mutant_compiles_and_is_another_text() -> None:
    found = edits("a.py", BEFORE, AFTER)
    assert len({edit.text for edit in found}) == len(found) > 20
    for edit in found:
        compile(edit.text, "a.py", "exec")
        assert edit.text not in (BEFORE, AFTER)


def test_a_hunk_among_several_is_dropped_whole() -> None:
    after = BEFORE.replace("def", "import os\n\n\ndef").replace("table[gpu]", "os.sep")
    dropped = [edit.text for edit in edits("a.py", BEFORE, after) if "hunk" in edit.change]
    assert BEFORE.replace("table[gpu]", "os.sep") in dropped


def test_cmake_is_changed_line_by_line() -> None:
    found = changes("end()\n", '  set(ARCHS "8.0;12.0f")\nend()\n', "a.cmake")
    assert "a.cmake:1: 8.0;12.0f -> 12.0f" in found
    assert "a.cmake:1: f -> a" in found
    after = 'set(A "8.0")\nend()\nset(B "9.0")\n'
    assert "a.cmake:3: the hunk is dropped" in changes("end()\n", after, "a.cmake")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("path.read_text('utf-8', errors='replace')", ["'replace' -> 'replace_'"]),
        ("data.decode('latin-1')", []),
        ("data.encode('ascii')", []),
        ("read(name='ascii-art')", ["'ascii-art' -> 'ascii-art_'"]),
        ("T = TypeVar('T', 'A', 'B')", []),
        ("found = cast('Made', row['made'])", ["'made' -> 'made_'"]),
        ("Rows = dict[str, Callable[[Cell, int], Row]]", []),
        ("row = ROWS['a', 'b']", ["without 'a'", "without 'b'", "'a' -> 'a_'", "'b' -> 'b_'"]),
        ("mkdtemp(prefix='imagefactory-port-')", []),
        ("read(prefix='patch')", ["'patch' -> 'patch_'"]),
        ("zip(a, b, strict=True)", []),
        ("if TYPE_CHECKING:\n    from a import b", []),
    ],
)
def test_a_change_without_a_consequence_is_none(
    code: str, expected: list[str], tmp_path: Path
) -> None:
    module = tmp_path / "module.py"
    module.write_text(code)
    found = list(code_changes.changes(module))
    assert [one.text for one in found if not one.text.startswith(f"without {code[:4]}")] == expected
    assert all(code_changes.changed(module, one.number) != code for one in found)


@pytest.mark.parametrize("name", sorted(code_changes._ENCODINGS))
def test_python_reads_the_names_of_these_encodings_alike_with_an_underscore(name: str) -> None:
    assert codecs.lookup(f"{name}_").name == codecs.lookup(name).name
