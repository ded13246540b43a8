"""A fake registry whose clients call it: without sockets, threads and HTTP, for tests of what is
asked and answered. How the client speaks HTTP is tested in tests/unit/system/test_registry.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from imagefactory.system.registry import Answer, Body, Registries
from imagefactory.system.registry_names import Name
from support.registry import FakeRegistry, Reply, Request, answer

_NUMBERS = itertools.count(1)


@contextmanager
def called_registry() -> Iterator[FakeRegistry]:
    """A fake registry that every client reaches by a call until the block ends."""
    registry = FakeRegistry(address=f"127.0.0.1:{next(_NUMBERS)}")
    real = Registries._send

    def send(
        self: Registries,
        name: Name,
        tail: str,
        method: str,
        accept: tuple[str, ...],
        header: str | None,
        *,
        into: Path | None,
        body: Body | None,
    ) -> Answer:
        if name.host != registry.address or into:
            return real(self, name, tail, method, accept, header, into=into, body=body)
        assert not registry.broken, "only a client that speaks HTTP asks again"
        target = f"{urlsplit(name.url).path}{tail}"
        reply = answer(registry, Request(method, target, header, body.content if body else b""))
        return _of(reply, method)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Registries, "_send", send)
        yield registry


def _of(reply: Reply, method: str) -> Answer:
    link = reply.headers.get("Link")
    return Answer(
        status=reply.status,
        headers=reply.headers,
        content=b"" if method == "HEAD" else reply.content,
        following=link.partition("<")[2].partition(">")[0] if link else None,
    )
