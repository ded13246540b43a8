"""How the sources of releases that are fetched at the same time are unpacked."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.machine import settings

from imagefactory.patching import sources
from imagefactory.system import web


def test_sources_are_unpacked_one_after_the_other(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack, at_work = sources._write_texts, list[bool]()
    both = threading.Barrier(2, timeout=5)

    def download(*given: Any, **named: Any) -> str:
        both.wait()  # until the other has come as far
        return web_download(*given, **named)

    def watched(*given: Any) -> None:
        assert not at_work, "two are unpacked at once"
        at_work.append(True)
        time.sleep(0.05)
        unpack(*given)
        at_work.clear()

    web_download = web.download
    monkeypatch.setattr(web, "download", download)
    monkeypatch.setattr(sources, "_write_texts", watched)
    using = settings(tmp_path, index)
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(sources.fetch, "vllm", one, using) for one in ("0.22.1", "0.22.2")]
        assert [one.result().version for one in done] == ["0.22.1", "0.22.2"]
