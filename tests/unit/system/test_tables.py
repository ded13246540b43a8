"""Tables: as wide as the terminal at most, and a line a row in a pipe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from imagefactory.system import tables
from imagefactory.system.text import Part, styled

NAME = "gb10-vllm0-33-0-torch2-14-0-cu130-fi0-7-2-post1-py313-arm64"
TAG = "imagefactory/vllm:gb10-vllm0.33.0-torch2.14.0-cu130"
COLUMNS = ["cell", "platform", "action", "build key", "why"]
PLAN: list[list[Part]] = [
    [f"{NAME}\n{TAG}", "linux/arm64", styled("build", "yellow"), "798ee7ecd615", f"no image {TAG}"],
    ["cpu-vllm0-32-0", "linux/amd64", styled("skip", "green"), "ae74f707a4f5", "unchanged"],
]


def lines(columns: list[str], rows: list[list[Part]], width: int | None) -> list[str]:
    return [line.plain for line in tables.layout(columns, rows, width=width)]


def test_a_table_that_fits_has_its_values_in_columns() -> None:
    assert lines(["check", "", "took"], [["probe", styled("pass", "green"), "6.3 s"]], 80) == [
        "check        took",
        "probe  pass  6.3 s",
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_name_tag_or_key_is_broken(width: int) -> None:
    shown = lines(COLUMNS, PLAN, width)
    assert max(map(cell_len, shown)) <= width
    words = {word for line in shown for word in line.split()}
    assert {NAME, TAG, "linux/arm64", "798ee7ecd615", "build"} <= words


def test_a_value_too_long_for_its_column_gets_a_line_of_its_own() -> None:
    assert lines(COLUMNS, PLAN, 80) == [
        "cell            platform     action  build key     why",
        NAME,
        TAG,
        "                linux/arm64  build   798ee7ecd615",
        f"      no image {TAG}",
        "cpu-vllm0-32-0  linux/amd64  skip    ae74f707a4f5  unchanged",
    ]


def test_names_that_do_not_fit_beside_their_values_leave_no_gap_of_their_width() -> None:
    rows: list[list[Part]] = [
        [NAME, "linux/arm64", "build", TAG],
        ["x" * 30, "linux/amd64", "build", TAG],
    ]
    assert lines(["cell", "platform", "action", "image"], rows, 110) == [
        "cell  platform     action  image",
        NAME,
        f"      linux/arm64  build   {TAG}",
        "x" * 30,
        f"      linux/amd64  build   {TAG}",
    ]


def test_a_column_without_room_for_any_value_is_named_at_its_values() -> None:
    shown = lines(["cell", "result", "image"], [[NAME, "built in 120 s", TAG]], 70)
    assert shown == ["cell  result", NAME, "      built in 120 s", f"      image: {TAG}"]


def test_prose_is_wrapped_at_its_spaces_in_its_column() -> None:
    text = "the capital of France is Paris; the capital of Norway is Oslo; and so on"
    shown = lines(["check", "seen"], [["server-completions", text]], 60)
    assert shown == [
        "check               seen",
        "server-completions  the capital of France is Paris; the",
        "                    capital of Norway is Oslo; and so on",
    ]


def test_only_what_is_longer_than_a_line_is_broken_and_where_a_name_may_be() -> None:
    path = f"/root/.local/state/imagefactory/logs/{NAME}.log"
    shown = lines(["", "log"], [["x", path]], 60)
    assert "".join(line.strip() for line in shown).endswith(path)
    assert all(line.endswith(("/", "-")) for line in shown[1:-1] if line != "x")


def test_digests_are_shortened_only_where_the_table_does_not_fit() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    row: list[Part] = ["a" * 30, f"was {digest}"]
    assert lines(["", ""], [row], 80) == [f"{'a' * 30}  was {digest[:19]}"]
    assert lines(["", ""], [row], 120) == [f"{'a' * 30}  was {digest}"]
    assert lines(["", ""], [row], None) == [f"{'a' * 30}  was {digest}"]


def test_in_a_pipe_a_row_is_a_line_and_nothing_is_wrapped_or_padded_at_its_end() -> None:
    shown = lines(COLUMNS, PLAN, None)
    assert len(shown) == 1 + len(PLAN)
    assert f"{NAME} {TAG}  linux/arm64  build " in shown[1]
    assert all(line == line.rstrip() for line in shown)
    assert shown[2].split("  ")[-1] == "unchanged"


def test_cells_are_data_and_not_markup_emoji_or_terminal_escapes() -> None:
    odd = "matrix.yaml:100: [bold]x[/bold] :rocket: \x1b[31mred\u202e\t."
    for width in (80, None):
        (shown,) = tables.layout([""], [[odd]], width=width)
        assert "matrix.yaml:100: [bold]x[/bold] :rocket: \\x1b[31mred\\u202e ." in shown.plain
        assert not shown.spans
    (shown,) = tables.layout([""], [[Text("\x1b[2J", "red")]], width=80)
    assert shown.plain == "\\x1b[2J"


def test_styles_survive_wrapping() -> None:
    text = styled("one two three four five six seven", "red")
    shown = tables.layout(["", ""], [["x" * 50, text]], width=80)
    assert [line.plain.split()[-1] for line in shown] == ["six", "seven"]
    assert all(any(span.style == "red" for span in line.spans) for line in shown)


def test_a_row_with_a_cell_too_many_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="2 cells"):
        tables.layout(["a", "b"], [["1", "2", "3"]], width=80)


WORDS = st.text(st.sampled_from("ab/:-. é漢[]\n\x07"), max_size=120)


@given(st.lists(st.lists(WORDS, min_size=3, max_size=3), max_size=4), st.integers(60, 130))
def test_whatever_the_cells_hold_all_of_it_is_shown_within_the_width(
    rows: list[list[Part]], width: int
) -> None:
    def letters(texts: list[str]) -> list[str]:
        return sorted(char for text in texts for char in text if char in "abé漢[]/:.")

    shown = lines(["a", "b", "c"], rows, width)
    assert all(cell_len(line) <= width for line in shown)
    cells = [str(cell) for row in rows for cell in row]
    labels = [line.partition(":")[0].strip() for line in shown[1:]]
    if not {"a", "b", "c"} & set(labels):  # a column that is named at its values adds letters
        assert letters(shown) == letters(["abc", *cells])
    piped = lines(["a", "b", "c"], rows, None)
    assert letters(piped) == letters(["abc", *cells])
    assert len(piped) == len(rows) + 1
