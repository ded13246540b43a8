"""Which distributions are on the module path."""

from __future__ import annotations

import importlib.metadata
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagefactory.verifying.probe_core import Context


def facts(context: Context) -> dict[str, Any]:
    """Every distribution by normalized name, as often as it is there.

    They are not looked for if the files are judged from outside.
    """
    if context.files_judged:
        return {}
    found = [
        {
            "name": re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower(),
            "version": distribution.version,
        }
        for distribution in importlib.metadata.distributions()
    ]
    return {"distributions": sorted(found, key=lambda fact: (fact["name"], fact["version"]))}
