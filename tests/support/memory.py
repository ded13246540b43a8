"""Models whose memory is planned in tests."""

from __future__ import annotations

import json
from typing import Any

from imagefactory.memory import memory
from imagefactory.memory.model import Model
from support import ROOT

MODELS = ROOT / "tests/data/memory/models"


def raw(name: str, **changes: Any) -> dict[str, Any]:
    """The configuration of a model; ``changes`` of None remove keys."""
    found = {**json.loads((MODELS / name / "config.json").read_text()), **changes}
    return {key: value for key, value in found.items() if value is not None}


def model(name: str, **changes: Any) -> Model:
    return memory.read(raw(name, **changes), name, "config.json")
