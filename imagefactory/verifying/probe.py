"""Assembles the probe: one program of the core and every theme's ``probe.py``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from imagefactory.verifying import check_registry, checks, probe_core, probe_imports

#: The folder in an image that holds the manifest and the proofs.
HOME = "/opt/imagefactory"


def sources() -> dict[str, str]:
    """The text of every probe by its theme, in the order of the themes."""
    specs = {name: find_spec(f"{checks.__name__}.{name}.probe") for name in check_registry.themes()}
    return {
        theme: Path(spec.origin).read_text(encoding="utf-8")
        for theme, spec in specs.items()
        if spec and spec.origin
    }


def program(
    *,
    home: str = HOME,
    site: str = "",
    themes: Sequence[str] = (),
    proofs: Sequence[str] | None = None,
    files_judged: bool = False,
    compiler: str = "",
) -> str:
    """The text to feed to the image's Python, which prints its report on the last line.

    ``home`` and ``site`` are paths in the image; an empty ``site`` means the site-packages of the
    Python that runs the program. ``themes`` are those that are probed, all if empty; ``proofs``
    are the patches to prove, all if None. With ``files_judged`` the image's files are judged from
    outside, and the probes leave that out. ``compiler`` is the socket in the image that compiles
    what is imported.
    """
    wanted = {name: text for name, text in sources().items() if not themes or name in themes}
    imports, core = (Path(str(module.__file__)) for module in (probe_imports, probe_core))
    return (
        f"{imports.read_text(encoding='utf-8')}\n\n"
        + (f"compile_outside({compiler!r})\n" if compiler else "")
        + f"exec(compile({core.read_text(encoding='utf-8')!r}, 'probe_core.py', 'exec'))\n"
        + f"main({wanted!r}, {home!r}, {site!r}, keep_bytecode={not compiler!r}, "
        + f"files_judged={files_judged!r}, proofs={proofs!r})\n"
    )
