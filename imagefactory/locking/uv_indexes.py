"""How uv gets the machine's indexes: their URLs as options, their credentials as variables."""

from __future__ import annotations

from collections.abc import Iterable

from imagefactory.matrix.cell import NamedIndex
from imagefactory.settings import Settings, index_variable

#: uv reads the credentials of an index from variables that have its name in them.
_NAME = "imagefactory-{}"


def options(settings: Settings) -> list[str]:
    """uv's options for the indexes and wheel folders of the machine. They have no credentials."""
    named = [f"{_NAME.format(n)}={url}" for n, url in enumerate(settings.indexes)]
    first, *more = named
    return [
        *("--default-index", first, "--index-strategy", "unsafe-best-match"),
        *(option for index in more for option in ("--index", index)),
        *(option for links in settings.find_links for option in ("--find-links", str(links))),
    ]


def environment(settings: Settings, named: Iterable[NamedIndex] = ()) -> dict[str, str]:
    """The variables with the credentials of all indexes; ``named`` are those of the matrix."""
    urls = {_NAME.format(number): url for number, url in enumerate(settings.indexes)}
    urls |= {index.name: index.url for index in named}
    variables: dict[str, str] = {}
    for name, url in urls.items():
        account = settings.account_for(url)
        if account:
            start = index_variable(name)
            variables |= {f"{start}_USERNAME": account[0], f"{start}_PASSWORD": account[1]}
    return variables
