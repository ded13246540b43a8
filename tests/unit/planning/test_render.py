"""Rendering: values cannot inject instructions into templates."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.texts import any_text

from imagefactory.errors import InputError
from imagefactory.planning import render

CONTROLS = "\n\r\x00\x0b\x0c\x1b\x7f\x85\u2028\u2029"


#: Text that is likely to end a value, a word or an instruction where it is written.
HOSTILE = st.text(st.sampled_from("a \t\"'\\$`#;&|<>(){}[]*?!~=%\n\r\u2028"), max_size=8)
#: The same without what `quote` refuses.
HOSTILE_PRINTABLE = st.text(st.sampled_from("a \"'\\$`#;&|<>(){}[]*?!~=%"), max_size=8)


def unquote(text: str) -> str:
    """Parse an ENV or LABEL value as Docker does."""
    if not text.startswith('"'):
        assert not set(text) & set(" \t\n\"'\\$")
        return text
    assert text[0] == text[-1] == '"'
    out, inside = [], iter(text[1:-1])
    for char in inside:
        assert char not in '"$'
        out.append(next(inside) if char == "\\" else char)
    return "".join(out)


@example('a\\b"c$d`e')
@given(
    HOSTILE_PRINTABLE | st.text(alphabet=st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")))
)
def test_a_quoted_value_reads_back_as_itself(value: str) -> None:
    assert unquote(render.quote(value)) == value


@given(any_text(), st.sampled_from(CONTROLS), any_text())
def test_a_value_with_a_control_character_is_rejected(
    before: str, control: str, after: str
) -> None:
    with pytest.raises(InputError) as caught:
        render.quote(before + control + after)
    assert caught.value.problems[0].code == "render-unsafe-value"


@given(HOSTILE | any_text())
def test_a_word_is_one_shell_word_or_rejected(value: str) -> None:
    try:
        text = render.word(value)
    except InputError:
        return
    assert shlex.split(text) == [value]
    assert not set(text) & set("\n\"'\\$ #`")


def test_an_empty_value_is_quoted_and_a_plain_one_is_not() -> None:
    assert render.quote("") == '""'
    assert render.quote("/opt/cuda") == "/opt/cuda"
    assert render.quote("a b") == '"a b"'


WORDS = st.text("ab=/", min_size=1, max_size=render.WIDTH - 6)


@given(st.lists(WORDS, min_size=1, max_size=12), st.booleans())
def test_a_filled_instruction_has_all_of_its_parts_and_no_line_is_too_long(
    parts: list[str], command: bool
) -> None:
    text = render.fill("RUN\n" + "\n".join(f"  {part}" for part in parts) + "\n", command)
    rows = text.removesuffix("\n").split("\n")
    assert max(map(len, rows)) <= render.WIDTH
    assert all(row.endswith(" \\") for row in rows[:-1])
    assert not rows[-1].endswith("\\")
    found = " ".join(row.removesuffix(" \\").strip() for row in rows).split(" ")
    assert found[0] == "RUN"
    assert sorted(found[1:]) == sorted(parts)
    if command:
        assert found[-1] == parts[-1]


def test_a_quoted_value_is_never_broken_however_long_it_is() -> None:
    long = render.quote("two words " * 20)
    assert render.fill(f"LABEL\na={long}\nb=c") == f"LABEL b=c \\\n    a={long}\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("\nRUN {{ value }}", 2, "without a filter"),
        ("RUN {{ missing | word }}", 1, "'missing' is undefined"),
        ("x\n\n{% if %}", 3, "Expected an expression"),
        ("{% for a in value %}", 1, "end of template"),
        ("\n{{ value | nothing }}", 2, "No filter named 'nothing'"),
        ("{% include 'none' %}", 1, "there is no template none"),
        ("{% include '../../etc/passwd' %}", 1, "there is no template ../../etc/passwd"),
        ("{% include 't' %}", 1, "includes itself"),
        ("{% extends 't' %}", 1, "includes itself"),
        ("\n{% for n in range(10 ** 12) %}x{% endfor %}", 2, "longer than 100000"),
        ("{{ (1 / 0) | word }}", 1, "ZeroDivisionError"),
        ("{{ value.nothing() | word }}", 1, "has no attribute 'nothing'"),
        ("{{ " + "(" * 5000, 1, "includes itself, or nests too deeply"),
        (" \n\n", None, "it writes nothing"),
        (b"\xff\xfe", None, "not UTF-8"),
        (b"x" * 1_000_001, None, "larger than 1000000 bytes"),
    ],
)
def test_whatever_is_wrong_in_a_template_is_one_error_with_its_line(
    tmp_path: Path, text: str | bytes, line: int | None, says: str
) -> None:
    path = tmp_path / "t"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        render.render((tmp_path,), "t", {"value": "x"})
    (problem,) = caught.value.problems
    assert says in problem.what
    assert problem.where == (f"{path}:{line}" if line else str(path))
    assert "own t" in problem.fix


def test_lines_of_a_template_that_only_decide_leave_nothing_in_the_text(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(
        "{% if a %}\nA\n  {% for _ in range(2) %}\n B\n  {% endfor %}\n{% endif %}\n"
    )
    assert render.render((tmp_path,), "t", {"a": 1}) == "A\n B\n B\n"


def test_a_template_that_was_changed_is_read_again(tmp_path: Path) -> None:
    own, stock = tmp_path / "own", tmp_path / "stock"
    for folder, text in ((own, ""), (stock, "stock")):
        folder.mkdir()
        (folder / "t").write_text(text)
    (own / "t").unlink()
    assert render.render((own, stock), "t", {}) == "stock"
    (stock / "t").write_text("newer")
    os.utime(stock / "t", (1, 1))
    assert render.render((own, stock), "t", {}) == "newer"
    (own / "t").write_text("own")
    assert render.render((own, stock), "t", {}) == "own"


def test_a_template_that_is_no_file_is_not_passed_over_for_the_stock_one(tmp_path: Path) -> None:
    own, stock = tmp_path / "own", tmp_path / "stock"
    own.mkdir()
    stock.mkdir()
    for name in ("pipe", "folder", "circle"):
        (stock / name).write_text("stock")
    os.mkfifo(own / "pipe")
    (own / "folder").mkdir()
    (own / "circle").symlink_to("circle")
    (own / "dangling").symlink_to("nowhere")
    (stock / "dangling").write_text("stock")
    for name in ("pipe", "folder", "circle", "dangling"):
        assert render.find((own, stock), name) == own / name
        with pytest.raises(InputError, match="cannot be read"):
            render.render((own, stock), name, {})


def test_a_template_of_the_project_is_used_instead_of_the_stock_one(tmp_path: Path) -> None:
    own, stock = tmp_path / "own", tmp_path / "stock"
    for folder, names in ((own, "a"), (stock, "ab")):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"{folder.name} {name}")
    assert render.render((own, stock), "a", {}) == "own a"
    assert render.render((own, stock), "b", {}) == "stock b"
    assert render.find((own, stock), "b") == stock / "b"
