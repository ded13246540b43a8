"""Values that are invalid in a cluster, a recipe and keys, for the fault "bad inputs"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support.bad_values import DELETE, DIGITS, Loc


def _any(*values: object) -> tuple[object, ...]:
    """Values of any types."""
    return values


CLUSTER: Mapping[str, Any] = {
    "name": "spark",
    "image": "r.example.org/vllm:1",
    "model": "meta/Model-8B",
    "args": "--max-model-len 4096",
    "port": 8000,
    "nodes": [
        {"host": "spark1", "address": "10.0.0.1", "interfaces": ["eth0"], "rdma": ["roce0"]},
        {"host": "spark2", "address": "10.0.0.2", "interfaces": ["eth0"], "rdma": ["roce0"]},
    ],
}
_NODE = ("nodes", 0)
CLUSTER_VALUES: Sequence[tuple[Loc, object]] = (
    *((("name",), text) for text in ("A B", "-x", "x" * 99, "", "\u202e")),
    *(
        (("image",), text)
        for text in ("https://u:p@h/x", "u:p@h/x", "-v", "a b", "x@sha256:1", "x/Y", "\u202ex", "")
    ),
    *((("model",), text) for text in ("", "--help", "a b", "a\nb", " ")),
    *((("args",), text) for text in ("x", "'", "--port 1", "--nnodes=2", "-tp 3")),
    *((("port",), value) for value in _any(0, -1, 65536, 1.5, "x", True, int(DIGITS[:400]))),
    *((("executor",), value) for value in _any("slurm", [], None)),
    *((("user",), text) for text in ("me", "0:0:0", "-1", "1000;id")),
    *((("cache",), text) for text in ("~/x", "a b", "../x", "/a:/b", "")),
    *((("mounts",), value) for value in _any(["/a"], ["/a:b"], ["/a:/b:rw"], "x", [""])),
    *((("pass_on",), [text]) for text in ("A=B", "", "A B", "1A", "--help")),
    *((("environment",), value) for value in _any({"A B": "x"}, {"": "x"}, {"A": 1}, ["A"])),
    *((("nodes",), value) for value in _any([], {}, "x", None, [None])),
    *(
        ((*_NODE, "host"), text)
        for text in ("-oProxyCommand=sh", "", "a b", "a:99999", "a:0", "u@@h", "a:", "h;id")
    ),
    *(((*_NODE, "address"), text) for text in ("x", "10.0.0.300", "", "10.0.0.1/24", "10.0.0.2")),
    *(((*_NODE, key), [text]) for key in ("interfaces", "rdma") for text in ("a b", "", "x" * 64)),
    ((*_NODE, "host"), "spark2"),
    ((*_NODE, "role"), "boss"),
    (("zzz",), 1),
    *(((key,), DELETE) for key in ("nodes", "image", "model")),
)

RECIPE: Mapping[str, Any] = {
    "summary": "a model",
    "model": "meta/Model-8B",
    "weights": "bf16",
    "weights_gib": "15.2",
    "vllm": ">=0.22",
    "options": {"max-model-len": 4096},
    "env": {"A": "b"},
}
RECIPE_VALUES: Sequence[tuple[Loc, object]] = (
    *((("model",), value) for value in ("", "-x/y", "a b", "a/b/c", "../x", 7, "\u202e/x")),
    *((("weights",), value) for value in _any("nvfp5", "", None, ["bf16"])),
    *((("weights_gib",), value) for value in ("x", "-1", 1.5, "1e3", "")),
    *((("experts",), value) for value in _any("maybe", 7, [])),
    *((("context",), value) for value in _any(0, -1, "x", 1.5, True)),
    *((("hardware",), value) for value in _any([], ["gb11"], "gb10")),
    *((("vllm",), value) for value in _any("", "latest", ">=0.22;x", f">={DIGITS}", 0.22)),
    *((("nodes",), value) for value in _any([], [0], ["x"], 1, [-1])),
    *((("user",), text) for text in ("me", "0:0:0", "-1")),
    *((("options", key), 1) for key in ("A B", "--x", "", "x=y")),
    *((("options",), value) for value in _any([], "x", None)),
    *((("env", key), "x") for key in ("A B", "A=B", "1A", "")),
    *((("env", "A"), value) for value in _any("a\nb", 1, None, ["x"])),
    *((("when",), value) for value in _any([{"vllm": 1}], [{"nodes": 0}], {}, [{"x": 1}])),
    (("when",), [{"vllm": "latest"}]),
    (("accepts",), [{"rule": "", "reason": "x"}]),
    (("notes",), [{"text": "x"}]),
    (("sampling",), {"x": {"y": "warm"}}),
    (("zzz",), 1),
    *(((key,), DELETE) for key in ("summary", "model", "weights", "vllm")),
)

_BEGIN, _END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
#: What is no private key, and names no file with one.
SIGNING_KEYS = (
    *(f"{_BEGIN}\n{text}\n{_END}\n" for text in ("", "x", "A" * 64, "A" * 39 + "\udcb7", "\u202e")),
    *(_BEGIN, "A" * 300, "/dev/zero", "/dev/null", ".", "none", "\udcff", f"{_BEGIN}{DIGITS}"),
)
#: What is no list of public keys.
TRUSTED_KEYS = (
    *(b"ssh-rsa AAAAB3NzaC1yc2E me\n", b"ssh-ed25519 AAAA me\n", b"ssh-ed25519 !!!! me\n"),
    *(b"\0", b"\xff\xfe", b"key\n", b"ssh-ed25519\n", b"x" * 200_000),
)
