"""Lines and bars: what is unknown is a gap, and no zero."""

from __future__ import annotations

from datetime import date, timedelta

from imagefactory.dashboard import plots

DAYS = [date(2026, 11, 1) + timedelta(days=number) for number in range(5)]


def test_an_unknown_value_interrupts_a_line() -> None:
    plot = plots.line(DAYS, [10, 10, None, 30, 30])
    assert plot.path == "M1.0 57.0H92.0M268.0 3.0H359.0"
    assert (plot.least, plot.most, plot.latest) == (10, 30, 30)


def test_a_line_is_as_high_as_its_values_and_a_single_value_is_seen() -> None:
    assert plots.line(DAYS[:1], [7]).path == "M1.0 30.0H3.0"
    assert plots.line(DAYS, [1, 2, 2, 2, 1]).path == "M1.0 57.0H91.0V3.0H358.0V57.0H359.0"


def test_without_a_known_value_there_is_no_line() -> None:
    for plot in (plots.line(DAYS, [None] * 5), plots.bars(DAYS, [None] * 5)):
        assert (plot.path, plot.most) == ("", None)


def test_bars_begin_at_zero() -> None:
    plot = plots.bars(DAYS, [None, 20, 40, None, None], most=80)
    assert plot.path == "M91.0 60V43.5M180.0 60V30.0"
    assert (plot.most, plot.latest) == (80, 40)
