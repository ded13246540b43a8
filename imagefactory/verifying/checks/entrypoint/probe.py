"""Whether the image has Ray, which decides what the entrypoint's Ray modes should do."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagefactory.verifying.probe_core import Context


def facts(_: Context) -> dict[str, Any]:
    """Whether a distribution named ``ray`` is installed."""
    return {"ray": any(importlib.metadata.distributions(name="ray"))}
