"""Recipes of other projects: sparkrun and spark-vllm-docker, read and written, and those of
vllm-project/recipes, read. Pure.

sparkrun's are versions 1 and 2 of one format, of which spark-vllm-docker has the first.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imagefactory.errors import InputError, fail
from imagefactory.launching.launching import TUNED, TUNINGS
from imagefactory.recipes.recipe import Setup, Value

#: Names of values in ``defaults`` and of the options that they are for, where these differ.
_NAMES = {"tensor_parallel": "tensor-parallel-size", "pipeline_parallel": "pipeline-parallel-size"}
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-O": "--optimization-level",
    "-cc": "--compilation-config",
    "-sc": "--speculative-config",
    "-q": "--quantization",
}
#: Options that whoever starts the container chooses.
_LEFT_OUT = frozenset({"host", "port", "uds"})
#: Keys of other projects that have no counterpart here.
_NOT_TAKEN = (
    *("mods", "build_args", "builder", "builder_config", "pre_exec", "post_exec"),
    *("post_commands", "executor_config", "distribution_config", "runtime_config", "benchmark"),
)
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_FORMAT = re.compile(r"\{\{|\}\}|\{(\w+)\}")
_SPARK = "dgx_spark_gb10"
#: Characters of all values that are put into a command.
LONGEST = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A recipe as read from another project's file.

    ``dropped`` says what of the file was not taken, and why.
    """

    kind: str
    name: str
    summary: str
    model: str
    revision: str
    options: Mapping[str, Value]
    env: Mapping[str, str]
    nodes: int
    vllm: str
    context: int | None = None
    dropped: Sequence[str] = field(default_factory=tuple)


class UnknownError(ValueError):
    """The file is none of the formats that are read, or lacks something."""


def read(data: Mapping[str, Any], name: str, variant: str | None = None) -> Foreign:
    """The recipe in the plain ``data`` of a file; ``variant`` is one of vllm-project's.

    Raises UnknownError.
    """
    if isinstance(data.get("model"), dict) and "variants" in data:
        return _of_vllm_project(data, variant)
    if "container" in data or "command" in data or "runtime" in data or "defaults" in data:
        return _of_spark(data, name)
    raise UnknownError("it has none of the keys of sparkrun, spark-vllm-docker or vLLM's recipes")


def _of_spark(data: Mapping[str, Any], name: str) -> Foreign:
    defaults = dict(data.get("defaults") or {})
    model = str(data.get("model") or defaults.get("model") or "")
    dropped = [f"{key}: has no counterpart" for key in _NOT_TAKEN if data.get(key)]
    if data.get("command"):
        found, options, unread = _command(str(data["command"]), {**defaults, "model": model})
        model = model or found
        dropped += unread
    else:
        options = {
            _NAMES.get(key, key.replace("_", "-")): _typed(_plain(value))
            for key, value in defaults.items()
            if value is not None
        }
    if not model:
        raise UnknownError("it names no model")
    sizes = [str(options.get(f"{kind}-parallel-size", 1)) for kind in ("tensor", "pipeline")]
    used = [int(size) if size.isdecimal() and len(size) < 6 else 1 for size in sizes]
    nodes = max(used[0] * used[1], 1)
    return Foreign(
        kind="sparkrun" if str(data.get("recipe_version", "1")) == "2" else "spark-vllm-docker",
        name=name,
        summary=_line(data.get("description") or data.get("name") or model),
        model=model,
        revision=str(data.get("model_revision") or ""),
        options={key: value for key, value in options.items() if key not in _LEFT_OUT},
        env={key: _plain(value) for key, value in (data.get("env") or {}).items()},
        nodes=nodes,
        vllm="",
        dropped=tuple(dropped),
    )


