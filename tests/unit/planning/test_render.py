"""Rendering: values cannot inject instructions into templates."""

from __future__ import annotations

import shlex
from pathlib import Path

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(
    HOSTILE_PRINTABLE | st.text(alphabet=st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")))
)
def test_a_quoted_value_reads_back_as_itself(value: str) -> None:
    assert unquote(render.quote(value)) == value


@given(st.text(), st.sampled_from(CONTROLS), st.text())
def test_a_value_with_a_control_character_is_rejected(
    before: str, control: str, after: str
) -> None:
    with pytest.raises(InputError) as caught:
        render.quote(before + control + after)
    assert caught.value.problems[0].code == "render-unsafe-value"


@given(HOSTILE | st.text())
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


def test_a_template_that_uses_a_value_without_a_filter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("RUN {{ value }}")
    with pytest.raises(TypeError, match="without a filter"):
        render.render((tmp_path,), "t", {"value": "x"})


def test_a_template_that_uses_an_unknown_value_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("RUN {{ missing | word }}")
    with pytest.raises(jinja2.UndefinedError):
        render.render((tmp_path,), "t", {})


def test_a_template_of_the_project_is_used_instead_of_the_stock_one(tmp_path: Path) -> None:
    own, stock = tmp_path / "own", tmp_path / "stock"
    for folder, names in ((own, "a"), (stock, "ab")):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"{folder.name} {name}")
    assert render.render((own, stock), "a", {}) == "own a"
    assert render.render((own, stock), "b", {}) == "stock b"
    assert render.find((own, stock), "b") == stock / "b"
