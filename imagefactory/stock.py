"""The files that come with imagefactory: templates, patches, recipes, and the engine script."""

from __future__ import annotations

from pathlib import Path

_PACKAGED = Path(__file__).parent / "data"
#: Holds ``templates``, ``patches``, ``recipes`` and ``scripts``: the repository, unless installed
#: from a wheel.
ROOT = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[1]


def search_path(project: Path, name: str) -> tuple[Path, ...]:
    """The folders that have ``name``, such as ``patches``: the project's own, then the stock one.

    It is one folder if the project is imagefactory's own repository.
    """
    own, stock = project / name, ROOT / name
    return (own,) if own.resolve() == stock.resolve() else (own, stock)
