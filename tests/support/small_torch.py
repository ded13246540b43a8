"""As much of torch and Triton as the probes of a GPU use, in numpy, on a GPU that is made up.

Its products are exact, and rounded as the hardware rounds them; what torch refuses is an error
here, too: operands on two devices, or in an order that its FP8 product does not take.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from imagefactory.verifying.models import formats

STORED: dict[str, Any] = {"bfloat16": np.float32, "float8_e4m3fn": np.float32}
E2M1 = np.array([*formats.E2M1, *-formats.E2M1], np.float64)


class Tensor(np.ndarray[Any, Any]):
    """An array with torch's methods, and the device and the type that torch would say it has."""

    place: str
    kind: str

    def __array_finalize__(self, made: Any) -> None:
        self.place = getattr(made, "place", "cpu")
        self.kind = getattr(made, "kind", "")

    def __array_ufunc__(  # type: ignore[override, unused-ignore]
        self, function: Any, method: str, *given: Any, **options: Any
    ) -> Any:
        tensors = [one for one in given if isinstance(one, Tensor)]
        (place,) = {one.place for one in tensors}
        plain = [one.view(np.ndarray) if isinstance(one, Tensor) else one for one in given]
        if options.get("out"):
            options["out"] = tuple(one.view(np.ndarray) for one in options["out"])
        if function is np.matmul and plain[0].dtype.kind == "f":
            plain = [one.astype(np.float64) for one in plain]
        found = getattr(function, method)(*plain, **options)
        kinds = {one.kind for one in tensors}
        rounded = kinds == {"bfloat16"} and found.dtype.kind == "f"
        return tensor(found, "bfloat16" if rounded else str(np.asarray(found).dtype), place)

    def to(self, *targets: str) -> Tensor:
        place = next((one for one in targets if one in ("cpu", "cuda")), self.place)
        kind = next((one for one in targets if one not in ("cpu", "cuda")), self.kind)
        return tensor(self.view(np.ndarray), kind, place)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def cuda(self) -> Tensor:
        return self.to("cuda")

    def double(self) -> Tensor:
        return self.to("float64")

    def contiguous(self) -> Tensor:
        return _as(np.ascontiguousarray(self.view(np.ndarray)), self.kind, self.place)

    def view(self, *sizes: Any) -> Any:  # type: ignore[override]
        if sizes == ("float4_e2m1fn_x2",):
            return _as(super().view(), sizes[0], self.place)
        if isinstance(sizes[0], str):
            return _as(super().view(np.dtype(sizes[0])), sizes[0], self.place)
        return self.reshape(*sizes) if isinstance(sizes[0], int) else super().view(*sizes)

    def permute(self, *axes: int) -> Any:
        return super().transpose(*axes)

    def transpose(self, *axes: int) -> Any:  # type: ignore[override]
        return self.swapaxes(*axes)

    def repeat_interleave(self, times: int, axis: int) -> Any:
        return self.repeat(times, axis)

    def norm(self) -> Any:
        return np.linalg.norm(self.view(np.ndarray))

    def numel(self) -> int:
        return self.size

    def square(self) -> Any:
        return self * self

    def sqrt(self) -> Any:
        return np.sqrt(self)

    def mean(self, axis: int, *, keepdim: bool) -> Any:  # type: ignore[override]
        mean: Any = super().mean  # releases of numpy type it in different ways
        return mean(axis, keepdims=keepdim)


def tensor(values: Any, kind: str = "", place: str = "cpu") -> Tensor:
    """The values, rounded to what ``kind`` holds."""
    made = np.asarray(values)
    if kind:
        made = made.astype(STORED.get(kind, kind))
    if kind == "bfloat16":
        bits = np.atleast_1d(made).view(np.uint32)
        nearest = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
        made = nearest.view(np.float32).reshape(made.shape, order="A")
    elif kind == "float8_e4m3fn":
        made = _e4m3(made)
    return _as(made, kind, place)


def _as(values: Any, kind: str, place: str) -> Tensor:
    made: Tensor = values.view(Tensor) if not isinstance(values, Tensor) else values
    made.kind, made.place = kind or str(made.dtype), place
    return made


def _e4m3(values: Any) -> Any:
    _, power = np.frexp(values)
    step = np.exp2(np.maximum(power - 4, -9).astype(np.float32))
    assert np.abs(values).max() <= 448
    return np.round(values / step) * step


