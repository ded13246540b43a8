"""Multiplies a small NVFP4 layer with vLLM's emulation backend, and compares with the definition.

What runs is vLLM's own preparation of a layer and its own arithmetic, on numpy instead of torch.
The layer is as the loaders of ModelOpt and compressed-tensors leave it: packed values, block scales
in rows, the weights' global scale as a factor, the input's as a divisor. A weight is
value x block scale x global scale; nothing else is right.
"""

import ast
import enum
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import proofkit

try:
    import numpy as np
except ImportError:
    proofkit.end(proofkit.INCONCLUSIVE, "needs numpy")

ARITHMETIC = "layers/quantization/utils/nvfp4_emulation_utils.py"
BY_BACKEND = "layers/quantization/utils/nvfp4_utils.py"
BY_KERNEL = "kernels/linear/nvfp4/emulation.py"
#: E4M3 has no type in numpy; every value of it is one of float16.
FP8: np.dtype[Any] = np.dtype("float16")
MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
BLOCK = 16
#: Rows and columns of the layers that are multiplied.
SHAPES = ((128, 64), (256, 128))
#: vLLM's types by the name that torch has for them.
TYPES = {"uint8": "uint8", "float32": "float32", "bool": "bool", "long": "int64", "int64": "int64"}


def e4m3(values: Any) -> Any:
    """The nearest values of E4M3, ties to even."""
    exponent = np.maximum(np.frexp(values)[1] - 1, -6)
    step = np.exp2(exponent - 3.0)
    return np.clip(np.round(values / step) * step, -448, 448)


class Tensor(np.ndarray[Any, Any]):
    """As much of a torch tensor as the emulation asks for."""

    device, is_cuda, data = "cpu", False, property(lambda self: self)

    def to(self, dtype: Any = None, device: Any = None, non_blocking: bool = False) -> "Tensor":
        if dtype is None or isinstance(dtype, str):
            return self
        return tensor(e4m3(np.asarray(self, np.float64)) if dtype == FP8 else self, dtype)

    def view(self, what: Any, *more: int) -> "Tensor":  # type: ignore[override]
        if isinstance(what, np.dtype) and not more:
            if what != self.dtype:
                raise proofkit.Inconclusive(f"{self.dtype} is read as {what}")
            return self
        return self.reshape(what, *more)  # type: ignore[no-any-return]

    def unsqueeze(self, axis: int) -> Any:
        return np.expand_dims(self, axis)

    def size(self, axis: int) -> int:  # type: ignore[override]
        return int(self.shape[axis])

    def t(self) -> Any:
        return self.T


