"""Matrix products in bf16, FP8 and FP4, against references in integers and float64.

The exact product has small integers, whose sums every kernel must get exactly, whatever its order
of addition: a single wrong element is a fault. The random one has a tolerance, and finds what
integers hide, such as a scale that is applied twice.
"""

from __future__ import annotations

from typing import Any

FAULTS = dict.fromkeys(("gemm-bf16", "gemm-fp8", "gemm-fp4"), ("transposed", "truncated"))
#: Rows, columns and depth: a prefill, a decode, and one that fills no tile.
SHAPES = ((512, 512, 1024), (1, 512, 1024), (17, 80, 128))
#: The values that E2M1 holds, by code.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def bf16(torch: Any, plant: str) -> dict[str, Any]:
    """torch.matmul in bf16, without sums in reduced precision."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def product(left: Any, right: Any) -> Any:
        return left.to("cuda", torch.bfloat16) @ right.to("cuda", torch.bfloat16)

    random = _random(torch, torch.bfloat16)
    return _compared(torch, plant, product, largest=8, random=random)


def fp8(torch: Any, plant: str) -> dict[str, Any]:
    """torch._scaled_mm in E4M3 with a scale for each operand."""
    if torch.cuda.get_device_capability() < (8, 9):
        return {"unsupported": _has_none(torch, "FP8")}

    def product(left: Any, right: Any) -> Any:
        one, other = (_times(torch, part, 16) for part in (left, right.T.contiguous()))
        scale = torch.tensor(1 / 16, device="cuda")
        return torch._scaled_mm(  # noqa: SLF001 - the only FP8 product that torch has
            one.to("cuda", torch.float8_e4m3fn),
            other.to("cuda", torch.float8_e4m3fn).T,
            scale_a=scale,
            scale_b=scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=False,
        )

    random = _random(torch, torch.float8_e4m3fn)
    # sums below 2^13: Hopper adds FP8 products with that many bits
    return _compared(torch, plant, product, largest=4, random=random)


def fp4(torch: Any, plant: str) -> dict[str, Any]:
    """torch._scaled_mm in NVFP4: two E2M1 values a byte, an E4M3 scale for every 16 of them."""
    if torch.cuda.get_device_capability() < (10, 0):
        return {"unsupported": _has_none(torch, "FP4")}
    values = torch.tensor(E2M1, dtype=torch.float64)
    found: dict[str, Any] = {"exact": []}
    for rows, columns, depth in ((256, 512, 1024), (128, 128, 256)):
        generator = torch.Generator().manual_seed(rows)
        sides = []
        for size in (rows, columns):
            codes = torch.randint(0, 16, (size, depth), generator=generator)
            scales = 2.0 ** torch.randint(-1, 2, (size, depth // 16), generator=generator)
            signed = values[codes % 8] * torch.where(codes < 8, 1.0, -1.0)
            exact = signed * scales.repeat_interleave(16, 1)
            packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8).cuda()
            blocked = _swizzled(torch, scales.to(torch.float8_e4m3fn)).cuda()
            sides.append((exact, packed.view(torch.float4_e2m1fn_x2), blocked))
        (left, one, one_scales), (right, other, other_scales) = sides
        got = torch._scaled_mm(  # noqa: SLF001 - the only FP4 product that torch has
            one, other.T, scale_a=one_scales, scale_b=other_scales, out_dtype=torch.bfloat16
        )
        found["exact"].append(_exact(torch, plant, got.cpu(), left @ right.T))
    return found


def _times(torch: Any, tensor: Any, factor: int) -> Any:
    return tensor.to(torch.float32) * factor


def _random(torch: Any, kind: Any) -> tuple[Any, Any]:
    """Two operands, rounded to ``kind``, as float32; FP8's are its values by 16."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for shape in ((256, 1024), (1024, 256)):
        full = torch.randn(shape, generator=generator)
        by = 16 if kind is torch.float8_e4m3fn else 1
        made.append((full * by).to(kind).to(torch.float32) / by)
    return made[0], made[1]


def _compared(
    torch: Any, plant: str, product: Any, *, largest: int, random: tuple[Any, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {"exact": []}
    for rows, columns, depth in SHAPES:
        if largest < 8:
            rows, depth = max(rows, 16), min(depth, 256)  # noqa: PLW2901
        generator = torch.Generator().manual_seed(rows)
        left = torch.randint(-largest, largest + 1, (rows, depth), generator=generator)
        right = torch.randint(-largest, largest + 1, (depth, columns), generator=generator)
        got = product(left, right).cpu()
        found["exact"].append(_exact(torch, plant, got, left.double() @ right.double()))
    left, right = random
    got, expected = product(left, right).cpu().double(), left.double() @ right.double()
    if plant == "transposed":
        got = got.T
    found["error"] = float((got - expected).norm() / expected.norm())
    return found


def _exact(torch: Any, plant: str, got: Any, exact: Any) -> dict[str, Any]:
    """How many elements are not the bf16 that is nearest to the exact sum."""
    if plant == "transposed":
        got = got.T.reshape(got.shape)
    if plant == "truncated":
        bits = exact.to(torch.float32).view(torch.int32) & -65536
        got = bits.view(torch.float32).to(torch.bfloat16)
    wrong = got != exact.to(torch.float32).to(torch.bfloat16)
    return {"shape": list(got.shape), "elements": got.numel(), "wrong": int(wrong.sum())}


def _swizzled(torch: Any, scales: Any) -> Any:
    """Block scales in the order of cuBLAS: tiles of 128 by 4, in each 32 rows of 4 times 4."""
    rows, columns = (-(-size // tile) for size, tile in zip(scales.shape, (128, 4), strict=True))
    padded = torch.zeros(rows * 128, columns * 4, dtype=torch.float32)
    padded[: scales.shape[0], : scales.shape[1]] = scales.to(torch.float32)
    tiles = padded.view(rows, 128, columns, 4).permute(0, 2, 1, 3).reshape(-1, 4, 32, 4)
    return tiles.transpose(1, 2).reshape(-1).to(torch.float8_e4m3fn)


def _has_none(torch: Any, kind: str) -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor} has no {kind} instructions"


PROBES = {"gemm-bf16": bf16, "gemm-fp8": fp8, "gemm-fp4": fp4}
