"""What a vLLM release would refuse or ignore among the settings that somebody gives it."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict

from imagefactory.errors import Problem
from imagefactory.matrix.cell import Cell
from imagefactory.patching.patch import Step, Variant
from imagefactory.planning import vllm_choices, vllm_fields, vllm_short
from imagefactory.planning.vllm_settings import PREFIX, VllmSettings, option_name

_OPTION = re.compile(r"""["'](--[a-z][a-z0-9-]*)["']""")
#: Options whose value may be one that a plugin registers, and the options that load plugins.
_PLUGINS = {
    "--tool-call-parser": "--tool-parser-plugin",
    "--reasoning-parser": "--reasoning-parser-plugin",
}
#: The most values that a message lists.
_MOST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A setting that a release does not support.

    ``setting`` is the variable, or the option as it was given; ``value`` is None if all of the
    setting is unknown.
    """

    setting: str
    value: str | None
    what: str
    fix: str

    @property
    def code(self) -> str:
        """The code of the problem that this is."""
        return "setting-dead" if self.value is None else "setting-value"


class _Replaced(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    old: str
    new: str
    vllm: str = ""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    replaced: tuple[_Replaced, ...]


@cache
def _table() -> tuple[_Replaced, ...]:
    file = resources.files(__package__).joinpath("vllm_replaced.toml")
    return _File.model_validate(
        tomllib.loads(file.read_text(encoding="utf-8")), strict=False
    ).replaced


def replacement(setting: str, release: str) -> str:
    """What to write instead of ``setting``, as the curated table has it; empty if it has nothing.

    A value of an option follows it after ``=``; a key of JSON after a dot.
    """
    for one in _table():
        if one.old == setting and _contains(one.vllm, release):
            return one.new
    return ""


def _contains(versions: str, release: str) -> bool:
    try:
        return SpecifierSet(versions).contains(Version(release), prereleases=True)
    except InvalidVersion:  # a git ref, which is newer than any release
        return ">" in versions or not versions


def settings_of(cell: Cell) -> list[str]:
    """The settings of a cell's flavor that vLLM itself must support."""
    options = [text for text in cell.flavor.serve_args if text.startswith("-")]
    return [*(name for name in cell.flavor.env if name.startswith(PREFIX)), *options]


def of_flavor(cell: Cell, known: VllmSettings, series: Sequence[Step]) -> Iterator[Problem]:
    """A problem for each setting of its flavor that the cell's vLLM would ignore or reject.

    Settings that the patches of ``series`` add are known too.
    """
    flavor, added = cell.flavor, added_by(step.variant for step in series)
    found = judge(
        flavor.serve_args,
        list(flavor.env),
        known,
        added,
        release=cell.vllm,
        of=f"flavor {flavor.name}",
    )
    for one in found:
        section = "serve_args" if one.setting.startswith("-") else "env"
        where = str(flavor.where(section, one.value or one.setting))
        yield Problem(code=one.code, where=where, what=one.what, fix=one.fix)


def judge(
    arguments: Sequence[str],
    variables: Iterable[str],
    known: VllmSettings,
    added: frozenset[str],
    *,
    release: str,
    of: str,
) -> Iterator[Finding]:
    """What vLLM ``release`` does not support among the settings of ``of``.

    Settings and values in ``added`` are supported too.
    """
    texts = list(vllm_short.expanded(arguments, known.short))
    for word in vllm_short.unknown(texts):
        what = f"vLLM {release} does not know {word} of {of} and would not start"
        yield Finding(setting=word, value=None, what=what, fix=_instead(word, known, release))
    options = [text for text in texts if text.startswith("--")]
    for setting in [*(name for name in variables if name.startswith(PREFIX)), *options]:
        name = setting if setting.startswith(PREFIX) else option_name(setting)
        if not known.knows(setting) and name not in added:
            would = "not start" if name.startswith("--") else "ignore it"
            what = f"vLLM {release} does not know {name} of {of} and would {would}"
            yield Finding(
                setting=setting, value=None, what=what, fix=_instead(name, known, release)
            )
    for name, value in vllm_choices.given(texts):
        yield from _wrong_values(name, value, texts, known, added, release, of)


def _instead(name: str, known: VllmSettings, release: str) -> str:
    new = replacement(name, release)
    if new:
        return new
    names = sorted(known.variables | known.options | known.short.keys())
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    if similar:
        return f"vLLM {release} has {similar[0]}"
    return "remove it, or leave it to the releases that support it"


def _wrong_values(
    name: str,
    value: str,
    arguments: Sequence[str],
    known: VllmSettings,
    added: frozenset[str],
    release: str,
    of: str,
) -> Iterator[Finding]:
    """What is wrong with the value of one option, or with the keys and values inside it."""
    if "." in name or name in known.fields:
        for one in vllm_fields.wrong(name, value, known.fields):
            yield _inside(one, release, of)
        return
    choices = vllm_short.LEVELS if name == vllm_short.LEVEL else known.choices.get(name, ())
    plugin = _PLUGINS.get(name)
    if plugin and any(option_name(text) == plugin for text in arguments):
        return
    # some options take `Deep-GEMM` for `deep_gemm`; a dotted path is a class of the user's own
    if not choices or {_plain(value)} & {*map(_plain, choices)} or value in added or "." in value:
        return
    yield Finding(
        setting=name,
        value=value,
        what=f"vLLM {release} does not take {value!r} for {name} of {of} and would not start",
        fix=replacement(f"{name}={value}", release) or _one_of(value, choices),
    )


def _inside(one: vllm_fields.Wrong, release: str, of: str) -> Finding:
    option = one.path.partition(".")[0]
    if one.value is None:
        what = f"vLLM {release} has no {one.path}, which {of} sets, and would not start"
        last = one.path.rpartition(".")[2]
        fix = replacement(one.path, release) or _one_of(last, one.allowed)
        return Finding(setting=option, value=last, what=what, fix=fix)
    what = f"vLLM {release} does not take {one.value!r} for {one.path} of {of} and would not start"
    fix = replacement(f"{one.path}={one.value}", release) or _one_of(one.value, one.allowed)
    return Finding(setting=option, value=one.value, what=what, fix=fix)


def _one_of(value: str, choices: Sequence[str]) -> str:
    similar = difflib.get_close_matches(value, choices, n=1, cutoff=0.6)
    if similar:
        return f"write {similar[0]}"
    more = f" and {len(choices) - _MOST} more" if len(choices) > _MOST else ""
    return f"write one of {', '.join(choices[:_MOST])}{more}"


def _plain(value: str) -> str:
    return value.lower().replace("-", "_")


def added_by(variants: Iterable[Variant | None]) -> frozenset[str]:
    """The options, variables, and perhaps values that the diffs of patches add."""
    texts = [one.diff.read_text(encoding="utf-8") for one in variants if one]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("+")]
    found = {
        name
        for line in lines
        for name in (
            *_OPTION.findall(line),
            *re.findall(r"VLLM_[A-Z0-9_]+", line),
            *re.findall(r"""["']([\w-]+)["']""", line),  # perhaps a value of an option
        )
    }
    return frozenset(found)
