"""The core of the probe: runs every theme's probe inside an image and prints one JSON report.

It runs in the image, fed to its Python on standard input (see ``probe.py``), so it uses only the
standard library and works on Python 3.11 and later. It judges nothing: a torch that cannot be
imported is a finding, not an error.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

Facts = dict[str, Any]

#: How much of a program's output is kept, in characters.
OUTPUT_TAIL = 2000


@dataclass(frozen=True)
class Context:
    """What a theme's probe gets to know, and helpers that several probes use.

    Attributes:
        site: site-packages of the image's Python.
        home: folder of the manifest and the proofs.
        manifest: what the build recorded about the image; empty if it is missing or unreadable.
        files_judged: whether the image's files are judged from outside: probes leave that out.
        proofs: the patches to prove; None for all of them.
    """

    site: Path
    home: Path
    manifest: Mapping[str, Any]
    files_judged: bool = False
    proofs: Sequence[str] | None = None

    @staticmethod
    def recorded(distribution: importlib.metadata.Distribution) -> dict[str, int | None]:
        """The files that were installed, relative to site-packages, with their sizes in bytes.

        ``distribution.files`` hides missing ones from Python 3.12 on.
        """
        rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
        return {row[0]: int(row[2]) if row[2] else None for row in rows if len(row) == 3}

    @staticmethod
    def run(
        argv: Sequence[str],
        *,
        timeout: float,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Facts:
        """Exit code and output of a program.

        The code is None if the program cannot be started or runs for more than ``timeout`` seconds.
        """
        try:
            done = subprocess.run(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except OSError as error:
            return {"code": None, "output": str(error)}
        except subprocess.TimeoutExpired:
            return {"code": None, "output": f"still running after {timeout:g} s"}
        return {"code": done.returncode, "output": done.stdout[-OUTPUT_TAIL:].strip()}


def main(
    probes: Mapping[str, str], home: str, site: str, *, keep_bytecode: bool = True, **known: Any
) -> None:
    """Write the report, and nothing else, to standard output, and end the process.

    ``probes`` maps themes to the text of their ``probe.py``; an empty ``site`` means that of the
    running Python. ``known`` are further fields of the context; with ``keep_bytecode`` what is
    compiled is written to the image's files. What probed modules print goes to standard error, and
    what they want to do at the end of the process is not done.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    folder = Path(site) if site else site_packages()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    manifest = read_manifest(Path(home) / "manifest.json")
    context = Context(site=folder, home=Path(home), manifest=manifest or {}, **known)
    report = {"manifest": manifest, **collect(probes, context, keep_bytecode=keep_bytecode)}
    with os.fdopen(output, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(report))
    sys.stderr.flush()
    os._exit(0)


def site_packages() -> Path:
    """Site-packages of the running Python, which was started without its ``site`` module.

    That module runs what it finds there (``.pth``, ``sitecustomize``); until Python 3.14 it also
    finds out which virtual environment this is, which is done here instead.
    """
    prefix = Path(sys.executable).parent.parent
    if not (prefix / "pyvenv.cfg").is_file():
        return Path(sysconfig.get_path("purelib"))
    sys.prefix = sys.exec_prefix = str(prefix)
    return prefix / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def collect(probes: Mapping[str, str], context: Context, *, keep_bytecode: bool) -> Facts:
    """The facts of every theme, or the error that its probe ended with.

    Probes that leave traces (``LEAVES_TRACES = True``: they import from the image or run its
    programs, which may change the module path and leaves compiled Python) run after all others.
    """
    facts: Facts = {}
    errors: dict[str, str] = {}
    modules: dict[str, ModuleType] = {}
    for theme, source in probes.items():
        try:
            modules[theme] = load(theme, source)
        except BaseException as error:  # noqa: BLE001 - one theme's error is not another's
            errors[theme] = describe(theme, error)
    late = {theme for theme in modules if getattr(modules[theme], "LEAVES_TRACES", False)}
    for theme in sorted(modules, key=lambda name: name in late):
        if theme in late:
            # Compiled Python is a trace too, but makes every later import faster.
            sys.dont_write_bytecode = not keep_bytecode
        began = time.monotonic()
        try:
            found = modules[theme].facts(context)
            seconds = round(time.monotonic() - began, 1)
            facts[theme] = json.loads(json.dumps({**found, "seconds": seconds}))
        except BaseException as error:  # noqa: BLE001 - as above
            errors[theme] = describe(theme, error)
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "facts": facts,
        "errors": errors,
    }


def read_manifest(path: Path) -> Facts | None:
    """What the build recorded about the image; None if there is nothing that can be read."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def load(theme: str, source: str) -> ModuleType:
    """The probe of ``theme`` as a module of its own."""
    module = ModuleType(f"imagefactory_probe_{theme}")
    # Registered because dataclasses look their module up.
    sys.modules[module.__name__] = module
    exec(compile(source, file_of(theme), "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    return module


def describe(theme: str, error: BaseException) -> str:
    """``error`` in one line, with the last line of the theme's probe that it passed through."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file_of(theme)
    ]
    where = f" ({file_of(theme)}:{lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"


def file_of(theme: str) -> str:
    """The name that tracebacks show for the theme's probe."""
    return f"checks/{theme}/probe.py"
