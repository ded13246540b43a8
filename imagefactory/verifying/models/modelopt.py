"""NVFP4 as ModelOpt stores it: with scales of the activations, and a list of what is excluded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from imagefactory.verifying.models import exact, formats, nvfp4
from imagefactory.verifying.models.dense import Weights
from imagefactory.verifying.models.formats import BLOCK, Tensor
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import PLAIN

#: The scale of the activations: the largest is 12, and their block scales are E4M3.
INPUT_SCALE = 2.0**-6


def write(folder: Path) -> Path:
    """Write the model into ``folder``."""
    return write_quantized(folder, exact.config(), exact.body(), excluded=["lm_head"])


def write_quantized(
    folder: Path, config: Mapping[str, Any], weights: Weights, *, excluded: Sequence[str]
) -> Path:
    """Write a model of these weights, all linear layers but those ``excluded`` in NVFP4.

    ``excluded`` are modules, or patterns that end with ``*``.
    """
    four_bits = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": BLOCK}
    producer = {"name": "modelopt", "version": "0.39.0"}
    in_config = {
        "config_groups": {
            "group_0": {
                "input_activations": four_bits,
                "weights": four_bits,
                "targets": ["Linear"],
            }
        },
        "ignore": list(excluded),
        "quant_algo": "NVFP4",
        "producer": producer,
        "quant_method": "modelopt",
    }
    own = {
        "producer": producer,
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": BLOCK,
            "exclude_modules": list(excluded),
        },
    }
    PLAIN.write(folder, {**config, "quantization_config": in_config})
    (folder / "hf_quant_config.json").write_text(json.dumps(own, indent=1, sort_keys=True) + "\n")
    tensors: dict[str, Tensor] = {}
    for name, values in weights.items():
        module, _, _ = name.rpartition(".")
        kept = any(fnmatchcase(module, pattern) for pattern in excluded)
        if kept or not exact.linear(name):
            tensors[name] = formats.bfloat16(values)
            continue
        scale = nvfp4.SCALES[name.split(".")[-2]]
        tensors[name], tensors[f"{name}_scale"] = formats.nvfp4(values, scale)
        tensors[f"{name}_scale_2"] = formats.scale_of(scale)
        tensors[f"{module}.input_scale"] = formats.scale_of(INPUT_SCALE)
    formats.save(folder / "model.safetensors", tensors)
    return folder


MODEL = TinyModel(
    name="nvfp4-modelopt",
    proves="NVFP4 in ModelOpt's layout: weights, and activations where the device has FP4",
    write=write,
    devices=("cuda",),
)
