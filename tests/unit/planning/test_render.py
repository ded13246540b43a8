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


def unquote(text: str) -> str:
    """Parse a double-quoted ENV or LABEL value as Docker does."""
    assert text[0] == text[-1] == '"'
    out, inside = [], iter(text[1:-1])
    for char in inside:
        assert char not in '"$'
        out.append(next(inside) if char == "\\" else char)
    return "".join(out)


@given(st.text(alphabet=st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))))
def test_a_quoted_value_reads_back_as_itself(value: str) -> None:
    assert unquote(render.quote(value)) == value


@given(st.text(), st.sampled_from(CONTROLS), st.text())
def test_a_value_with_a_control_character_is_rejected(
    before: str, control: str, after: str
) -> None:
    with pytest.raises(InputError) as caught:
        render.quote(before + control + after)
    assert caught.value.problems[0].code == "render-unsafe-value"


@given(st.text())
def test_a_word_is_one_shell_word_or_rejected(value: str) -> None:
    try:
        text = render.word(value)
    except InputError:
        return
    assert shlex.split(text) == [value]
    assert not set(text) & set("\n\"'\\$ #`")


@given(st.lists(st.text(min_size=1)))
def test_a_command_reads_back_as_its_arguments_or_is_rejected(argv: list[str]) -> None:
    try:
        text = render.safe_command(argv)
    except InputError:
        return
    assert shlex.split(text) == argv
    assert not set(text) & set("\n\\$")


def test_a_template_that_uses_a_value_without_a_filter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("RUN {{ value }}")
    with pytest.raises(TypeError, match="without a filter"):
        render.render(tmp_path, "t", {"value": "x"})


def test_a_template_that_uses_an_unknown_value_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("RUN {{ missing | word }}")
    with pytest.raises(jinja2.UndefinedError):
        render.render(tmp_path, "t", {})
