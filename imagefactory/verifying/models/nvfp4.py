"""NVFP4 as compressed-tensors stores it: weights only, the matrix's scale as its inverse."""

from __future__ import annotations

from pathlib import Path

from imagefactory.verifying.models import exact, formats
from imagefactory.verifying.models.formats import BLOCK, Tensor
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import PLAIN

#: The scale of each kind of matrix; those that vLLM joins share one.
SCALES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), 2.0**-8),
    "o_proj": 2.0**-7,
    **dict.fromkeys(("gate_proj", "up_proj"), 2.0**-8),
    "down_proj": 2.0**-6,
}


def write(folder: Path) -> Path:
    """Write the model into ``folder``."""
    weights = {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": BLOCK,
        "symmetric": True,
        "dynamic": False,
    }
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }
    PLAIN.write(folder, exact.config(quantization_config=quantization))
    tensors: dict[str, Tensor] = {}
    for name, values in exact.body().items():
        if not exact.linear(name):
            tensors[name] = formats.bfloat16(values)
            continue
        scale = SCALES[name.split(".")[-2]]
        tensors[f"{name}_packed"], tensors[f"{name}_scale"] = formats.nvfp4(values, scale)
        tensors[f"{name}_global_scale"] = formats.scale_of(1 / scale, 1)
    formats.save(folder / "model.safetensors", tensors)
    return folder


MODEL = TinyModel(
    name="nvfp4",
    proves="NVFP4 weights in the layout of compressed-tensors: order of nibbles, block scales",
    write=write,
    devices=("cuda",),
)
