"""A plugin of pytest that notes which functions of the factory each passing test calls."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from support import ROOT

_PREFIX = f"{ROOT}/"
_OURS = f"{ROOT}/imagefactory/"
_called: dict[str, dict[str, set[int]]] = {}
_now: set[Any] = set()


def _note(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        _now.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _now.clear()
    sys.setprofile(_note)
    threading.setprofile(_note)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        files = defaultdict[str, set[int]](set)
        for code in _now:
            if code.co_filename.startswith(_OURS):
                files[code.co_filename.removeprefix(_PREFIX)].add(code.co_firstlineno)
        _called[item.nodeid] = files


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:  # without a mutant; it cannot judge one
        _called[report.nodeid] = {}


def pytest_sessionfinish() -> None:
    rows = {test: {n: sorted(f) for n, f in files.items()} for test, files in _called.items()}
    Path(os.environ["CALLED"]).write_text(json.dumps(rows))