def _command(
    template: str, values: Mapping[str, Any]
) -> tuple[str, dict[str, Value], Iterator[str]]:
    """The model, the options, and what could not be read, of a template of a command."""

    longest = LONGEST

    def filled(match: re.Match[str]) -> str:
        nonlocal longest
        if match[1] is None:  # a brace that was doubled for str.format
            return match[0][0]
        found = _plain(values[match[1]]) if match[1] in values else match[0]
        longest -= len(found)
        if longest < 0:
            raise UnknownError(f"its command has more than {LONGEST} characters")
        return found

    if "{{" in template:
        template = _FORMAT.sub(filled, template)
    for _ in range(3):  # values may have placeholders too
        template = _PLACEHOLDER.sub(filled, template)
    lines = [line for line in template.splitlines() if not line.lstrip().startswith("#")]
    try:
        words = shlex.split(re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)))
    except ValueError as error:
        raise UnknownError(f"its command cannot be read: {error}") from None
    pairs = list(itertools.pairwise(words))
    if ("vllm", "serve") not in pairs:
        raise UnknownError("its command does not call `vllm serve`")
    before = words[: pairs.index(("vllm", "serve"))]
    words = words[len(before) + 2 :]
    unread = [f"{word}: is before `vllm serve`" for word in before]
    model = "" if not words or words[0].startswith("-") else words.pop(0)
    options, more = options_of(words)
    model = model or str(options.pop("model", ""))
    return model, options, iter([*unread, *(f"{word}: is no option" for word in more)])


def options_of(words: Sequence[str]) -> tuple[dict[str, Value], list[str]]:
    """The options in arguments of ``vllm serve``, and the words that are none."""
    options: dict[str, Value] = {}
    unread = []
    number = 0
    while number < len(words):
        word, equals, value = words[number].partition("=")
        word = _SHORT.get(word, word)
        number += 1
        if not word.startswith("--"):
            unread.append(word)
            continue
        option, dot, keys = word[2:].partition(".")
        option = f"{option.replace('_', '-')}{dot}{keys}"
        if equals:
            options[option] = _typed(value)
        elif number < len(words) and not _is_option(words[number]):
            options[option] = _typed(words[number])
            number += 1
        elif option.startswith("no-"):
            options[option[3:]] = False
        else:
            options[option] = True
    return options, unread


def _is_option(word: str) -> bool:
    return word.startswith("--") or word.partition("=")[0] in _SHORT


def _typed(text: str) -> Value:
    """A value as recipes have it: numbers, and JSON where it can be written as YAML."""
    if text.isdecimal() and len(text) < 10:
        return int(text)
    if text in ("True", "true"):
        return True
    if text[:1] in ("{", "["):
        try:
            data = json.loads(text)
            # recipes have no numbers with a point, and no null
            return text if _has_others(data) else data
        except (ValueError, RecursionError):
            return text
    return text


def _has_others(data: Any) -> bool:
    if isinstance(data, dict):
        return any(map(_has_others, data.values()))
    if isinstance(data, list):
        return any(map(_has_others, data))
    return data is None or isinstance(data, float)


def _of_vllm_project(data: Mapping[str, Any], variant: str | None) -> Foreign:
    model, variants = data["model"], data["variants"] or {}
    chosen = variant or ("nvfp4" if "nvfp4" in variants else "default")
    if chosen not in variants:
        raise UnknownError(f"it has no variant {chosen!r}, but {', '.join(variants)}")
    own = variants[chosen] or {}
    on_spark = (own.get("hardware_overrides") or {}).get(_SPARK) or {}
    words = list(model.get("base_args") or ())
    opt_in = data.get("opt_in_features") or ()
    for name, feature in (data.get("features") or {}).items():
        words += (feature.get("args") or ()) if name not in opt_in else ()
    words += [*(own.get("extra_args") or ()), *(on_spark.get("extra_args") or ())]
    # some have an option and its value in one item
    split = (
        str(word).split(maxsplit=1) if str(word)[:2] == "--" else [str(word)] for word in words
    )
    options, unread = options_of([word for item in split for word in item])
    env = {
        **(model.get("base_env") or {}),
        **(own.get("extra_env") or {}),
        **(on_spark.get("extra_env") or {}),
    }
    identity = str(own.get("model_id") or model.get("model_id") or "")
    if not identity:
        raise UnknownError("it names no model")
    oldest = str(model.get("min_vllm_version") or "")
    context = model.get("context_length")
    summary = own.get("description") or data.get("meta", {}).get("description") or identity
    return Foreign(
        kind="vllm-project/recipes",
        name=identity.partition("/")[2].lower(),
        summary=_line(summary),
        model=identity,
        revision="",
        options={key: value for key, value in options.items() if key not in _LEFT_OUT},
        env={key: _plain(value) for key, value in env.items()},
        nodes=1,
        vllm=f">={oldest}" if re.fullmatch(r"[0-9]+(\.[0-9]+)*", oldest) else "",
        context=context if isinstance(context, int) else None,
        dropped=[
            *(f"{word}: is no option" for word in unread),
            *(f"the feature {name}, which is off by default" for name in opt_in),
            *(f"dependency {one.get('command')}" for one in data.get("dependencies") or ()),
        ],
    )


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _line(text: object) -> str:
    return " ".join(str(text).split())


