"""What is printed: data as it is, one JSON document, and nothing that a terminal would obey."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.terminal import Terminal
from support.texts import any_text

from imagefactory.errors import CheckFailedError, Problem
from imagefactory.system import text, ui

PROBLEM = Problem(
    code="matrix-cuda-major",
    where="matrix.yaml:100:",
    what="[bold]no[/bold] :rocket: \x1b[2J\u202e",
    fix="write [cu130]",
    detail="line\nother",
)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output and standard error as a terminal of 80 columns."""
    file = Terminal()
    monkeypatch.setattr(ui, "out", file.console())
    monkeypatch.setattr(ui, "err", file.console())
    return file


def test_an_error_is_shown_as_it_is_with_its_place_its_code_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ui.failure(CheckFailedError([PROBLEM, PROBLEM]))
    said = capsys.readouterr().err.splitlines()
    assert said[:4] == [
        r"error: matrix.yaml:100:: [bold]no[/bold] :rocket: \x1b[2J\u202e [matrix-cuda-major]",
        "  line",
        "  other",
        "  fix: write [cu130]",
    ]
    assert said[-1] == "2 errors"


def test_an_error_that_quotes_a_book_is_one_line_with_an_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    book = Problem(code="x", what=f"there is no key {'k' * 100_000!r}")
    ui.failure(CheckFailedError(book))
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: there is no key 'kkk")
    assert "…" in said
    assert len(said) < ui.LONGEST + 100


def test_on_a_terminal_an_error_is_wrapped_between_words_and_what_to_do_is_not(
    terminal: Terminal,
) -> None:
    what = "toolkit 13.0 beside torch channel cu128"
    fix = "imagefactory build --matrix --select " + "x" * 60
    where = "/tmp/project/matrix.yaml:65"
    ui.failure(CheckFailedError(Problem(code="matrix-cuda-major", what=what, where=where, fix=fix)))
    assert terminal.lines == [
        f"error: {where}: toolkit 13.0 beside torch channel cu128",
        "[matrix-cuda-major]",
        f"  fix: {fix}",
    ]


def test_lines_and_warnings_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (ui.say, ui.warn, ui.command):
        show("a[red]b[/red] :100: \x1b]0;title\x07")
    ui.line(ui.styled("[x]", "red"), " [dim] :100:")
    captured = capsys.readouterr()
    assert captured.err.count(r"a[red]b[/red] :100: \x1b]0;title\x07") == 3
    assert captured.out == "[x] [dim] :100:\n"


def test_a_table_on_a_terminal_fits_it_and_has_colours_but_no_boxes(terminal: Terminal) -> None:
    ui.table("checks", ["check", ""], [["x" * 90, ui.styled("pass", "green")]])
    assert "\x1b[32mpass" in terminal.getvalue()
    assert max(map(len, terminal.lines)) <= 80
    assert "".join(terminal.lines).isascii()


def test_a_table_in_a_pipe_is_plain_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    ui.table("", ["check", "seen"], [["probe", "a" * 300], ["x", ui.styled("[b]", "green")]])
    assert capsys.readouterr().out.splitlines() == [
        "check  seen",
        "probe  " + "a" * 300,
        "x      [b]",
    ]


def finished(
    capsys: pytest.CaptureFixture[str], *results: object, failed: bool, wanted: bool = True
) -> object:
    for result in results:
        ui.emit_json(result)
    ui.finish(CheckFailedError(PROBLEM) if failed else None, 1 if failed else 0, wanted=wanted)
    out = capsys.readouterr().out
    return json.loads(out) if out else None


def test_a_result_is_written_when_the_command_has_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ui.emit_json({"a": 1})
    assert capsys.readouterr().out == ""
    ui.finish()
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    ui.finish()
    assert capsys.readouterr().out == ""


def test_errors_are_one_document_with_the_result_or_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    errors = {"errors": [PROBLEM.as_dict()], "exit_code": 1}
    assert finished(capsys, failed=True) == errors
    assert finished(capsys, {"digest": "d"}, failed=True) == {"digest": "d", **errors}
    assert finished(capsys, [{"cell": "a"}], failed=True) == [{"cell": "a"}]
    assert finished(capsys, [], failed=True) == []
    assert finished(capsys, failed=True, wanted=False) is None


def test_a_second_result_would_be_a_second_document(capsys: pytest.CaptureFixture[str]) -> None:
    ui.emit_json([])
    with pytest.raises(ValueError, match="one result"):
        ui.emit_json([])
    ui.finish()
    assert json.loads(capsys.readouterr().out) == []


def test_json_is_ascii_and_so_the_same_bytes_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    ui.emit_json({"é": "\x1b[2J\u202e\udc80 漢"})
    ui.finish()
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"é": "\x1b[2J\u202e\udc80 漢"}


@given(any_text())
def test_text_is_safe_to_print_and_unchanged_if_it_was(value: str) -> None:
    made = text.safe(value)
    assert all(char.isprintable() or char in "\n\t" for char in made)
    made.encode()
    if all(char.isprintable() or char in "\n\t" for char in value):
        assert made == value


@given(any_text(), st.integers(1, 30))
def test_shortened_text_keeps_its_begin_and_its_end(value: str, length: int) -> None:
    made = text.shorten(value, length)
    if len(value) <= length:
        assert made == value
    else:
        begin, _, end = made.partition("…")
        assert len(made) <= length
        assert "…" in made
        assert value.startswith(begin)
        assert value.endswith(end.rpartition("…")[2])
