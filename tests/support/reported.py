"""What is known of made-up images, for the pages about them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from imagefactory.auditing.auditing import Audit
from imagefactory.auditing.gpu_code import GpuCode
from imagefactory.auditing.judging import Extension
from imagefactory.inspecting.anatomy import Anatomy, Dropped, Layer
from imagefactory.reporting.facts import Facts
from imagefactory.verifying.receipt import CheckResult, Level, Outcome, PatchResult, Receipt
from imagefactory.verifying.receipt_store import Found
from support.keys import signer

TAG, DIGEST = "imagefactory/vllm:gb10-vllm0.33.0", f"sha256:{'ab' * 32}"
CELL, LOCK, KEY = "gb10-vllm0.33.0", f"sha256:{'cd' * 32}", "ef" * 32
PINS = {"vllm": "0.33.0", "torch": "2.14.0", "flashinfer": "0.7.2.post1", "cuda": "13.0"}
LABELS = {
    "io.imagefactory.cell": CELL,
    "io.imagefactory.flavor": "gb10",
    "io.imagefactory.torch": "2.14.0+cu130",
    "io.imagefactory.lock-digest": LOCK,
    "io.imagefactory.build-key": KEY,
    "io.imagefactory.base-suite": "trixie",
    "io.imagefactory.base-digest": f"sha256:{'12' * 32}",
    "io.imagefactory.patch.vllm.mtp-exclusion": "0.33.diff",
    "io.imagefactory.patch.vllm.fp8-backend-sm121": "proof only",
    **{f"io.imagefactory.pin.{axis}": version for axis, version in PINS.items()},
}
PURPOSES = (
    "base",
    "distribution packages",
    "torch",
    "nvidia-cublas",
    "vLLM and FlashInfer",
    "patches",
)


def check(name: str = "torch-identity", **values: Any) -> CheckResult:
    """A check that passed, unless ``values`` say otherwise."""
    known = {"outcome": Outcome.PASS, "required": True, "detail": "2.14.0+cu130", "seconds": 6.1}
    return CheckResult(name=name, **{**known, **values})


def receipt(*checks: CheckResult, **values: Any) -> Receipt:
    """A receipt of the image."""
    proved = PatchResult(
        name="vllm/mtp-exclusion", variant="0.33.diff", proof="pass", detail="layer 61 is excluded"
    )
    needless = replace(proved, name="vllm/fp8-backend-sm121", variant="proof only")
    known = {
        "digest": DIGEST,
        "tag": TAG,
        "cell": CELL,
        "build_key": KEY,
        "verified_at": "2026-11-22T18:00:00+00:00",
        "version": "0.1.0",
        "level": Level.IMPORT,
        "lock_digest": LOCK,
        "patches": (proved, needless),
        "tools": {"imagefactory": "0.1.0", "engine": "29.0.1"},
        "machine": {"platform": "linux/arm64", "cpus": "20", "emulated": "no"},
    }
    return Receipt(**{**known, **values}, checks=checks or (check(),))


def image(**values: Any) -> Anatomy:
    """What the image contains."""
    layers = (
        Layer(digest=f"sha256:{number:064x}", purpose=purpose, size=10**8 * (number + 1))
        for number, purpose in enumerate(PURPOSES)
    )
    known = {
        "ref": TAG,
        "digest": DIGEST,
        "platform": "linux/arm64",
        "labels": LABELS,
        "env": {},
        "layers": tuple(layers),
        "packages": {"torch": "2.14.0", "vllm": "0.33.0"},
        "patches": {"vllm/mtp-exclusion": "applied", "vllm/fp8-backend-sm121": "needless"},
        "dropped": (Dropped(layer="torch", rule="headers", files=12_000, size=80_000_000),),
    }
    return Anatomy(**{**known, **values})


def audit(**values: Any) -> Audit:
    """An audit of its wheels."""
    code = GpuCode(targets={"sm_80": 3, "sm_120f": 41, "compute_120": 2})
    path = "vllm/_C.abi3.so"
    extension = Extension(wheel="vllm 0.33.0", path=path, gpu=code, way=code.way(121))
    return Audit(cell=CELL, **{"extensions": (extension,), "capability": 121, **values})


def facts(*checks: CheckResult, **values: Any) -> Facts:
    """All that is known of the image, whose receipt has ``checks`` and is signed."""
    found = Found(receipt=receipt(*checks), by=signer(b"ci@example.org").key, content=b"")
    known = {
        "image": image(),
        "found": found,
        "audit": audit(),
        "before": None,
        "written": datetime(2026, 11, 22, 19, tzinfo=UTC),
        "biggest": (("torch", "2.14.0", 410_000_000),),
        "levels": {"probe": Level.STATIC, "torch-identity": Level.IMPORT, "server": Level.SERVE},
    }
    return Facts(**{**known, **values})
