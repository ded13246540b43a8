"""Multiplies a small NVFP4 layer with vLLM's emulation backend and holds the outcome against NVFP4's definition.

    python proof.py TREE

What runs is vLLM's own preparation of a layer and its own arithmetic, on numpy in the place of torch. The layer is as the
loaders of ModelOpt and compressed-tensors leave it: packed values, block scales in rows, the weights' global scale as a
factor, the input's as a divisor. A weight is value x block scale x global scale; nothing else is right.
"""

import ast
import enum
import pathlib
import sys
import types
from unittest import mock

try:
    import numpy as np
except ImportError:
    print("cannot be told: needs numpy")
    sys.exit(3)

TREE = pathlib.Path(sys.argv[1], "vllm/model_executor")
ARITHMETIC = TREE / "layers/quantization/utils/nvfp4_emulation_utils.py"
BY_BACKEND = TREE / "layers/quantization/utils/nvfp4_utils.py"
BY_KERNEL = TREE / "kernels/linear/nvfp4/emulation.py"
#: E4M3 has no type in numpy; every value of it is one of float16.
FP8 = np.dtype("float16")
MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
ROWS, COLUMNS, BLOCK = 128, 64, 16


def e4m3(values):
    """The nearest values of E4M3, ties to even."""
    exponent = np.maximum(np.frexp(values)[1] - 1, -6)
    step = np.exp2(exponent - 3.0)
    return np.clip(np.round(values / step) * step, -448, 448)


class Tensor(np.ndarray):
    """As much of a torch tensor as the emulation asks for."""

    device, is_cuda, data = "cpu", False, property(lambda self: self)

    def to(self, dtype=None, device=None, non_blocking=False):
        if dtype is None or isinstance(dtype, str):
            return self
        return tensor(e4m3(np.asarray(self, np.float64)) if dtype == FP8 else self, dtype)

    def view(self, what, *more):
        if isinstance(what, np.dtype) and not more:
            if what != self.dtype:
                raise Unknown(f"{self.dtype} is read as {what}")
            return self
        return self.reshape(what, *more)

    def unsqueeze(self, axis):
        return np.expand_dims(self, axis)

    def size(self, axis):
        return self.shape[axis]

    def t(self):
        return self.T


def tensor(values, dtype=None, device=None):
    """A tensor of ``values``."""
    return np.array(values, dtype).view(Tensor)


def torch():
    """The names of torch that the emulation uses."""

    def most(x, dim=None, keepdim=False):
        return (np.max(x, axis=dim, keepdims=keepdim),)

    def clamp(x, min=None, max=None):
        return np.clip(x, min, max)

    found = types.SimpleNamespace(
        Tensor=Tensor, tensor=tensor, max=most, clamp=clamp, abs=np.abs, sign=np.sign, reshape=np.reshape, float8_e4m3fn=FP8
    )
    found.permute, found.matmul = np.transpose, np.matmul
    found.where = lambda condition, a, b: np.where(condition, a, b).view(Tensor)
    found.stack = lambda parts, dim=0: np.stack(parts, axis=dim).view(Tensor)
    for name, dtype in {"uint8": "uint8", "float32": "float32", "bool": "bool", "long": "int64", "int64": "int64"}.items():
        setattr(found, name, np.dtype(dtype))
    found.dtype, found.nn = np.dtype, mock.MagicMock()
    return found


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


def run(path, space, wanted=None):
    """Execute a module's plain definitions (no decorators that compile), or only ``wanted``, in ``space``."""
    for node in ast.parse(path.read_text()).body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        compiled = isinstance(node, ast.FunctionDef) and node.decorator_list
        if not names or compiled or names == ["__all__"] or (wanted and not set(names) & set(wanted)):
            continue
        future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
        exec(compile(ast.fix_missing_locations(ast.Module([future, node], [])), str(path), "exec"), space)
    return space


def arithmetic():
    """The functions of the emulation, on numpy."""
    scalar_types = mock.MagicMock()
    scalar_types.float4_e2m1f.max = lambda: 6.0
    platform = mock.MagicMock()
    platform.is_cuda_alike = platform.is_cuda = lambda: False
    space = {"torch": torch(), "scalar_types": scalar_types, "current_platform": platform, "SimpleNamespace": types.SimpleNamespace}
    for name in ("direct_register_custom_op", "triton", "tl"):
        space[name] = mock.MagicMock()
    return run(ARITHMETIC, space)


def multiply(layer, x):
    """What vLLM makes of ``x`` and ``layer``: it prepares the layer, then applies it."""
    space = arithmetic()
    if BY_KERNEL.is_file():
        kernel = run(BY_KERNEL, {**space, "NvFp4LinearKernel": object}, ["EmulationNvFp4LinearKernel"])
        kernel = kernel["EmulationNvFp4LinearKernel"]()
        kernel.process_weights_after_loading(layer)
        return kernel.apply_weights(layer, x)
    names = ["NvFp4LinearBackend", "convert_to_nvfp4_linear_kernel_format", "apply_nvfp4_linear"]
    space = run(BY_BACKEND, {**space, "Enum": enum.Enum, "logger": mock.MagicMock()}, names)
    backend = space["NvFp4LinearBackend"].EMULATION
    space["convert_to_nvfp4_linear_kernel_format"](backend, layer)
    return space["apply_nvfp4_linear"](backend=backend, layer=layer, x=x)


def main():
    """Exit 0, 1 or 3, with one sentence."""
    draw = np.random.default_rng(7)
    codes = draw.integers(0, 16, (ROWS, COLUMNS), dtype=np.uint8)
    scales = e4m3(draw.uniform(16, 440, (ROWS, COLUMNS // BLOCK)))
    x = draw.standard_normal((8, COLUMNS)).astype(np.float32)
    whole, into = np.float32(1.3e-4), np.float32(np.abs(x).max() / (448 * 6))
    layer = types.SimpleNamespace(
        weight=tensor(codes[:, ::2] | codes[:, 1::2] << 4, np.uint8),
        weight_scale=tensor(scales, FP8),
        weight_global_scale=tensor(whole),
        input_global_scale=tensor(into),
        input_global_scale_inv=tensor(np.float32(1 / into)),
        alpha=tensor(whole * into),
        output_size_per_partition=ROWS,
        input_size_per_partition=COLUMNS,
    )
    values = MAGNITUDES[codes & 7] * np.where(codes & 8, -1, 1)
    right = x @ (values * np.repeat(scales, BLOCK, axis=1) * whole).T
    got = np.asarray(multiply(layer, tensor(x)), np.float64)
    # the input is rounded to NVFP4 as well, which turns the outcome by a few degrees at most
    turn = np.degrees(np.arccos(np.clip((got * right).sum() / np.linalg.norm(got) / np.linalg.norm(right), -1, 1)))
    size = np.linalg.norm(got) / np.linalg.norm(right)
    seen = f"the emulated product is {size:.3g} times as large as the right one, and {turn:.0f} degrees off"
    good = 0.9 < size < 1.1 and turn < 12
    print(seen if not good else f"right: {seen}")
    return 0 if good else 1


try:
    code = main()
except Exception as reason:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {reason!r}")
    code = 3
sys.exit(code)