def sparkrun(setup: Setup, image: str) -> dict[str, Any]:
    """The recipe in sparkrun's format, version 2."""
    recipe, ray = setup.recipe, setup.text("distributed-executor-backend") == "ray"
    return {
        "recipe_version": "2",
        "name": recipe.name,
        "description": recipe.summary,
        "model": recipe.model,
        **({"model_revision": recipe.revision} if recipe.revision else {}),
        "runtime": "vllm-ray" if ray else "vllm-distributed",
        "container": image,
        "min_nodes": setup.nodes,
        "max_nodes": setup.nodes,
        "env": dict(setup.env),
        **_templated(setup),
    }


def spark_vllm_docker(setup: Setup, image: str) -> dict[str, Any]:
    """The recipe in the format of spark-vllm-docker."""
    recipe = setup.recipe
    return {
        "recipe_version": "1",
        "name": recipe.name,
        "description": recipe.summary,
        "model": recipe.model,
        "container": image,
        **({"cluster_only": True} if setup.nodes > 1 else {"solo_only": True}),
        "mods": [],
        "env": dict(setup.env),
        **_templated(setup),
    }


def sparkrun_tunings(folder: str) -> str:
    """How sparkrun gets the tuned kernels of a folder: its recipes have no mounts."""
    target = "~/.cache/sparkrun/tuning/vllm"
    copy = f"mkdir -p {target} && cp {shlex.quote(folder)}/*.json {target}/"
    return f"tuned kernels: sparkrun mounts those of {target} on each node: {copy}"


def spark_vllm_docker_tunings(folder: str) -> str:
    """How spark-vllm-docker mounts a folder of tuned kernels: its recipes have no mounts.

    Raises InputError for a path that the shell would split, as its scripts do not quote it.
    """
    if not re.fullmatch(r"[\w./@%+-]+", folder):
        what = f"spark-vllm-docker cannot mount {folder}"
        fix = "give the folder a name of letters, digits, '_', '.' and '-'"
        raise fail(InputError, "recipe-tunings", what, fix=fix)
    # unlike -v, which makes an empty folder on a node that has none
    mount = f"--mount type=bind,source={folder},target={TUNINGS},readonly"
    options = f'VLLM_SPARK_EXTRA_DOCKER_ARGS="{mount} -e {TUNED}={TUNINGS}"'
    return f"tuned kernels: {options} ./run-recipe.sh FILE, with that folder on each node"


def _templated(setup: Setup) -> dict[str, Any]:
    """``defaults``, which can be changed when it is run, and the command with them.

    Braces of JSON would be placeholders, so JSON is among the defaults, quoted for the shell.
    """
    defaults: dict[str, Any] = {"port": 8000, "host": "0.0.0.0"}  # noqa: S104 - in a container
    lines = [f"vllm serve {setup.recipe.model}", "--port {port}", "--host {host}"]
    if setup.recipe.revision:
        lines.append(f"--revision {shlex.quote(setup.recipe.revision)}")
    names = {option: key for key, option in _NAMES.items()}
    for option, value in setup.options.items():
        key = names.get(option, option.replace("-", "_").replace(".", "_"))
        if isinstance(value, bool):
            lines.append(f"--{option}" if value else f"--no-{option}")
            continue
        is_json = isinstance(value, dict | list)
        text = json.dumps(value, separators=(", ", ": ")) if is_json else value
        defaults[key] = _default(text)
        lines.append(f"--{option} {{{key}}}")
    defaults.setdefault("tensor_parallel", setup.nodes)
    return {"defaults": defaults, "command": " \\\n    ".join(lines) + "\n"}


def _default(value: Value) -> object:
    """A value of ``defaults``: numbers as such, and what the shell would split in quotes."""
    if not isinstance(value, str):
        return value
    return float(value) if re.fullmatch(r"[0-9]+\.[0-9]+", value) else shlex.quote(value)
