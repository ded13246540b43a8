"""What else is in an image: virtual environment, entrypoint, manifest and proofs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagefactory import inbuild
from imagefactory.inbuild import overlay
from imagefactory.inbuild.layer import VENV
from imagefactory.inbuild.manifest import FOLDER, PROGRAMS
from imagefactory.planning import context
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.layers import split
from imagefactory.verifying.outside.installed import Python
from imagefactory.verifying.outside.inventory import sha256
from imagefactory.verifying.outside.patched import Patched
from imagefactory.verifying.outside.tree import Layer
from imagefactory.verifying.outside.want import Want, Wants

_ORIGIN = "the Python environment"
#: What ``python3 -m venv`` says about itself; the version is that of the builder's Python.
_SETTINGS = """\
home = /usr/bin
include-system-site-packages = false
version = {version}.N
executable = /usr/bin/python{version}
command = /usr/bin/python3 -m venv --without-pip /{venv}
"""
#: What the venv module of Python 3.13 and above adds.
_GIT_IGNORE = b"# Created by venv; see https://docs.python.org/3/library/venv.html\n*\n"
_MOST_WORDS = 20_000
#: The fields of a patch in the manifest, and their types.
_PATCH = {
    "name": str,
    "state": str,
    "detail": str,
    "offsets": list,
    "files": dict,
    "created": list,
}


def environment(wants: Wants, python: Python, base: Layer) -> None:
    """Add the virtual environment; its scripts are made from those in ``base``."""
    bin_folder, version = f"{VENV}/bin", python.version
    for name, target in (
        ("python3", "/usr/bin/python3"),
        ("python", "python3"),
        (f"python{version}", "python3"),
    ):
        wants.add(f"{bin_folder}/{name}", Want(origin=_ORIGIN, kind="link", links=(target,)))
    wants.add(f"{VENV}/lib64", Want(origin=_ORIGIN, kind="link", links=("lib",)))
    wants.allow(f"{VENV}/include/python{version}")
    ignored = Want(origin=_ORIGIN, hashes=frozenset({sha256(_GIT_IGNORE)}), required=False)
    wants.add(f"{VENV}/.gitignore", ignored)
    wants.allow(python.site)
    expected = _SETTINGS.format(version=version, venv=VENV)

    def settings(text: bytes) -> str:
        plain = re.sub(rb"(?m)^(version = \d+\.\d+)\.\d+$", rb"\1.N", text)
        return "" if plain == expected.encode() else "is not that of a plain virtual environment"

    wants.add(f"{VENV}/pyvenv.cfg", Want(origin=_ORIGIN, reading=settings))
    for path, text in base.texts.items():
        found = re.fullmatch(r"usr/lib/python3[^/]*/venv/scripts/(?:common|posix)/(.+)", path)
        if found:
            hashes = frozenset(sha256(one) for one in _scripts(text.decode(), found[1]))
            wants.add(f"{bin_folder}/{found[1]}", Want(origin=_ORIGIN, hashes=hashes))


def _scripts(template: str, name: str) -> list[bytes]:
    """What Python's versions make of a template: they differ in the prompt and in quotes."""
    made = []
    for prompt in ("(venv) ", "venv"):
        for quoted in (True, False):
            text = template
            for key, value in {
                "__VENV_DIR__": f"/{VENV}",
                "__VENV_NAME__": "venv",
                "__VENV_PROMPT__": prompt,
                "__VENV_BIN_NAME__": "bin",
                "__VENV_PYTHON__": f"/{VENV}/bin/python3",
            }.items():
                shown = f"'{value}'" if name.endswith(".ps1") else shlex.quote(value)
                text = text.replace(key, shown if quoted else value)
            made.append(text.encode())
    return made


def metadata(
    wants: Wants, plan: CellPlan, patched: Patched, trimmed: Sequence[Sequence[str]], tree: Layer
) -> None:
    """Add the top layer. ``trimmed`` has, for each install layer, the paths that it left out."""
    origin = "imagefactory"
    kit = sorted(Path(inbuild.__file__).with_name("proofkit").glob("*.py"))
    files = {name: (plan.files[f"image/{name}"], mode) for name, mode in PROGRAMS.items()}
    series = json.loads(plan.files["patches/series.json"])
    for row in (row for row in series if row.get("proof")):
        files[f"proofs/{row['name']}/proof.py"] = (plan.files[f"patches/{row['proof']}"], 0o644)
        files |= {f"proofs/proofkit/{path.name}": (path.read_bytes(), 0o644) for path in kit}
    for name, (data, mode) in files.items():
        want = Want(origin=origin, modes=(mode,), hashes=frozenset({sha256(data)}), size=len(data))
        wants.add(f"{FOLDER}/{name}", want)
    dropped = _json(tree.texts.get(f"{FOLDER}/dropped.json", b""))
    names = [layer.name for layer in split(plan.resolution)]
    site = f"{install_site(plan)}/"

    def dropped_fault(text: bytes) -> str:
        rows = _json(text)
        if not _canonical(text, rows) or not isinstance(rows, list):
            return "is not written as the build writes it"
        return _dropped_fault(rows, names, trimmed, site, tree)

    def manifest_fault(text: bytes) -> str:
        found = _json(text)
        if not _canonical(text, found) or not isinstance(found, dict):
            return "is not written as the build writes it"
        return _manifest_fault(found, plan, patched, dropped, series, site, tree)

    wants.add(f"{FOLDER}/dropped.json", Want(origin=origin, reading=dropped_fault))
    wants.add(f"{FOLDER}/manifest.json", Want(origin=origin, reading=manifest_fault))


