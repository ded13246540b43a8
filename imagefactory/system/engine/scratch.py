"""Networks and volumes that containers share while one command runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

from imagefactory.system import owner
from imagefactory.system.engine.docker import Part


class Scratch(Part):
    """What the adapter does with them.

    They are removed afterwards, and so are those of processes that have ended.
    """

    def network(self) -> AbstractContextManager[str]:
        """The name of a new network, whose containers reach each other and nothing else."""
        return self._made("network", "--internal")

    def volume(self) -> AbstractContextManager[str]:
        """The name of a new, empty volume."""
        return self._made("volume")

    @contextmanager
    def _made(self, kind: Literal["network", "volume"], *options: str) -> Iterator[str]:
        shown = ("--format", f'{{{{.Name}}}}\t{{{{.Label "{owner.LABEL}"}}}}')
        listed = self._docker.must(kind, "ls", "--filter", f"label={owner.LABEL}", *shown)
        for name, _, owned in (line.partition("\t") for line in listed.splitlines()):
            if owner.gone(owned):
                self._docker.call(kind, "rm", name)  # its containers may not be swept yet
        name = f"imagefactory-{secrets.token_hex(6)}"
        label = f"{owner.LABEL}={owner.mine()}"
        self._docker.must(kind, "create", *options, "--label", label, name)
        try:
            yield name
        finally:
            self._docker.call(kind, "rm", name)
