"""The engine that spoils patches: what it changes, and what it leaves alone."""

from __future__ import annotations

import pytest
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