def install_site(plan: CellPlan) -> str:
    """site-packages of the image that is planned."""
    return Python(version=plan.cell.python, cuda_home=None).site


def obsolete(tree: Layer) -> frozenset[str]:
    """Patches that the manifest says were left out, because the wheel has what they change."""
    found = _json(tree.texts.get(f"{FOLDER}/manifest.json", b""))
    rows = found.get("patches") if isinstance(found, dict) else None
    return frozenset(
        str(row.get("name"))
        for row in rows or ()
        if isinstance(row, dict) and row.get("state") == "obsolete"
    )


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _canonical(text: bytes, value: object) -> bool:
    return text == (json.dumps(value, indent=1) + "\n").encode()


def _dropped_fault(
    rows: Sequence[Any],
    names: Sequence[str],
    trimmed: Sequence[Sequence[str]],
    site: str,
    tree: Layer,
) -> str:
    """What is wrong with the list of files that the build left out."""
    listed = set()
    for row in rows:
        if set(row) != {"layer", "rule", "why", "files"} or row["layer"] not in names:
            return "has a row of no layer"
        for name, size in row["files"]:
            entry = tree.entries.get(f"{site}{name}")
            if entry is not None and entry.kind != "link":
                return f"lists {name}, which is in the image"
            if not isinstance(size, int) or size < 0:
                return f"has a wrong size for {name}"
            listed.add(f"{site}{name}")
    left = sorted({path for paths in trimmed for path in paths} - listed)
    return f"does not list {left[0]}" if left else ""


def _manifest_fault(
    found: Mapping[str, Any],
    plan: CellPlan,
    patched: Patched,
    dropped: Any,
    series: Sequence[Mapping[str, Any]],
    site: str,
    tree: Layer,
) -> str:
    """How the manifest differs from what was planned, and from what the image contains."""
    wanted = json.loads(plan.files["image/manifest.json"])
    sums = [
        {**row, "files": len(row["files"]), "bytes": sum(size for _, size in row["files"])}
        for row in dropped or ()
    ]
    wanted |= {"layers": _layers(plan), "dropped": sums}
    for name in sorted({*wanted, *found} - {"patches"}):
        if found.get(name) != wanted.get(name):
            return f"says something else about {name} than the plan"
    patches = found.get("patches")
    if not isinstance(patches, list) or len(patches) != len(series):
        return "has other patches than the plan"
    for row, step in zip(patches, series, strict=True):
        fault = _patch_fault(row, step, patched, site, tree)
        if fault:
            return fault
    return ""


def _layers(plan: CellPlan) -> list[dict[str, object]]:
    """The torch after each install layer; none before the layer that has it."""
    rows: list[dict[str, object]] = []
    torch = None
    planned = {"version": plan.resolution.torch.version, "cuda": plan.resolution.torch.cuda}
    for layer in context.layers_of(plan.resolution):
        torch = planned if any(wheel.name == "torch" for wheel in layer.wheels) else torch
        rows.append({"group": layer.name, "torch": torch})
    return rows


def _patch_fault(
    row: Any, step: Mapping[str, Any], patched: Patched, site: str, tree: Layer
) -> str:
    """What is wrong with what the manifest says about one patch."""
    if not isinstance(row, dict) or {k: type(value) for k, value in row.items()} != _PATCH:
        return "has a patch without the fields of one"
    name, state = step["name"], row["state"]
    if row["name"] != name:
        return f"has the patch {row['name']}, planned is {name}"
    if len(row["detail"]) > _MOST_WORDS:
        return f"has a text of {len(row['detail'])} characters about {name}"
    touched, created = patched.patches.get(name, ((), ()))
    if step.get("exempt"):
        right = (state, row["detail"]) == ("n/a", step["exempt"])
    elif step.get("compiled") or step.get("in_wheel"):
        planned = overlay.COMPILED if step.get("compiled") else "in the wheel"
        right = state == (overlay.UNPROVEN if step.get(overlay.UNPROVEN) else planned)
        touched = tuple(row["files"])
    elif touched:
        states = (overlay.UNPROVEN,) if step.get(overlay.UNPROVEN) else ("needed", "unknown")
        right = state in states and row["created"] == list(created)
    elif step.get("diff"):
        right = state == "obsolete" and not step.get(overlay.UNPROVEN)
    else:  # its proof passes, or needs what the builder does not have
        right = state in ("obsolete", "unknown") and not step.get(overlay.UNPROVEN)
    now = {path: _hash(tree, f"{site}{path}") for path in touched}
    if not right:
        return f"says {state} of {name}, which is not what was planned"
    return "" if row["files"] == now else f"has other hashes for the files of {name}"


def _hash(tree: Layer, path: str) -> str:
    entry = tree.entries.get(path)
    return entry.sha256 if entry else ""
