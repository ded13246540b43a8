"""The dense model in bfloat16: half precision has to be enough for it."""

from __future__ import annotations

from pathlib import Path

from imagefactory.verifying.models import exact, formats
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import PLAIN


def write(folder: Path) -> Path:
    """Write the model into ``folder``."""
    PLAIN.write(folder, exact.config())
    tensors = {name: formats.bfloat16(values) for name, values in exact.body().items()}
    formats.save(folder / "model.safetensors", tensors)
    return folder


MODEL = TinyModel(
    name="dense-bf16",
    proves="attention, MLP and norms in bfloat16",
    write=write,
)
