"""A mixture of experts in bfloat16, and one whose experts are in NVFP4."""

from __future__ import annotations

from pathlib import Path

from imagefactory.verifying.models import exact, formats, modelopt
from imagefactory.verifying.models.dense import LAYERS
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import PLAIN


def write(folder: Path) -> Path:
    """Write the model into ``folder``."""
    PLAIN.write(folder, exact.mixture_config())
    weights = exact.body(mixture=True)
    tensors = {name: formats.bfloat16(values) for name, values in weights.items()}
    formats.save(folder / "model.safetensors", tensors)
    return folder


def write_nvfp4(folder: Path) -> Path:
    """Write the model with NVFP4 experts into ``folder``."""
    attention = [f"model.layers.{layer}.self_attn*" for layer in range(LAYERS)]
    router = f"model.layers.{LAYERS - 1}.mlp.gate"
    return modelopt.write_quantized(
        folder,
        exact.mixture_config(),
        exact.body(mixture=True),
        excluded=["lm_head", router, *attention],
    )


MODEL = TinyModel(
    name="moe",
    proves="routing: every expert is asked, and knows only what follows its own words",
    write=write,
    # without, FlashInfer compiles CUTLASS's grouped products, which took more than eight minutes
    gpu_args=("--moe-backend", "triton"),
    vllm=">=0.17",  # which has that option
)
QUANTIZED = TinyModel(
    name="moe-nvfp4",
    proves="routing to experts in NVFP4, beside attention in bfloat16",
    write=write_nvfp4,
    devices=("cuda",),
)
