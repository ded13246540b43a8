"""What a recipe is, and what it gives to one release of vLLM on a number of nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from imagefactory.matrix.cell import Cell

#: A value of an option: text or a number, a switch, or what is passed as JSON.
Value = str | int | bool | dict[str, Any] | list[Any]
#: Where settings are written: (section, name) -> file:line.
Places = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Settings for some releases, or for a number of nodes; None is any."""

    vllm: SpecifierSet | None
    nodes: int | None
    options: Mapping[str, Value]
    env: Mapping[str, str]
    places: Places

    def fits(self, release: str, nodes: int) -> bool:
        """Whether these settings are for ``release`` on so many nodes."""
        in_range = self.vllm is None or contains(self.vllm, release)
        return in_range and self.nodes in (None, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something to know, and who reported it."""

    text: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is served.

    Attributes:
        name: the file's name without its suffix.
        shown: the path of its file in messages.
        model: a repository of Hugging Face, or a path in the container.
        revision: of the model; empty is the newest.
        architecture: of the model, as its config.json names it; empty if unknown.
        weights: how the weights are stored, such as ``nvfp4-modelopt``.
        weights_gib: the size of all weights; None if unknown.
        experts: whether it is a mixture of experts.
        context: the most positions that the model allows; None if unknown.
        hardware: ``gb10``, ``cpu`` or both.
        vllm: the releases that serve it.
        nodes: the numbers of nodes that it is for, each with one GPU.
        user: whom the container runs as, by number; empty is root.
        patches: what an image must have been patched with.
        cases: settings; the first one is for all releases, and later ones go before earlier ones.
        accepts: rule -> why it is broken on purpose.
        sampling: use -> parameters that clients should send.
        is_stock: whether it comes with imagefactory.
    """

    name: str
    shown: str
    summary: str
    model: str
    revision: str
    architecture: str
    weights: str
    weights_gib: float | None
    experts: bool
    context: int | None
    hardware: tuple[str, ...]
    vllm: SpecifierSet
    nodes: tuple[int, ...]
    user: str
    patches: tuple[str, ...]
    cases: tuple[Case, ...]
    accepts: Mapping[str, str]
    sampling: Mapping[str, Mapping[str, float]]
    notes: tuple[Note, ...]
    places: Places = field(default_factory=dict, repr=False)
    is_stock: bool = False

    def is_for(self, cell: Cell) -> bool:
        """Whether the image of ``cell`` should serve it."""
        return hardware_of(cell) in self.hardware and contains(self.vllm, cell.vllm)

    def on(self, release: str, nodes: int) -> Setup:
        """Its settings for one release on a number of nodes."""
        options: dict[str, Value] = {}
        env: dict[str, str] = {}
        places = dict(self.places)
        for case in self.cases:
            if case.fits(release, nodes):
                options |= case.options
                env |= case.env
                places |= case.places
        return Setup(
            recipe=self, release=release, nodes=nodes, options=options, env=env, places=places
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A recipe's settings for one release of vLLM on a number of nodes."""

    recipe: Recipe
    release: str
    nodes: int
    options: Mapping[str, Value]
    env: Mapping[str, str]
    places: Places = field(repr=False)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options as arguments of ``vllm serve``, without the model."""
        revision = {"revision": self.recipe.revision} if self.recipe.revision else {}
        return tuple(
            word
            for name, value in {**revision, **self.options}.items()
            for word in _words(name, value)
        )

    def text(self, option: str) -> str:
        """The value of ``option`` as text; empty if it is not set."""
        value = self.options.get(option, "")
        return value if isinstance(value, str) else json.dumps(value)

    def keys_of(self, option: str) -> dict[str, Any]:
        """The keys of an option of JSON; empty if it is not set."""
        value = self.options.get(option, {})
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return {}
        return value if isinstance(value, dict) else {}

    def where(self, setting: str) -> str:
        """Where an option or a variable is set: file:line, the file's first line if it is not."""
        option = setting.partition("=")[0].lstrip("-")
        names = [("options", option), ("options", option.removeprefix("no-")), ("env", setting)]
        names += [("", setting), ("", "")]
        return next(self.places[name] for name in names if name in self.places)


def _words(name: str, value: Value) -> Iterator[str]:
    if value is True:
        yield f"--{name}"
    elif value is False:
        yield f"--no-{name}"
    else:
        is_json = isinstance(value, dict | list)
        text = json.dumps(value, separators=(",", ":")) if is_json else str(value)
        yield from (f"--{name}={text}",) if text.startswith("-") else (f"--{name}", text)


def hardware_of(cell: Cell) -> str:
    """What a cell's images run on."""
    return "cpu" if cell.channel == "cpu" else "gb10"


def contains(versions: SpecifierSet, release: str) -> bool:
    """Whether a release is in a range; a git ref counts as newer than all releases."""
    try:
        return versions.contains(Version(release), prereleases=True)
    except InvalidVersion:
        return not any(one.operator in ("<", "<=", "==", "~=") for one in versions)
