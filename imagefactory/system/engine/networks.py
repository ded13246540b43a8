"""Networks between containers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from imagefactory.system.engine import owner
from imagefactory.system.engine.docker import Part


class Networks(Part):
    """What the adapter does with networks."""

    @contextmanager
    def network(self) -> Iterator[str]:
        """The name of a new network, whose containers reach each other and nothing else.

        It is removed afterwards, and so are networks of processes that have ended.
        """
        shown = ("--format", f'{{{{.Name}}}}\t{{{{.Label "{owner.LABEL}"}}}}')
        listed = self._docker.must("network", "ls", "--filter", f"label={owner.LABEL}", *shown)
        for name, _, owned in (line.partition("\t") for line in listed.splitlines()):
            if owner.gone(owned):
                self._docker.call("network", "rm", name)  # its containers may not be swept yet
        name = f"imagefactory-{secrets.token_hex(6)}"
        label = f"{owner.LABEL}={owner.mine()}"
        self._docker.must("network", "create", "--internal", "--label", label, name)
        try:
            yield name
        finally:
            self._docker.call("network", "rm", name)
