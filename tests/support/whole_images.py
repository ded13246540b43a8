"""A small image that is exactly what its wheels, patch, base and build make it, to be spoilt."""

from __future__ import annotations

import base64
import copy
import csv
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from installer.scripts import Script
from packaging.specifiers import SpecifierSet

from imagefactory import inbuild
from imagefactory.building.stack import wheels
from imagefactory.inbuild import manifest
from imagefactory.locking.lock import Wheel
from imagefactory.matrix.cell import Base as MatrixBase
from imagefactory.patching.patch import Kind, Origin, Patch, Proof, Stage, Step, Variant
from imagefactory.planning import cell_plan, image_config
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.settings import Settings, from_environment
from imagefactory.system.yamlfile import Location
from imagefactory.verifying.outside import configured, layers, outside, tree
from imagefactory.verifying.outside.inventory import Wheels
from imagefactory.verifying.outside.judged import Judged
from support import ROOT
from support.plans import base_image
from support.verify_fakes import CPU, cell, resolution

SITE = "opt/venv/lib/python3.13/site-packages"
LIBRARY = b"\x7fELF" + bytes(range(256)) * 8
DIFF = """\
--- a/vllm/modelopt.py
+++ b/vllm/modelopt.py
@@ -1,2 +1,2 @@
 one
-two
+zwei
--- /dev/null
+++ b/vllm-0.22.1+cpu.dist-info/METADATA
@@ -0,0 +1 @@
+Name: vllm
"""
#: Members of each wheel; those of ``PROGRAMS`` are executable.
WHEELS: Mapping[tuple[str, str], Mapping[str, bytes]] = {
    ("torch", "2.13.0"): {
        "torch/__init__.py": b"import torch._C\n",
        "torch/lib/libtorch.so": LIBRARY,
        "torch/lib/libtorch.so.2": LIBRARY,
        "torch/lib/libstatic.a": b"!<arch>",
        "torch/test/test_torch.py": b"assert True\n",
    },
    ("numpy", "2.0"): {
        "numpy/__init__.py": b"from numpy import core\n",
        "numpy/core.so": LIBRARY[:2000],
        "numpy/stripped.so": LIBRARY[:1500],
        "numpy/tests/test_core.py": b"assert True\n",
        "numpy-2.0.data/scripts/np": b"#!python\nprint(1)\n",
        "numpy-2.0.dist-info/entry_points.txt": b"[console_scripts]\nf2py = numpy.f2py:main\n",
    },
    ("vllm", "0.22.1"): {
        "vllm/__init__.py": b"",
        "vllm/_C.abi3.so": LIBRARY,
        "vllm/_C_AVX2.abi3.so": LIBRARY[::-1],
        "vllm/modelopt.py": b"one\ntwo\n",
        "vllm/entrypoints/cli/main.py": b"def main(): ...\n",
        "vllm-0.22.1.dist-info/entry_points.txt": (
            b"[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"
        ),
    },
}
PROGRAMS = ("numpy/core.so",)
#: What RECORD of the wheel was made from, of a file that was changed since.
RECORDED = {"numpy/stripped.so": LIBRARY[:1600]}
#: What trim.py leaves out, and what becomes a link.
TRIMMED = ("torch/lib/libstatic.a", "torch/test/test_torch.py")
LINKS = {"torch/lib/libtorch.so": "libtorch.so.2"}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_CONFIG = {"config": {"Env": [PATH]}}


@dataclass(frozen=True, kw_only=True)
class Node:
    """A file, a folder (``data`` is None) or a link (``link`` is its target)."""

    data: bytes | None = None
    mode: int = 0o644
    link: str = ""
    owner: int = 0


FOLDER = Node(mode=0o755)
Tree = dict[str, Node]
BASE: Tree = {
    "etc": FOLDER,
    "etc/passwd": Node(data=b"root:x:0:0::/root:/bin/sh\n"),
    "root": Node(mode=0o700),
    "tmp": Node(mode=0o1777),
    "usr": FOLDER,
    "usr/bin": FOLDER,
    "usr/bin/python3.13": Node(data=LIBRARY, mode=0o755),
    "usr/bin/python3": Node(link="python3.13"),
    "usr/bin/su": Node(data=LIBRARY, mode=0o4755),
    "usr/lib": FOLDER,
    "usr/lib/python3.13/venv/scripts/common/activate": Node(
        data=b"VIRTUAL_ENV=__VENV_DIR__\nPS1=__VENV_PROMPT__\n"
    ),
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_file(folder: Path, name: str, version: str, members: Mapping[str, bytes]) -> Wheel:
    """Write a wheel, and return what the lock has for it."""
    info = f"{name}-{version}.dist-info"
    recorded = {path: RECORDED.get(path, data) for path, data in members.items()}
    record = "".join(f"{path},{_hash(data)},{len(data)}\n" for path, data in recorded.items())
    filename = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / filename, "w") as archive:
        for path, data in {**members, f"{info}/RECORD": record.encode()}.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o755 if path in PROGRAMS else 0o644) << 16
            archive.writestr(entry, data)
    data = (folder / filename).read_bytes()
    return Wheel(
        name=name,
        version=version,
        filename=filename,
        sha256=sha256(data),
        size=len(data),
        index="find-links",
    )


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