def gpu(*, capability: tuple[int, int] = (12, 1), **cuda: Any) -> Any:
    """The module ``torch`` on a machine with a GPU of ``capability``."""

    def made(values: Any, device: str = "cpu", dtype: str = "") -> Tensor:
        return tensor(values, dtype, device)

    def shaped(function: Callable[..., Any]) -> Callable[..., Tensor]:
        def call(*sizes: Any, device: str = "cpu", dtype: str = "float32") -> Tensor:
            return tensor(function(*sizes), dtype, device)

        return call

    def randint(low: int, high: int, sizes: tuple[int, ...], *, generator: Any) -> Tensor:
        return tensor(generator.integers(low, high, sizes))

    def randn(*sizes: Any, generator: Any) -> Tensor:
        shape = sizes[0] if isinstance(sizes[0], tuple) else sizes
        return tensor(generator.standard_normal(shape), "float32")

    def where(test: Tensor, one: Any, other: Any) -> Tensor:
        return tensor(np.where(test.view(np.ndarray), one, other), "float32", test.place)

    names = ("bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2", "float32", "float64")
    return SimpleNamespace(
        **{name: name for name in (*names, "int32", "int64", "uint8")},
        __version__="2.11.0+cu130",
        version=SimpleNamespace(cuda="13.0"),
        tensor=made,
        zeros=shaped(lambda *sizes: np.zeros(sizes)),
        ones=shaped(lambda *sizes: np.ones(sizes)),
        empty=shaped(lambda *sizes: np.full(sizes, np.nan)),
        arange=shaped(np.arange),
        randint=randint,
        randn=randn,
        where=where,
        Generator=lambda: SimpleNamespace(manual_seed=np.random.default_rng),
        _scaled_mm=_scaled_product,
        cuda=SimpleNamespace(
            get_device_capability=lambda: capability, synchronize=lambda: None, **cuda
        ),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace())),
    )


def _scaled_product(
    one: Tensor,
    other: Tensor,
    *,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: str,
    use_fast_accum: bool = True,
) -> Tensor:
    assert {part.place for part in (one, other, scale_a, scale_b)} == {"cuda"}
    assert one.kind == other.kind
    assert one.flags.c_contiguous
    assert other.flags.f_contiguous
    if one.kind == "float8_e4m3fn":
        assert scale_a.kind == scale_b.kind == "float32" or scale_a.size == scale_b.size == 1
        exact = np.asarray(one, np.float64) @ np.asarray(other, np.float64)
        exact = exact * float(scale_a) * float(scale_b)
        bits = 1 << (11 if use_fast_accum else 14)  # of an accumulator
        fraction, power = np.frexp(exact)
        return tensor(np.ldexp(np.trunc(fraction * bits) / bits, power), out_dtype, "cuda")
    sides = [_unpacked(part, scales) for part, scales in ((one, scale_a), (other.T, scale_b))]
    return tensor(sides[0] @ sides[1].T, out_dtype, "cuda")


def _unpacked(packed: Tensor, scales: Tensor) -> Any:
    """A matrix of NVFP4, by the layout that cuBLAS documents for its block scales."""
    assert (packed.kind, scales.kind) == ("float4_e2m1fn_x2", "float8_e4m3fn")
    codes = np.stack([packed.view(np.ndarray) & 15, packed.view(np.ndarray) >> 4], axis=-1)
    rows, depth = packed.shape[0], packed.shape[1] * 2
    row, block = np.ogrid[:rows, : depth // 16]
    tile = row // 128 * -(-(depth // 16) // 4) + block // 4
    flat = scales.view(np.ndarray)[tile * 512 + row % 32 * 16 + row // 32 % 4 * 4 + block % 4]
    return E2M1[codes.reshape(rows, depth)] * np.repeat(flat, 16, axis=1)


class _Pointer:
    """The beginning of a tensor in memory: what is not of it cannot be read."""

    def __init__(self, memory: Any, index: Any = 0) -> None:
        self.memory, self.index = memory, index

    def __add__(self, more: Any) -> _Pointer:
        return _Pointer(self.memory, self.index + more)

    __radd__ = __add__


def triton(arch: int) -> dict[str, ModuleType]:
    """The modules of Triton that runs kernels one program after the other."""
    current = [0]

    def load(at: _Pointer, *, mask: Any, other: float) -> Any:
        found = np.full(np.shape(at.index), other)
        found[mask] = at.memory[at.index[mask]]
        return found

    def store(at: _Pointer, values: Any, *, mask: Any) -> None:
        at.memory[at.index[mask]] = values[mask]

    class Kernel:
        def __init__(self, function: Callable[..., None]) -> None:
            self.function = function

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
            def launch(*tensors: Any, **options: Any) -> Any:
                for one in tensors:
                    assert getattr(one, "place", "cuda") == "cuda"
                flat = [
                    _Pointer(one.view(np.ndarray).reshape(-1)) if isinstance(one, Tensor) else one
                    for one in tensors
                ]
                for number in range(*grid):
                    current[0] = number
                    self.function(*flat, **options)
                return SimpleNamespace(
                    metadata=SimpleNamespace(target=SimpleNamespace(arch=str(arch)))
                )

            return launch

    language = ModuleType("triton.language")
    vars(language).update(
        program_id=lambda _: current[0],
        arange=np.arange,
        zeros=np.zeros,
        float32=np.float32,
        constexpr=int,
        load=load,
        store=store,
        dot=lambda one, other, sums: one @ other + sums,
        sum=np.sum,
    )
    package = ModuleType("triton")
    vars(package).update(__version__="3.6.0", jit=Kernel, language=language)
    return {"triton": package, "triton.language": language}