def tensor(values: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of ``values``."""
    return np.array(values, dtype).view(Tensor)


def torch() -> SimpleNamespace:
    """The names of torch that the emulation uses."""

    def most(x: Any, dim: int | None = None, keepdim: bool = False) -> tuple[Any]:
        return (np.max(x, axis=dim, keepdims=keepdim),)

    def clamp(x: Any, *bounds: float, **named: float) -> Any:
        return np.clip(x, *(bounds or (named.get("min"), named.get("max"))))

    return SimpleNamespace(
        Tensor=Tensor,
        tensor=tensor,
        max=most,
        clamp=clamp,
        abs=np.abs,
        sign=np.sign,
        reshape=np.reshape,
        permute=np.transpose,
        matmul=np.matmul,
        where=lambda condition, a, b: tensor(np.where(condition, a, b)),
        stack=lambda parts, dim=0: tensor(np.stack(parts, axis=dim)),
        nn=proofkit.mocked("nn"),
        dtype=np.dtype,
        float8_e4m3fn=FP8,
        **{name: np.dtype(dtype) for name, dtype in TYPES.items()},
    )


def run(path: Path, space: proofkit.Space, wanted: Collection[str] = ()) -> proofkit.Space:
    """Run a module's plain definitions (no decorators that compile), or only ``wanted``."""
    source = proofkit.Source(path)
    nodes = [
        node
        for name, node in source.definitions.items()
        if (name in wanted if wanted else name != "__all__")
        and not (isinstance(node, ast.FunctionDef) and node.decorator_list)
    ]
    return source.run(nodes, space)


def arithmetic(folder: Path) -> proofkit.Space:
    """The functions of the emulation, on numpy."""
    scalar_types = proofkit.mocked("scalar_types")
    scalar_types.float4_e2m1f.max = lambda: 6.0
    platform = proofkit.mocked("current_platform")
    platform.is_cuda_alike = platform.is_cuda = lambda: False
    space = {name: proofkit.mocked(name) for name in ("direct_register_custom_op", "triton", "tl")}
    space |= {"torch": torch(), "SimpleNamespace": SimpleNamespace}
    space |= {"scalar_types": scalar_types, "current_platform": platform}
    return run(folder / ARITHMETIC, space)


def multiply(folder: Path, layer: SimpleNamespace, x: Tensor) -> Any:
    """What vLLM makes of ``x`` and ``layer``: it prepares the layer, then applies it."""
    space = arithmetic(folder)
    if (folder / BY_KERNEL).is_file():
        name = "EmulationNvFp4LinearKernel"
        kernel = run(folder / BY_KERNEL, {**space, "NvFp4LinearKernel": object}, [name])[name]()
        kernel.process_weights_after_loading(layer)
        return kernel.apply_weights(layer, x)
    prepare, apply = "convert_to_nvfp4_linear_kernel_format", "apply_nvfp4_linear"
    space = {**space, "Enum": enum.Enum, "logger": proofkit.mocked("logger")}
    run(folder / BY_BACKEND, space, ["NvFp4LinearBackend", prepare, apply])
    backend = space["NvFp4LinearBackend"].EMULATION
    space[prepare](backend, layer)
    return space[apply](backend=backend, layer=layer, x=x)


def product(tree: Path, rows: int, columns: int) -> tuple[float, float]:
    """A layer's product: its size, compared with the right one, and how far off it is (degrees)."""
    draw = np.random.default_rng(7)
    codes = draw.integers(0, 16, (rows, columns), dtype=np.uint8)
    scales = e4m3(draw.uniform(16, 440, (rows, columns // BLOCK)))
    x = draw.standard_normal((8, columns)).astype(np.float32)
    whole, into = np.float32(1.3e-4), np.float32(np.abs(x).max() / (448 * 6))
    layer = SimpleNamespace(
        weight=tensor(codes[:, ::2] | codes[:, 1::2] << 4, np.uint8),
        weight_scale=tensor(scales, FP8),
        weight_global_scale=tensor(whole),
        input_global_scale=tensor(into),
        input_global_scale_inv=tensor(np.float32(1 / into)),
        alpha=tensor(whole * into),
        output_size_per_partition=rows,
        input_size_per_partition=columns,
    )
    values = MAGNITUDES[codes & 7] * np.where(codes & 8, -1, 1)
    right = x @ (values * np.repeat(scales, BLOCK, axis=1) * whole).T
    got = np.asarray(multiply(tree / "vllm/model_executor", layer, tensor(x)), np.float64)
    # the input is rounded to NVFP4 as well, which turns the outcome by a few degrees at most
    cosine = (got * right).sum() / np.linalg.norm(got) / np.linalg.norm(right)
    turn = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    return float((got * right).sum() / (right * right).sum()), float(turn)


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a product of another size or direction than the right one."""
    for rows, columns in SHAPES:
        size, turn = product(tree, rows, columns)
        good = 0.97 < size < 1.03 and turn < 8
        seen = f"{size:.3g} times as large as the right one, and {turn:.0f} degrees off"
        if not good:
            return proofkit.Verdict(proofkit.SYMPTOM, f"the emulated product is {seen}")
    return proofkit.Verdict(proofkit.RIGHT, f"right: the emulated product is {seen}")


if __name__ == "__main__":
    proofkit.main(judge)
