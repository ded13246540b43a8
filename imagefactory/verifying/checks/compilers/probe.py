"""Whether the compilers that the environment names are there and compile for the image's GPU."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagefactory.verifying.probe_core import Context

#: Environment variables that name the image's compilers.
COMPILERS = ("CUDA_HOME", "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
#: Seconds for one compilation, which takes minutes where the image's platform is emulated.
TIMEOUT = 1800.0
PTX = ".version 8.8\n.target %s\n.address_size 64\n.visible .entry k()\n{\n\tret;\n}\n"
#: Includes what kernels that are compiled at run time include, and converts to FP4, which a target
#: without its suffix (plain sm_121) has no instruction for.
KERNEL = """\
#include <cublasLt.h>
#include <cuda_fp4.h>
#include <curand_kernel.h>
#include <nvrtc.h>
__global__ void k(const float2* in, __nv_fp4x2_storage_t* out) {
  out[threadIdx.x] = __nv_cvt_float2_to_fp4x2(in[threadIdx.x], __NV_E2M1, cudaRoundNearest);
}
"""


def facts(context: Context) -> dict[str, Any]:
    """How ptxas and nvcc end; nothing if the image carries no toolchain."""
    if not context.manifest.get("toolchain") and not context.manifest.get("cuda_home"):
        return {}
    named = {name: os.environ.get(name, "") for name in COMPILERS}
    architectures = os.environ.get("TORCH_CUDA_ARCH_LIST", "12.1a").replace(";", " ").split()
    architecture = "sm_" + architectures[0].replace(".", "")
    code = f"arch={architecture.replace('sm_', 'compute_')},code={architecture}"
    nvcc = str(Path(named["CUDA_HOME"], "bin", "nvcc"))
    ptxas = named["TRITON_PTXAS_PATH"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty.ptx").write_text(PTX % architecture, encoding="ascii")
        (folder / "k.cu").write_text(KERNEL, encoding="ascii")
        # Emulated, the host's half of the work takes half a minute, and only repeats what
        # comparing the files of the compilers says.
        result = "-cubin" if context.files_judged else "-c"
        compile_kernel = [nvcc, result, "k.cu", "-o", "k.o", "--keep", f"-gencode={code}"]
        assemble = [ptxas, f"-arch={architecture}", "empty.ptx", "-o", "empty.cubin"]
        compiled = context.run(compile_kernel, cwd=folder, timeout=TIMEOUT)
        made = "".join(path.read_text(errors="replace") for path in folder.glob("k*.ptx"))
        return {
            "architecture": architecture,
            "missing": [
                f"{variable}={path}"
                for variable, path in named.items()
                if not path or not Path(path).exists()
            ],
            "ptxas": context.run(assemble, cwd=folder, timeout=TIMEOUT),
            "nvcc": compiled,
            "hardware_conversions": len(re.findall(r"cvt\.[a-z.]*e2m1x2", made)),
        }
