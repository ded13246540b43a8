"""Bytes of weights, by how the model is quantized and what is left out of that. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from imagefactory.errors import InputError, Problem
from imagefactory.memory.model import Part

#: Bytes of a weight with its scales.
NVFP4 = 0.5 + 1 / 16
MXFP4 = 0.5 + 1 / 32
FP8 = 1 + 4 / 128**2
INT8 = 1.0
KNOWN = ("fp8", "nvfp4", "mxfp4", "modelopt", "compressed-tensors", "awq", "gptq", "bitsandbytes")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How weights are quantized.

    Attributes:
        bytes_of: bytes of a weight in a module of that name; None leaves it as it is.
        cache: type of the KV cache that the checkpoint asks for, or "".
    """

    name: str
    bytes_of: Callable[[str], float | None]
    cache: str = ""


def scheme(values: Mapping[str, Any], where: str) -> Scheme:
    """What ``quantization_config`` of a configuration says. Raises InputError if it is unknown."""
    config = values.get("quantization_config", values.get("compression_config"))
    if config is None:
        return Scheme("", lambda _: None)
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    if method is None and _made_by_modelopt(config):  # vLLM adds it, too
        method = "modelopt"
    try:
        if isinstance(config, Mapping) and isinstance(method, str):
            return _of_method(method, config)
    except (TypeError, ValueError, KeyError, AttributeError, re.error, OverflowError):
        pass
    what = (
        f"quantization_config with the method {method!r:.60}: this version cannot size its weights"
    )
    fix = (
        f"it knows {', '.join(KNOWN)}; model.safetensors.index.json beside it says the size of any"
    )
    raise InputError(Problem(code="model-quantization", what=what, where=where, fix=fix))


def _made_by_modelopt(config: object) -> bool:
    producer = config.get("producer") if isinstance(config, Mapping) else None
    return isinstance(producer, Mapping) and producer.get("name") == "modelopt"


def _of_method(method: str, config: Mapping[str, Any]) -> Scheme:
    skipped = _skipped(config)
    if method.startswith("modelopt"):
        return _modelopt(config, skipped)
    if method == "compressed-tensors":
        return _compressed(config, skipped)
    if method == "mxfp4":  # of gpt-oss: experts only
        return Scheme("MXFP4", lambda name: MXFP4 if ".experts" in name else None)
    size = {
        "fp8": lambda: FP8,
        "fbgemm_fp8": lambda: FP8,
        "nvfp4": lambda: NVFP4,
        "awq": lambda: _integers(config["bits"], config.get("group_size", 128)),
        "gptq": lambda: _integers(config["bits"], config.get("group_size", 128)),
        "auto-round": lambda: _integers(config["bits"], config.get("group_size", 128)),
        "bitsandbytes": lambda: 0.5 + 4 / 64 if config.get("load_in_4bit") else INT8,
    }[method]()
    return Scheme(method.upper(), lambda name: None if skipped(name) else size)


def _integers(bits: int, group: int) -> float:
    """A scale in half precision and a zero point for each group; -1 is a whole row."""
    return bits / 8 + ((2 + bits / 8) / group if group > 0 else 0)


def _modelopt(config: Mapping[str, Any], skipped: Callable[[str], bool]) -> Scheme:
    algorithms = {"NVFP4": NVFP4, "W4A16_NVFP4": NVFP4, "FP8": FP8, "MXFP8": 1 + 1 / 32}
    config = config.get("quantization", config)
    cache = (
        "fp8" if str(config.get("kv_cache_quant_algo") or _scheme_of_cache(config)) == "FP8" else ""
    )
    name = str(config["quant_algo"])
    if name == "MIXED_PRECISION":
        own = {
            _plain(module): algorithms[str(layer["quant_algo"])]
            for module, layer in config["quantized_layers"].items()
        }
        return Scheme("mixed", lambda module: _of_module(module, own), cache)
    size = algorithms[name]
    return Scheme(name, lambda module: None if skipped(module) else size, cache)


def _of_module(module: str, own: Mapping[str, float]) -> float | None:
    """The size of a module, or of the first that is a part of it."""
    found = (size for name, size in own.items() if name == module or name.startswith(module + "."))
    return next(found, None)


def _compressed(config: Mapping[str, Any], skipped: Callable[[str], bool]) -> Scheme:
    groups = [group for group in config["config_groups"].values() if group.get("weights")]
    weights = groups[0]["weights"]
    bits, group = weights["num_bits"], weights.get("group_size")
    if weights["type"] == "float" and bits == 4:
        size = NVFP4 if group == 16 else MXFP4
    elif bits == 8:
        size = FP8
    else:
        size = _integers(bits, group or -1)
    name = f"{'NVFP' if size == NVFP4 else weights['type']}{bits}"
    cache = "fp8" if _scheme_of_cache(config) == "FP8" else ""
    return Scheme(name, lambda module: None if skipped(module) else size, cache)


def _scheme_of_cache(config: Mapping[str, Any]) -> str:
    found = config.get("kv_cache_scheme") or {}
    return "FP8" if found.get("num_bits") == 8 and found.get("type") == "float" else ""


def _skipped(config: Mapping[str, Any]) -> Callable[[str], bool]:
    """Whether a module is left out: lists have names, parts of names, globs and expressions."""
    keys = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers")
    inner = config.get("quantization")
    named = [
        str(name)
        for source in (config, inner if isinstance(inner, Mapping) else {})
        for key in keys
        for name in source.get(key) or ()
    ]
    expressions = [re.compile(name[3:]) for name in named if name.startswith("re:")]
    globs = [_plain(name) for name in named if not name.startswith("re:")]

    def skipped(module: str) -> bool:
        full = (module, f"model.{module}", f"model.language_model.{module}")
        return any(one.match(name) for one in expressions for name in full) or any(
            fnmatchcase(module, glob) or module.startswith(f"{glob}.") or _inside(glob, module)
            for glob in globs
        )

    return skipped


def _inside(glob: str, module: str) -> bool:
    """Whether ``glob`` is one or more whole words of ``module``: ``gate``, ``self_attn``."""
    return f".{glob.strip('*.')}." in f".{module}."


def _plain(name: str) -> str:
    """A name without what comes before ``layers``, which differs between checkpoints."""
    start = name.find("layers.")
    kept = name[start:] if start >= 0 else name
    # parts of one expert, and of matrices that vLLM joins
    return re.sub(r"(\.experts)\.\d+\..*$", r"\1", kept).replace(".mixer.experts", ".mlp.experts")


def weight_bytes(part: Part, of: Scheme, element: int) -> float:
    """Bytes of ``part``, whose elements have ``element`` bytes where they are not quantized."""
    size = of.bytes_of(part.module) if part.linear else None
    return part.elements * (element if size is None else size)
