"""The station that verifies, on a fake engine that runs the real entrypoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from imagefactory.errors import SetupError, fail
from imagefactory.locking.lock import Lock
from imagefactory.locking.store import digest as lock_digest
from imagefactory.settings import Settings
from imagefactory.system.engine import ImageInfo, gpus
from imagefactory.system.shell import Completed
from imagefactory.verifying import verifying
from imagefactory.verifying.client import PYTHON
from imagefactory.verifying.receipt import Outcome, Receipt
from support import ROOT
from support.verify_fake_server import QUICK, FakeEngine
from support.verify_fakes import CONTENT, CPU, CUDA, Good, image_info, resolution

ENTRYPOINT = ROOT / "templates" / "entrypoint"
NOW = datetime(2026, 11, 20, 13, 0, tzinfo=timezone(timedelta(hours=1)))


class StationEngine(FakeEngine):
    """Knows one image; ``good`` is what the probe reports about it."""

    def __init__(self, good: Good) -> None:
        super().__init__()
        self.good = good
        self.digests = ["sha256:" + "ab" * 32]
        self.probe_out: str | None = None
        self.probe_hangs = False
        self.probe_floods = False
        self.probe_code = 0
        self.modes_end = ""
        self.gpu_says = Completed(argv=(), code=0, out="", err="")
        self.env: dict[str, str] = {}
        self.unpacked = True
        self.data_root = "/"
        self.calls: list[dict[str, Any]] = []

    def inspect_image(self, ref: str) -> ImageInfo:
        digest = self.digests.pop(0) if len(self.digests) > 1 else self.digests[0]
        return image_info(
            ref=ref,
            digest=digest,
            labels=self.good.labels,
            platform=self.good.platform,
            env=self.env,
        )

    def is_unpacked(self, ref: str) -> bool:  # noqa: ARG002
        return self.unpacked

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Completed:
        self.calls.append({"image": image, "argv": argv, "env": env, **options})
        if options.get("gpus"):
            gpus.check(self.gpu_says)  # as the real one does
            return self.gpu_says
        if options.get("entrypoint") == PYTHON:
            if self.probe_hangs:
                raise fail(SetupError, "command-timeout", "no end")
            out = json.dumps(self.good.report) if self.probe_out is None else self.probe_out
            return Completed(
                argv=(),
                code=self.probe_code,
                out=out,
                err="a warning of torch\n",
                cut=self.probe_floods,
            )
        if self.modes_end:
            raise fail(SetupError, self.modes_end, "no end")
        return entrypoint(tuple(argv), tuple((env or {}).items()))


@lru_cache
def entrypoint(argv: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> Completed:
    done = subprocess.run(
        [sys.executable, "-B", str(ENTRYPOINT), *argv],
        env={"PATH": os.environ["PATH"], **dict(env)},
        capture_output=True,
        text=True,
        check=False,
    )
    return Completed(argv=(), code=done.returncode, out=done.stdout, err=done.stderr)


def engine_for(torch: Any) -> StationEngine:
    good = Good(torch=torch)
    good.labels["io.imagefactory.lock-digest"] = lock_digest(resolution(torch))
    return StationEngine(good)


LOCK = Lock(created="", tools=(), resolutions=(resolution(CUDA), resolution(CPU)))


def verify(
    engine: StationEngine, settings: Settings, lock: Lock | None = LOCK, **options: Any
) -> Receipt:
    options.setdefault("content", lambda _: CONTENT)
    options.setdefault("patience", QUICK)
    return verifying.verify(
        "imagefactory/vllm:test",
        engine=engine,
        lock=lock,
        settings=settings,
        now=NOW,
        **options,
    )


def of_probes(engine: StationEngine) -> list[dict[str, Any]]:
    """The calls that ran a probe."""
    return [call for call in engine.calls if call.get("entrypoint") == PYTHON]


def of_probe(engine: StationEngine) -> dict[str, Any]:
    """A call that ran a probe."""
    return of_probes(engine)[0]


def outcomes(receipt: Receipt, outcome: Outcome) -> set[str]:
    return {check.name for check in receipt.checks if check.outcome is outcome}
