"""Whether each compiled extension of vLLM and of the extras loads beside torch.

Where there is no GPU driver, a stand-in for it is compiled, so that CUDA extensions can be loaded.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagefactory.verifying.probe_core import Context

LEAVES_TRACES = True
DRIVER = "libcuda.so.1"
#: Functions of the CUDA driver, as opposed to those of the CUDA runtime (`cudaMalloc`) and of
#: cuBLAS (`cublasCreate`).
DRIVER_SYMBOL = re.compile(r"\bU (cu[A-Z]\w*)")
#: Seconds for nm and gcc, which take much longer where they are emulated.
TIMEOUT = 600.0
REASON_TAIL = 2000


def facts(context: Context) -> dict[str, Any]:
    """Every extension, and module of an extra, with the reason if it does not load.

    And whether a stand-in was needed.
    """
    names = shared_objects(context)
    found: dict[str, Any] = {"stubbed": False, "stub_error": None}
    with tempfile.TemporaryDirectory() as folder:
        if cuda_of_torch() and not loads(DRIVER):
            paths = [context.site / name for name in names]
            found["stub_error"] = load_stub_driver(context, paths, Path(folder))
            found["stubbed"] = found["stub_error"] is None
        found["loaded"] = [
            {"path": name, "error": load_in_child(context.site / name)} for name in names
        ]
        found["imported"] = [
            {"extra": extra, "module": module, "error": import_in_child(module)}
            for extra, files in extras(context)
            for module in modules(files)
        ]
    return found


def extras(context: Context) -> Iterator[tuple[str, list[str]]]:
    """The wheels that were built beside vLLM, with the files of each; a missing one has none."""
    for row in context.manifest.get("wheels") or ():
        if row["group"] == "extras":
            try:
                distribution = importlib.metadata.distribution(row["name"])
            except importlib.metadata.PackageNotFoundError:
                yield row["name"], []
            else:
                yield row["name"], list(context.recorded(distribution))


def modules(files: list[str]) -> list[str]:
    """The modules and packages at the top of site-packages among ``files``."""
    found = {name.removesuffix("/__init__.py") for name in files if name.endswith("/__init__.py")}
    found |= {name.partition(".")[0] for name in files if name.endswith((".py", ".so"))}
    return sorted(name for name in found if name.isidentifier())


def cuda_of_torch() -> str | None:
    """The CUDA version of torch, which stays imported: extensions need its libraries."""
    try:
        import torch  # noqa: PLC0415

        cuda: str | None = torch.version.cuda
    except Exception:  # noqa: BLE001 - the torch theme reports it
        return None
    return cuda


def shared_objects(context: Context) -> list[str]:
    """The compiled extensions of vLLM and extras: those in their RECORD, and vLLM's that are there.

    Their names differ between versions, so they are read from the wheel and not known here. A wheel
    may bring one file for each Python (vLLM's DeepGEMM does); those that name another one are never
    imported by this one.
    """
    site = context.site
    names = {path.relative_to(site).as_posix() for path in (site / "vllm").rglob("*.so")}
    names |= {name for _, files in extras(context) for name in files if name.endswith(".so")}
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("RECORD") or ""
        if "vllm/" in text:  # to parse all of them takes seconds where it is emulated
            names |= {
                file
                for file in context.recorded(distribution)
                if file.startswith("vllm/") and file.endswith(".so")
            }
    return sorted(name for name in names if not for_another_python(name))


def for_another_python(name: str) -> bool:
    """Whether a file name such as ``_C.cpython-310-aarch64-linux-gnu.so`` is tagged for another
    CPython than this.
    """
    tag = re.search(r"\.cpython-(\d+)", name)
    return tag is not None and tag[1] != f"{sys.version_info.major}{sys.version_info.minor}"


def loads(library: str) -> bool:
    """Whether the dynamic linker finds and loads ``library``."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def load_stub_driver(context: Context, extensions: list[Path], folder: Path) -> str | None:
    """Compile a libcuda.so.1 with every driver function that ``extensions`` use, and load it.

    Returns the reason if that fails. The functions are never called here. The library is found
    again by its soname, so nothing is left in the image or on its paths.
    """
    compiler, nm = (shutil.which(name) for name in ("gcc", "nm"))
    if compiler is None or nm is None:
        return "no GPU driver, and no gcc to make a stand-in for it"
    symbols = driver_symbols(nm, [path for path in extensions if path.is_file()])
    source, library = folder / "stub.c", folder / DRIVER
    # 100 is CUDA_ERROR_NO_DEVICE.
    source.write_text(
        "".join(f"int {symbol}(void) {{ return 100; }}\n" for symbol in symbols), encoding="ascii"
    )
    options = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{DRIVER}"]
    made = context.run([compiler, *options, "-o", str(library), str(source)], timeout=TIMEOUT)
    if made["code"] != 0:
        return f"gcc could not make a stand-in for the GPU driver: {made['output']}"
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return None


def driver_symbols(nm: str, paths: list[Path]) -> list[str]:
    """The driver functions that the libraries leave undefined, sorted."""
    listing = subprocess.run(
        [nm, "-D", "--undefined-only", *map(str, paths)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT,
        check=False,
    ).stdout
    return sorted(set(DRIVER_SYMBOL.findall(listing)))


def load_in_child(path: Path) -> str | None:
    """Load the library in a child process; the reason if it does not load.

    This resolves every symbol, unlike an import, which stops at the first error.
    """
    return in_child(lambda: ctypes.CDLL(str(path)))


def import_in_child(module: str) -> str | None:
    """Import the module in a child process; the reason if that fails."""
    return in_child(lambda: importlib.import_module(module))


def in_child(action: Callable[[], object]) -> str | None:
    """Do ``action`` in a child process; the reason if it fails.

    A child, because extensions register the same names (an image has one for each instruction set)
    and a broken one may end the process. A forked one, because importing torch again for each takes
    minutes where it is emulated.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            action()
            message = b"loaded"
        except BaseException as error:  # noqa: BLE001 - the child must not return
            message = (str(error) or type(error).__name__).encode()
        os.write(writer, message[-REASON_TAIL:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if text == "loaded":
        return None
    return text or f"loading it ended the process (exit {os.waitstatus_to_exitcode(status)})"
