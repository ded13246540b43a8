"""Recipes of other projects, taken over as files of one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from imagefactory.errors import InputError, fail
from imagefactory.launching import documents
from imagefactory.recipes import foreign
from imagefactory.recipes.foreign import Foreign, UnknownError
from imagefactory.system import files

#: The largest file that is read, in bytes, and its most values once aliases are written out.
LARGEST, MOST_VALUES = 300_000, 50_000
#: What a file that says nothing of releases is for.
ANY_RELEASE = ">=0.16"
#: Characters of a text that is taken from elsewhere.
LONGEST_NOTE = 1000
_ACTIVE = re.compile(r"(?<![a-z])a\d+(?:\.\d+)?b(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A recipe as text, with what of its source was not taken."""

    name: str
    kind: str
    text: str
    dropped: Sequence[str]


def read(path: Path, *, variant: str | None, vllm: str | None, name: str | None) -> Imported:
    """Take over the recipe in the file of another project.

    ``vllm`` are the releases that it is for, if the file does not say. Raises InputError.
    """
    data = _data(path)
    try:
        found = foreign.read(data, path.stem, variant)
        head = (f"Imported from {path.name} ({found.kind}).",)
        text = documents.dump(_file(found, path.name, vllm), remarks=head)
    except (UnknownError, AttributeError, TypeError, ValueError, RecursionError) as error:
        what = f"{path} is no recipe that can be read: {error}"
        fix = "give a file of vllm-project/recipes, sparkrun or spark-vllm-docker"
        raise fail(InputError, "recipe-foreign", what, fix=fix) from None
    own = _name(name or found.name)
    if not own:
        what = f"{name or found.name!r} cannot be the name of a recipe"
        raise fail(InputError, "recipe-name", what, fix="choose another with --name")
    return Imported(name=own, kind=found.kind, text=text, dropped=found.dropped)


def _data(path: Path) -> dict[str, Any]:
    try:
        data = _parsed(files.read_text(path, LARGEST))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        what = f"{path} cannot be read: {' '.join(why.split())}"
        raise fail(InputError, "recipe-foreign", what, fix="name a YAML file") from None
    if not isinstance(data, dict):
        what = f"{path} is no mapping"
        raise fail(InputError, "recipe-foreign", what, fix="name a recipe")
    return data


def _parsed(text: str) -> Any:
    """What YAML makes of ``text``. Raises ValueError for more values than a recipe can have."""
    loader = yaml.SafeLoader(text)
    node = loader.get_single_node()
    if _values(node, {}) > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values, those of aliases included")
    return loader.construct_document(node) if node else None


def _values(node: yaml.Node | None, known: dict[int, int]) -> int:
    """The values in ``node``; those that an alias repeats count again."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        parts = [
            part for item in node.value for part in (item if isinstance(item, tuple) else [item])
        ]
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]


def _file(found: Foreign, source: str, vllm: str | None) -> dict[str, Any]:
    """The file of a recipe; how the weights are stored is what the model's name says."""
    model = found.model.lower()
    notes = [f"not taken over: {one}"[:LONGEST_NOTE] for one in found.dropped]
    return {
        "summary": found.summary[:LONGEST_NOTE],
        "model": found.model,
        **({"revision": found.revision} if found.revision else {}),
        "weights": _weights(model, str(found.options.get("quantization", ""))),
        **({"experts": True} if _ACTIVE.search(model) else {}),
        **({"context": found.context} if found.context else {}),
        "vllm": vllm or found.vllm or ANY_RELEASE,
        "nodes": [found.nodes],
        "options": dict(found.options),
        **({"env": dict(found.env)} if found.env else {}),
        **({"notes": [{"text": one, "source": source} for one in notes]} if notes else {}),
    }


def _weights(model: str, quantization: str) -> str:
    if "nvfp4" in model:
        is_modelopt = model.startswith("nvidia/") or quantization.startswith("modelopt")
        return "nvfp4-modelopt" if is_modelopt else "nvfp4-compressed-tensors"
    for kind in ("mxfp4", "fp8", "awq", "gptq"):
        if kind in model or quantization.startswith(kind):
            return kind
    return "other" if re.search(r"int4|int8|autoround|gguf|fp4", model) else "bf16"


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")
