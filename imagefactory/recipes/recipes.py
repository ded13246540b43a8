"""Recipes: read from the stock folder and from the project's own, which goes before it by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from imagefactory.errors import InputError, Problem, fail
from imagefactory.recipes.recipe import Case, Note, Places, Recipe
from imagefactory.recipes.rules import RULES
from imagefactory.recipes.schema import Env, Options, RecipeFile
from imagefactory.system import yamlfile
from imagefactory.system.yamlfile import Loc, Positions

SUFFIX = ".yaml"
#: Keys whose places messages name.
_PLACED = ("patches", "model", "architecture", "context")


def load(folders: Sequence[Path], stock: Path) -> tuple[Recipe, ...]:
    """All recipes, by name; one of an earlier folder replaces one of a later folder.

    ``stock`` is the folder of those that come with imagefactory. Raises InputError with every
    problem of every file.
    """
    found: list[Recipe] = []
    problems: list[Problem] = []
    for _, path in sorted(_files(folders).items()):
        try:
            found.append(read(path, is_stock=path.parent.resolve() == stock.resolve()))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return tuple(found)


def _files(folders: Sequence[Path]) -> dict[str, Path]:
    """The files of recipes, by name; not all can be read."""
    return {path.stem: path for one in folders[::-1] for path in sorted(one.glob(f"*{SUFFIX}"))}


def find(name: str, folders: Sequence[Path], stock: Path) -> Recipe:
    """The recipe of that name, or the one in the file that ``name`` is the path of."""
    if name.endswith(SUFFIX):
        return read(Path(name))
    known = _files(folders)
    if name not in known:
        similar = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
        fix = f"did you mean {similar[0]}?" if similar else "imagefactory recipe list"
        raise fail(InputError, "recipe-unknown", f"there is no recipe {name!r}", fix=fix)
    path = known[name]
    return read(path, is_stock=path.parent.resolve() == stock.resolve())


def read(path: Path, *, is_stock: bool = False) -> Recipe:
    """Read one recipe. Raises InputError with every problem of the file."""
    shown = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else ""
    file, positions, problems = yamlfile.examine(path, RecipeFile, prefix="recipe", shown=shown)
    if file is None:
        raise InputError(yamlfile.in_file_order(problems))
    problems += [
        *_bad_ranges(file, positions),
        *_unknown_rules(file, positions),
    ]
    if problems:
        raise InputError(yamlfile.in_file_order(problems))
    first = Case(
        vllm=None,
        nodes=None,
        options=file.options,
        env=file.env,
        places=_places(file.options, file.env, (), positions),
    )
    return Recipe(
        name=path.stem,
        shown=positions.file,
        summary=file.summary,
        model=file.model,
        revision=file.revision or "",
        architecture=file.architecture or "",
        weights=file.weights,
        weights_gib=float(file.weights_gib) if file.weights_gib else None,
        experts=file.experts,
        context=file.context,
        hardware=tuple(file.hardware),
        vllm=SpecifierSet(file.vllm),
        nodes=tuple(file.nodes),
        user=file.user or "",
        patches=tuple(file.patches),
        cases=(first, *_cases(file, positions)),
        accepts={one.rule: one.reason for one in file.accepts},
        sampling={
            use: {name: float(value) for name, value in parameters.items()}
            for use, parameters in file.sampling.items()
        },
        notes=tuple(Note(text=one.text, source=one.source) for one in file.notes),
        places={("", name): _at(positions, (name,)) for name in _PLACED}
        | {("", ""): _at(positions, ())},
        is_stock=is_stock,
    )


def _cases(file: RecipeFile, positions: Positions) -> Iterator[Case]:
    for number, one in enumerate(file.when):
        yield Case(
            vllm=SpecifierSet(one.vllm) if one.vllm else None,
            nodes=one.nodes,
            options=one.options,
            env=one.env,
            places=_places(one.options, one.env, ("when", number), positions),
        )


def _places(options: Options, env: Env, above: Loc, positions: Positions) -> Places:
    names = [("options", name) for name in options] + [("env", name) for name in env]
    return {(section, name): _at(positions, (*above, section, name)) for section, name in names}


def _at(positions: Positions, loc: Loc) -> str:
    return str(positions.locate(loc))


def _bad_ranges(file: RecipeFile, positions: Positions) -> Iterator[Problem]:
    """A problem for each range of releases that is none."""
    ranges: list[tuple[Loc, str | None]] = [(("vllm",), file.vllm)]
    ranges += [(("when", number, "vllm"), one.vllm) for number, one in enumerate(file.when)]
    for loc, text in ranges:
        try:
            SpecifierSet(text or "")
        except InvalidSpecifier:
            what = f"{text!r} is no range of releases"
            fix = "write PEP 440 specifiers, such as '>=0.22'"
            yield Problem(code="recipe-range", where=_at(positions, loc), what=what, fix=fix)


def _unknown_rules(file: RecipeFile, positions: Positions) -> Iterator[Problem]:
    for number, one in enumerate(file.accepts):
        if one.rule not in RULES:
            where = _at(positions, ("accepts", number, "rule"))
            what = f"there is no rule {one.rule!r}"
            similar = difflib.get_close_matches(one.rule, RULES, n=1)
            fix = f"did you mean {similar[0]!r}?" if similar else f"write one of {', '.join(RULES)}"
            yield Problem(code="recipe-rule", where=where, what=what, fix=fix)
