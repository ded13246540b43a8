"""A Triton kernel, compiled for this GPU and run: tiles, masks, a product and a reduction."""

from __future__ import annotations

from typing import Any

FAULTS = {"triton": ("no-mask", "wrong-arch")}
row_sums: Any = None

try:
    import triton
    import triton.language as tl
except ImportError as error:
    MISSING = f"{type(error).__name__}: {error}"
else:
    MISSING = ""

    @triton.jit  # type: ignore[untyped-decorator]
    def row_sums(  # type: ignore[no-untyped-def]
        left, right, out, rows, columns, depth, masked: tl.constexpr, tile: tl.constexpr
    ):
        """The sums of the rows of ``left @ right``, whose sizes need not fill tiles."""
        row = tl.program_id(0) * tile + tl.arange(0, tile)
        total = tl.zeros((tile,), tl.float32)
        for first in range(0, columns, tile):
            column = first + tl.arange(0, tile)
            sums = tl.zeros((tile, tile), tl.float32)
            for begin in range(0, depth, tile):
                inner = begin + tl.arange(0, tile)
                one = (row[:, None] < rows) & (inner[None, :] < depth)
                other = (inner[:, None] < depth) & (column[None, :] < columns)
                missing = 0.0 if masked else 1.0
                a = tl.load(left + row[:, None] * depth + inner[None, :], mask=one, other=missing)
                b = tl.load(
                    right + inner[:, None] * columns + column[None, :], mask=other, other=missing
                )
                sums = tl.dot(a, b, sums)
            total += tl.sum(sums, 1)
        tl.store(out + row, total, mask=row < rows)


def run(torch: Any, plant: str) -> dict[str, Any]:
    """Compile it, run it, and compare its sums, which are exact."""
    if MISSING:
        return {"missing": MISSING}
    rows, columns, depth = 100, 90, 72
    generator = torch.Generator().manual_seed(1)
    left = torch.randint(-4, 5, (rows, depth), generator=generator)
    right = torch.randint(-4, 5, (depth, columns), generator=generator)
    out = torch.empty(rows, device="cuda")
    compiled = row_sums[(-(-rows // 32),)](
        left.to("cuda", torch.bfloat16),
        right.to("cuda", torch.bfloat16),
        out,
        rows,
        columns,
        depth,
        masked=plant != "no-mask",
        tile=32,
    )
    wrong = out.cpu().double() != (left @ right).sum(1).double()
    return {
        "version": triton.__version__,
        "arch": 0 if plant == "wrong-arch" else int(compiled.metadata.target.arch),
        "capability": list(torch.cuda.get_device_capability()),
        "elements": rows,
        "wrong": int(wrong.sum()),
    }


PROBES = {"triton": run}
