"""FP8: E4M3 weights with one scale a matrix; activations are scaled at run time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from imagefactory.verifying.models import exact, formats
from imagefactory.verifying.models.formats import Tensor
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import PLAIN

#: The scale of each kind of matrix; those that vLLM joins share one.
SCALES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), 2.0**-4),
    "o_proj": 2.0**-5,
    **dict.fromkeys(("gate_proj", "up_proj"), 2.0**-6),
    "down_proj": 2.0**-3,
}


def write(folder: Path) -> Path:
    """Write the model into ``folder``."""
    quantization = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "ignored_layers": ["lm_head"],
    }
    PLAIN.write(folder, exact.config(quantization_config=quantization))
    tensors: dict[str, Tensor] = {}
    for name, values in exact.body().items():
        if not exact.linear(name):
            tensors[name] = formats.bfloat16(values)
            continue
        scale = SCALES[name.split(".")[-2]]
        tensors[name] = formats.e4m3(values / np.float32(scale))
        tensors[f"{name}_scale"] = formats.scale_of(scale)
    formats.save(folder / "model.safetensors", tensors)
    return folder


MODEL = TinyModel(
    name="fp8",
    proves="E4M3 weights with scales, and FP8 matrix products or their emulation",
    write=write,
    devices=("cuda",),
)