class WholeImage:
    """A good image in two layers, its base and its own; ``tree`` and ``config`` may be spoilt.

    What is in ``tree`` replaces files of the base.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        wheels = folder / "wheels"
        wheels.mkdir()
        self.settings: Settings = replace(
            from_environment({"HOME": str(folder)}), find_links=(wheels,)
        )
        locked = replace(
            resolution(CPU),
            wheels=tuple(wheel_file(wheels, *key, members) for key, members in WHEELS.items()),
        )
        step = _step(folder)
        made = cell("cpu")
        base = MatrixBase(
            name="trixie", image="debian", suite=None, python="3.13", glibc="2.41", packages=()
        )
        self.plan: CellPlan = cell_plan.compose(
            made,
            locked,
            [step],
            base_image(base, made.platform),
            templates=(ROOT / "templates",),
        )
        self.tree: Tree = {}
        self._fill()
        self.config: dict[str, Any] = {
            "os": "linux",
            "architecture": "arm64",
            "config": {
                "Env": [
                    f"{name}={value}"
                    for name, value in image_config.environment(
                        made, None, self.plan.base.locked
                    ).items()
                ],
                "Entrypoint": ["/opt/imagefactory/entrypoint"],
                "Cmd": ["serve"],
                "WorkingDir": "/root",
                "ExposedPorts": {"8888/tcp": {}},
                "Healthcheck": configured.FIXED["Healthcheck"],
                "Labels": dict(self.plan.labels),
            },
        }

    def copy(self) -> WholeImage:
        """The same image, with files and a configuration of its own."""
        made = copy.copy(self)
        made.tree, made.config = dict(self.tree), copy.deepcopy(self.config)
        return made

    def _fill(self) -> None:
        """What the build puts on the base."""
        tree = self.tree
        for folder in ("opt", "opt/venv", "opt/venv/bin", f"{SITE}/torch"):
            tree[folder] = FOLDER
        for name, target in (
            ("bin/python3", "/usr/bin/python3"),
            ("bin/python", "python3"),
            ("bin/python3.13", "python3"),
            ("lib64", "lib"),
        ):
            tree[f"opt/venv/{name}"] = Node(link=target)
        activate = b"VIRTUAL_ENV=/opt/venv\nPS1=venv\n"
        tree["opt/venv/bin/activate"] = Node(data=activate)
        tree["opt/venv/.gitignore"] = Node(
            data=b"# Created by venv; see https://docs.python.org/3/library/venv.html\n*\n"
        )
        tree["opt/venv/pyvenv.cfg"] = Node(
            data=b"home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.13.5\n"
            b"executable = /usr/bin/python3.13\n"
            b"command = /usr/bin/python3 -m venv --without-pip /opt/venv\n"
        )
        for (name, version), members in WHEELS.items():
            self._install(f"{name}-{version}", members)
        tree[f"{SITE}/vllm/modelopt.py"] = Node(data=b"one\nzwei\n")
        tree[f"{SITE}/vllm-0.22.1+cpu.dist-info/METADATA"] = Node(data=b"Name: vllm\n")
        self._metadata()

    def _install(self, stem: str, members: Mapping[str, bytes]) -> None:
        """Install a wheel as a build does."""
        info = f"{stem}.dist-info"
        rows: dict[str, Node] = {}
        for name, data in members.items():
            mode = 0o755 if name in PROGRAMS else 0o644
            if name in LINKS:
                rows[name] = Node(link=LINKS[name])
            elif "/scripts/" in name:
                text = data.replace(b"#!python", b"#!/opt/venv/bin/python")
                rows[f"../../../bin/{name.rpartition('/')[2]}"] = Node(data=text, mode=0o755)
            elif name not in TRIMMED:
                rows[name] = Node(data=data, mode=mode)
        rows |= {f"{info}/{added}": Node(data=data) for added, data in wheels.ADDED.items()}
        points = members.get(f"{info}/entry_points.txt", b"").decode().splitlines()[1:]
        for line in points:
            name, _, target = line.partition(" = ")
            module, _, function = target.partition(":")
            script = Script(name, module, function, "console").generate(wheels.PYTHON, "posix")[1]
            rows[f"../../../bin/{name}"] = Node(data=script, mode=0o755)
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for name, node in sorted(rows.items()):
            listed = RECORDED.get(name, node.data)
            row = ["", ""] if listed is None else [_hash(listed), str(len(listed))]
            writer.writerow([name, *row])
        out.write(f"{info}/RECORD,,\n")
        rows[f"{info}/RECORD"] = Node(data=out.getvalue().encode())
        for name, node in rows.items():
            path = name.replace("../../../", "opt/venv/") if name[0] == "." else f"{SITE}/{name}"
            self.tree[path] = node

    def _metadata(self) -> None:
        planned = json.loads(self.plan.files["image/manifest.json"])
        torch = planned["torch"]
        dropped = [
            {"layer": "cuda-torch", "rule": "tests", "why": "w", "files": [[name, 7]]}
            for name in TRIMMED
        ]
        names = [row["group"] for row in planned["wheels"]]
        order = [name for name in ("cuda-torch", "dependencies", "vllm") if name in names]
        belt = {"layers": [{"group": name, "torch": torch} for name in order], "dropped": dropped}
        touched = ("vllm/modelopt.py", "vllm-0.22.1+cpu.dist-info/METADATA")
        patched = [
            {
                "name": "vllm/one",
                "state": "needed",
                "detail": "",
                "offsets": [],
                "files": {
                    name: sha256(self.tree[f"{SITE}/{name}"].data or b"") for name in touched
                },
                "created": [touched[1]],
            }
        ]
        home = manifest.FOLDER
        for name, value in (
            ("manifest", manifest.complete(planned, belt, patched)),
            ("dropped", dropped),
        ):
            data = (json.dumps(value, indent=1) + "\n").encode()
            self.tree[f"{home}/{name}.json"] = Node(data=data)
        for module in Path(inbuild.__file__).with_name("proofkit").glob("*.py"):
            node = Node(data=module.read_bytes())
            self.tree[f"{home}/proofs/proofkit/{module.name}"] = node
        proof = self.plan.files["patches/vllm/one/proof.py"]
        self.tree[f"{home}/proofs/vllm/one/proof.py"] = Node(data=proof)
        for name, mode in manifest.PROGRAMS.items():
            self.tree[f"{home}/{name}"] = Node(data=self.plan.files[f"image/{name}"], mode=mode)

    def data(self, path: str) -> bytes:
        """The content of a file."""
        return (self.tree.get(path) or BASE[path]).data or b""

    def edit(self, path: str, data: bytes) -> None:
        """Give a file other content."""
        self.tree[path] = replace(self.tree.get(path) or BASE[path], data=data)

    def saved(self, *above: bytes) -> tuple[bytes, str]:
        """The image as ``docker save`` writes it, with the layers ``above``, and its digest."""
        blobs: dict[str, bytes] = {}

        def blob(data: bytes) -> dict[str, object]:
            blobs[sha256(data)] = data
            return {"digest": f"sha256:{sha256(data)}", "size": len(data)}

        parts = [blob(data) for data in (_base_archive(), archive(self.tree), *above)]
        rootfs = {"type": "layers", "diff_ids": [part["digest"] for part in parts]}
        config = {"rootfs": rootfs, **self.config}
        image = {"config": blob(json.dumps(config).encode()), "layers": parts}
        row = blob(json.dumps(image).encode())
        files = {f"blobs/sha256/{name}": Node(data=data) for name, data in blobs.items()}
        files["index.json"] = Node(data=json.dumps({"manifests": [row]}).encode())
        return archive(files), str(row["digest"])

    def judged(self, plan: CellPlan | None = None, *above: bytes) -> Judged:
        """What is found in the image, with the layers ``above``. Raises DamagedError."""
        stream, digest = self.saved(*above)
        cache = self.folder / "layers"
        contents = layers.read_stream(io.BytesIO(stream), digest, cache)
        known = base_in(contents)
        return outside.examine(contents, plan or self.plan, known, Wheels(self.settings))


def base_in(contents: layers.Contents) -> outside.Base:
    """The base of a whole image: its lowest layer."""
    return outside.Base(layer=tree.merged(contents.layers[:1]), config=BASE_CONFIG)


def _step(folder: Path) -> Step:
    (folder / "one.diff").write_text(DIFF)
    (folder / "proof.py").write_text("print('fine')\n")
    location = Location(file="patch.yaml", line=1)
    variant = Variant(versions=SpecifierSet(), diff=folder / "one.diff", location=location)
    patch = Patch(
        name="vllm/one",
        origin=Origin.PROJECT,
        folder=folder,
        shown="patch.yaml",
        draft=False,
        summary="",
        stage=Stage.INSTALLED,
        after=(),
        variants=(variant,),
        exemptions=(),
        proof=Proof(script=folder / "proof.py", kind="static", needs=()),
        text={},
        kind=Kind.FIX,
        kinds=(),
    )
    return Step(patch=patch, version="0.22.1", variant=variant)


def archive(tree: Mapping[str, Node]) -> bytes:
    """A tar archive of a tree."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as written:
        for path, node in tree.items():
            member = tarfile.TarInfo(path)
            member.mode, member.uid = node.mode, node.owner
            if node.link:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, node.link, 0o777
            elif node.data is None:
                member.type = tarfile.DIRTYPE
            member.size = len(node.data or b"")
            written.addfile(member, io.BytesIO(node.data or b""))
    return out.getvalue()


@lru_cache
def _base_archive() -> bytes:
    return archive(BASE)


def names(found: Iterable[object]) -> str:
    """Findings as one text."""
    return "\n".join(map(str, found))
