"""``--select``: the grammar, and what an error says about it."""

from __future__ import annotations

import time
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.plans import planned

from imagefactory.errors import InputError, Problem
from imagefactory.matrix.cell import AXES, Cell
from imagefactory.matrix.select import GRAMMAR, LISTED, _glob, select


def cell(flavor: str, vllm: str, platform: str, cuda: dict[str, str]) -> Cell:
    name = f"{flavor}-vllm{vllm.replace('.', '-')}-{platform.partition('/')[2]}"
    axes = {"flavor": flavor, "vllm": vllm, "platform": platform, **cuda}
    return replace(planned().cell, name=name, axes=axes)


@cache
def cells() -> tuple[Cell, ...]:
    return (
        cell("gb10", "0.22.1", "linux/arm64", {"cuda": "13.0"}),
        cell("gb10", "0.33.0", "linux/arm64", {"cuda": "13.0"}),
        cell("cpu", "0.32.0", "linux/amd64", {}),
    )


def chosen(*expressions: str) -> list[str]:
    return [cell.axes["vllm"] for cell in select(cells(), expressions)]


def refused(*expressions: str) -> Problem:
    with pytest.raises(InputError) as caught:
        select(cells(), expressions)
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ("expression", "versions"),
    [
        ("flavor=gb10", ["0.22.1", "0.33.0"]),
        ("flavor=gb10 vllm=0.3*", ["0.33.0"]),
        ("flavor=gb10 and vllm=0.3*", ["0.33.0"]),
        ("flavor=gb10 AND vllm=0.3*", ["0.33.0"]),
        ("vllm=0.22.1 or flavor=cpu", ["0.22.1", "0.32.0"]),
        ("vllm=0.22.1,0.32.0", ["0.22.1", "0.32.0"]),
        ("not flavor=cpu", ["0.22.1", "0.33.0"]),
        ("not not flavor=cpu", ["0.32.0"]),
        ("gb10-* not *vllm0-33*", ["0.22.1"]),
        ("flavor=cpu or flavor=gb10 and vllm=0.33.0", ["0.33.0", "0.32.0"]),
        ("cuda=", ["0.32.0"]),
        ("*arm64", ["0.22.1", "0.33.0"]),
    ],
)
def test_terms_are_joined_by_and_then_by_or(expression: str, versions: list[str]) -> None:
    assert chosen(expression) == versions


def test_several_selections_are_joined_by_or_and_none_selects_all() -> None:
    assert chosen("vllm=0.33.0", "*amd64") == ["0.33.0", "0.32.0"]
    assert len(chosen()) == len(cells())


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("and flavor=gb10", "nothing to join before 'and'"),
        ("flavor=gb10 or", "nothing follows 'or'"),
        ("flavor=gb10 and or vllm=0.3*", "nothing to join before 'or'"),
        ("flavor=gb10 and not", "nothing follows 'not'"),
        ("(flavor=gb10)", "'(' is not part of the grammar"),
        ("flavor=gb10 && vllm=0.3*", "'&' is not part of the grammar"),
        ("vllm!=0.33.0", "'!=' is not part of the grammar"),
        ("vllm==0.33.0", "'==' is not part of the grammar"),
        ("vllm=0.22.1, vllm=0.33.0", "a value between commas is empty"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_the_grammar(
    expression: str, reason: str
) -> None:
    problem = refused(expression)
    assert (problem.code, problem.fix) == ("select-syntax", GRAMMAR)
    assert reason in problem.what


def test_an_unknown_axis_suggests_the_nearest_one() -> None:
    problem = refused("flavour=gb10 vllm=0.3*")
    assert problem.code == "select-axis"
    assert problem.fix.startswith("did you mean flavor=gb10?")
    assert all(axis in problem.fix for axis in AXES)
    assert refused("x=y").fix.startswith("The axes are")


def test_a_selection_that_matches_nothing_lists_the_cells_one_a_line() -> None:
    problem = refused("nothing*")
    assert (problem.code, problem.what) == ("select-nothing", "'nothing*' matches no cell")
    assert problem.detail.splitlines()[1:] == [f"  {cell.name}" for cell in cells()]
    assert refused("").code == "select-nothing"
    many = cells() * 20
    with pytest.raises(InputError) as caught:
        select(many, ["nothing*"])
    listed = caught.value.problems[0].detail.splitlines()
    assert (len(listed), listed[-1]) == (LISTED + 2, f"  and {len(many) - LISTED} more")


def test_a_term_that_matches_nothing_is_answered_with_what_would_match() -> None:
    assert refused("flavor=gb10 and vllm=0.9*").fix == "vllm is one of 0.22.1, 0.33.0, 0.32.0"
    name = cells()[0].name
    assert refused(name[:-1]).fix == f"did you mean {name}?"
    assert refused("gb10").fix == "did you mean flavor=gb10?"
    assert refused("flavor=cpu flavor=gb10").fix == GRAMMAR


@given(st.text(st.sampled_from("abgnotr10=,*!()&| \t[]-"), max_size=30))
def test_any_selection_selects_cells_or_is_refused_with_what_to_write(expression: str) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        assert all(cell in cells() for cell in select(cells(), [expression]))
    except InputError as error:
        problems = error.problems
    assert all(one.code.startswith("select-") and one.fix for one in problems)


TERMS = st.sampled_from(["flavor=gb10", "vllm=0.33.0", "*amd64", "vllm=0.22.1,0.32.0", "none*"])
FACTORS = st.tuples(st.booleans(), TERMS)
ALTERNATIVES = st.lists(st.lists(FACTORS, min_size=1, max_size=3), min_size=1, max_size=3)


@given(ALTERNATIVES, st.sampled_from([" ", " and ", "  And "]))
def test_a_selection_is_the_union_of_the_intersections_of_its_terms(
    alternatives: list[list[tuple[bool, str]]], joined: str
) -> None:
    def of(negated: bool, term: str) -> set[str]:
        every = {cell.name for cell in cells()}
        try:
            matched = {cell.name for cell in select(cells(), [term])}
        except InputError:
            matched = set()
        return every - matched if negated else matched

    wanted = set().union(*(set.intersection(*(of(*f) for f in one)) for one in alternatives))
    text = " or ".join(
        joined.join(f"not {term}" if negated else term for negated, term in one)
        for one in alternatives
    )
    if wanted:
        assert {cell.name for cell in select(cells(), [text])} == wanted
    else:
        assert refused(text).code == "select-nothing"


@example("[][", "[")
@example("[!][", "[!][")
@given(st.text("[]!-ab*?", max_size=12), st.text("[]!-ab", max_size=6))
def test_a_glob_matches_what_fnmatch_matches(glob: str, name: str) -> None:
    assert (_glob(glob).match(name) is not None) == fnmatchcase(name, glob)


def test_thousands_of_brackets_that_nothing_closes_are_refused_at_once() -> None:
    began = time.process_time()
    assert refused("]" + "[" * 20_000).code == "select-nothing"
    assert time.process_time() - began < 2  # looking for the end of each takes half a minute
