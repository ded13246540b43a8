"""Finds the configuration of a model: a file, a folder, or a model in the Hugging Face cache."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.errors import FactoryError, InputError, Problem, fail
from imagefactory.system import files, strict_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
#: Bytes that such files have at most; indexes of the largest models have some tens of megabytes.
LIMIT = 200 << 20
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Found:
    """The configuration of a model.

    Attributes:
        raw: what its config.json has.
        size: bytes of its weights, if a file beside it says that.
    """

    raw: object
    name: str
    where: str
    size: int | None


def find(text: str, environ: Mapping[str, str]) -> Found:
    """The model that ``text`` names. Raises InputError if there is none."""
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - leaves an unknown user as it is
    if not text:  # as a path, the folder that one is in
        raise _unknown(text)
    if path.is_dir():
        name, file = path.resolve().name, path / "config.json"
    elif path.exists() or text.endswith(".json"):
        name, file = path.resolve().parent.name, path
    else:
        name, file = text, _cached(text, environ)
    raw = _read(file)
    if isinstance(raw, dict) and "quantization_config" not in raw:
        beside = file.parent / "hf_quant_config.json"  # of older checkpoints of Model Optimizer
        if beside.is_file():
            raw = {**raw, "quantization_config": {"quant_method": "modelopt", **_object(beside)}}
    return Found(raw, name, str(file), _size(file.parent))


def _cached(name: str, environ: Mapping[str, str]) -> Path:
    """The config.json of ``name`` in the cache of Hugging Face."""
    home = Path(environ.get("HF_HOME") or Path(environ.get("HOME") or "~") / ".cache/huggingface")
    hub = Path(os.path.expanduser(environ.get("HF_HUB_CACHE") or home / "hub"))  # noqa: PTH111
    if not _NAME.fullmatch(name):
        raise _unknown(name)
    folder = hub / f"models--{name.replace('/', '--')}"
    revision = folder / "refs/main"
    snapshots = sorted(folder.glob("snapshots/*/config.json"), key=lambda one: one.stat().st_mtime)
    if revision.is_file():
        main = folder / "snapshots" / revision.read_text(errors="replace").strip() / "config.json"
        snapshots += [main] if main.is_file() else []
    if not snapshots:
        what = f"{name} is not in the Hugging Face cache {hub}"
        fix = f"hf download {name} config.json {INDEX}"
        raise fail(InputError, "model-not-cached", what, fix=fix)
    return snapshots[-1]


def _unknown(text: str) -> FactoryError:
    what = f"{text!r} is no config.json, no folder with one, no recipe and no name of a model"
    fix = "write a path, a recipe, or ORGANIZATION/NAME of a model in the Hugging Face cache"
    return fail(InputError, "model-unknown", what, fix=fix)


def _read(file: Path) -> Any:
    try:
        # time_step_limit of Nemotron-H is [0.0, Infinity]
        return strict_json.loads(files.read(file, LIMIT), LIMIT, infinite=True)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            what = f"it is not JSON: {error}" if file.stat().st_size else "it is empty"
        problem = Problem(
            code="model-config", what=what, where=str(file), fix="name another config.json"
        )
        raise InputError(problem) from None


def _object(file: Path) -> dict[str, Any]:
    raw = _read(file)
    if isinstance(raw, dict):
        return raw
    raise fail(InputError, "model-config", "it is not a JSON object", where=str(file))


def _size(folder: Path) -> int | None:
    """Bytes of the weights, as their index says; else of their files, if they are there."""
    index = folder / INDEX
    if index.is_file():
        metadata = _object(index).get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, dict) else None
        if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
            what = f"metadata.total_size is not a number of bytes: {size!r:.60}"
            fix = f"download it again, or remove it: the size is computed without {INDEX}"
            raise fail(InputError, "model-index", what, where=str(index), fix=fix)
        return size
    single = folder / "model.safetensors"
    return single.stat().st_size if single.is_file() else None
