"""Other ways to build an image from the same wheels: common Dockerfiles, baked on the same base.

``plain`` runs `pip install` in the image itself, keeping whatever pip leaves behind; it is emulated
for a foreign architecture. ``single`` installs with uv in a builder stage, and then makes a single
layer with `COPY --from=builder /opt/venv`.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uv
from measure import REPOSITORY, must

from imagefactory.errors import SetupError, fail
from imagefactory.inbuild.layer import SITE
from imagefactory.locking.requirements import requirements_txt
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform

#: The file that a one-line change of a patch affects, with every build method.
CHANGED = "vllm/imagefactory_bench.py"

_SETUP = """--mount=type=bind,from=tools,target=/tools \\
    --mount=type=bind,from=wheels,target=/wheels \\
    --mount=type=secret,id=ca,required=false \\
    if [ -s /run/secrets/ca ]; then \\
      export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca; fi \\
 && """
_PIP = "PYTHONPATH=/tools/pip /opt/venv/bin/python -m pip --disable-pip-version-check"
_LOCKED = "--require-hashes --no-deps --only-binary :all: --find-links /wheels"
_UV = (
    "/tools/uv pip install --python /opt/venv/bin/python "
    "--index-strategy unsafe-best-match --link-mode copy"
)


def _dockerfile(site: str, *, toolchain: bool) -> str:
    args = (
        "ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL UV_DEFAULT_INDEX UV_INDEX\nCOPY *.txt /requirements/"
    )
    names = ["wheels", *["toolchain"] * toolchain]
    where = {"wheels": "", "toolchain": " --target /opt/cuda"}
    downloads = " \\\n && ".join(
        f"{_PIP} download {_LOCKED} -d /downloads/{name} -r /requirements/{name}.txt"
        for name in names
    )
    pips = " \\\n && ".join(
        f"{_PIP} install {_LOCKED}{where[name]} -r /requirements/{name}.txt" for name in names
    )
    uvs = " \\\n && ".join(
        f"{_UV} {_LOCKED}{where[name]} -r /requirements/{name}.txt" for name in names
    )
    copy_cuda = "\nCOPY --from=builder /opt/cuda /opt/cuda" if toolchain else ""
    return f"""
FROM base AS basefs

# downloads every wheel once before any measurement, so that the index's caches are warm
FROM base AS warmup
{args}
RUN {_SETUP}{downloads} && rm -rf /downloads

FROM base AS plain
{args}
RUN {_SETUP}{pips}
COPY changed.py /{site}/{CHANGED}

FROM base AS builder
{args}
RUN --mount=type=cache,target=/root/.cache/uv {_SETUP}{uvs}
FROM builder AS patched
COPY changed.py /{site}/{CHANGED}
FROM base AS single
COPY --from=patched /opt/venv /opt/venv{copy_cuda}
"""


def write(
    folder: Path, plan: CellPlan, bakefile: Path, settings: Settings, native: Platform
) -> Path:
    """Write contexts and a bake file below ``folder``, on the base in imagefactory's ``bakefile``.

    Returns the path of the new bake file.
    """
    rendered = json.loads(bakefile.read_text(encoding="utf-8"))["target"]
    entry = rendered[plan.cell.name]
    base = entry["contexts"]["base"].removeprefix("target:")
    site = SITE.format(python=plan.cell.python)
    context = folder / "context"
    context.mkdir(parents=True)
    text = _dockerfile(site, toolchain=plan.toolchain is not None)
    (context / "Dockerfile").write_text(text.lstrip(), encoding="utf-8")
    (context / "wheels.txt").write_text(requirements_txt(plan.resolution.wheels), encoding="utf-8")
    if plan.toolchain:
        (context / "toolchain.txt").write_text(
            requirements_txt(plan.toolchain.wheels), encoding="utf-8"
        )
    change(folder, 1)
    _write_tools(folder / "tools", plan.cell.platform, native)
    linked = [name for name in rendered if f"target:{name}" in _contexts(rendered[base])]
    targets: dict[str, Any] = {name: rendered[name] for name in (base, *linked)}
    for name in ("basefs", "plain", "single"):
        targets[name] = {
            **_entry(folder, entry, base, name, settings),
            "tags": [f"{REPOSITORY}:{name}"],
        }
        targets[name]["output"] = ["type=image"]
    targets["warmup"] = {
        **_entry(folder, entry, base, "warmup", settings),
        "output": ["type=cacheonly"],
    }
    path = folder / "docker-bake.json"
    path.write_text(json.dumps({"target": targets}, indent=1), encoding="utf-8")
    return path


def _contexts(target: dict[str, Any]) -> list[str]:
    """The named contexts of a target."""
    return list(target.get("contexts", {}).values())


def _entry(
    folder: Path, entry: dict[str, Any], base: str, name: str, settings: Settings
) -> dict[str, Any]:
    return {
        "context": str(folder / "context"),
        "target": name,
        "contexts": {
            "base": f"target:{base}",
            "wheels": f"{entry['context']}/wheels",
            "tools": str(folder / "tools"),
        },
        "platforms": entry["platforms"],
        "args": {
            "PIP_INDEX_URL": settings.indexes[0],
            "PIP_EXTRA_INDEX_URL": " ".join(settings.indexes[1:]),
            "UV_DEFAULT_INDEX": settings.indexes[0],
            "UV_INDEX": " ".join(settings.indexes[1:]),
        },
        "attest": ["type=provenance,disabled=true"],
        **({"secret": entry["secret"]} if "secret" in entry else {}),
    }


def change(folder: Path, number: int) -> None:
    """Write the patched file with the line ``number``."""
    (folder / "context" / "changed.py").write_text(f"LINE = {number}\n", encoding="utf-8")


def _write_tools(folder: Path, platform: Platform, native: Platform) -> None:
    """Copy this environment's pip, which is pure Python, and the uv of the target platform."""
    found = importlib.util.find_spec("pip")
    if found is None or found.origin is None:
        what, fix = "this Python has no pip to measure", "make clean, then make bench"
        raise fail(SetupError, "bench-no-pip", what, fix=fix)
    shutil.copytree(
        Path(found.origin).parent,
        folder / "pip" / "pip",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    if platform == native:
        shutil.copy2(uv.find_uv_bin(), folder / "uv")
        return
    machine = platform.machine
    tags = [
        word
        for glibc in ("2_17", "2_28")
        for word in ("--platform", f"manylinux_{glibc}_{machine}")
    ]
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", *tags, "--dest", str(folder)]
    must([sys.executable, "-m", "pip", "download", *options, f"uv=={version('uv')}"])
    wheel = next(folder.glob("uv-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        (folder / "uv").write_bytes(archive.read(name))
    (folder / "uv").chmod(0o755)
    wheel.unlink()
