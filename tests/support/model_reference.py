"""What a folder of a tiny model says, by the published formats and nothing of vLLM or torch.

Reads the files that a server reads, decodes E2M1, E4M3 and bfloat16, and computes Qwen3, Qwen3-MoE
and MiMo from the definitions of their architectures.
"""

from __future__ import annotations

import fnmatch
import json
import struct
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def stored(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The tensors of a safetensors file: dtype, shape and bytes of each."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    rest = data[8 + length :]
    return {
        name: (one["dtype"], tuple(one["shape"]), rest[slice(*one["data_offsets"])])
        for name, one in header.items()
    }


def store(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write such tensors."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    body = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _e4m3() -> Array:
    """One sign, four bits of exponent with bias 7, three of mantissa."""
    table = []
    for code in range(256):
        exponent, part = code >> 3 & 15, (code & 7) / 8
        size = part * 2.0**-6 if exponent == 0 else (1 + part) * 2.0 ** (exponent - 7)
        table.append(-size if code & 128 else size)
    return np.array(table, np.float32)


E4M3 = _e4m3()


def values(dtype: str, shape: Sequence[int], data: bytes) -> Array:
    """The numbers of a tensor; bytes stay as they are."""
    if dtype == "BF16":
        flat = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    elif dtype == "F8_E4M3":
        flat = E4M3[np.frombuffer(data, np.uint8)]
    else:
        flat = np.frombuffer(data, {"F32": "<f4", "U8": "u1"}[dtype])
    return np.asarray(flat.reshape(shape), flat.dtype)


def e2m1(packed: NDArray[Any], scales: Array, scale: float) -> Array:
    """The first of two weights is in the lower four bits; 16 of a row share a block scale."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
    signed = np.where(codes & 8, -1, 1) * E2M1[codes & 7]
    return np.asarray(signed * np.repeat(scales, 16, axis=1) * scale, np.float32)


def rms_norm(x: Array, weight: Array) -> Array:
    mean = np.mean(x * x, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + 1e-6) * weight, np.float32)


def softmax(x: Array) -> Array:
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True), np.float32)


class Unreadable(Exception):  # noqa: N818 - what a server would end with
    """The files contradict each other."""


class Reference:
    """A model in a folder."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        self.vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
        self.whole = tuple(one["content"] for one in tokenizer["added_tokens"])
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        self.template: str = settings["chat_template"]
        self.words = {number: word for word, number in self.vocabulary.items()}
        raw = {name: values(*one) for name, one in stored(folder / "model.safetensors").items()}
        self.weights = dict(self._plain(raw))
        self.heads: int = self.config["num_attention_heads"]

    def _plain(self, raw: dict[str, Array]) -> Iterable[tuple[str, Array]]:
        """Every weight as numbers, however it is stored."""
        quantization = self.config.get("quantization_config", {})
        for name, one in raw.items():
            excluded = any(
                fnmatch.fnmatch(name.rpartition(".")[0], p) for p in quantization.get("ignore", [])
            )
            if name.endswith("weight_packed"):
                inverse = 1 / raw[name.replace("packed", "global_scale")].item()
                yield (
                    name.removesuffix("_packed"),
                    e2m1(one, raw[name.replace("packed", "scale")], inverse),
                )
            elif one.dtype == np.uint8:
                if excluded:
                    raise Unreadable(f"{name} is quantized, and excluded from quantization")
                yield name, e2m1(one, raw[f"{name}_scale"], raw[f"{name}_scale_2"].item())
            elif f"{name}_scale" in raw:
                yield name, one * raw[f"{name}_scale"]
            elif "scale" not in name:
                yield name, one

    @cached_property
    def layers(self) -> int:
        """The number of decoder layers, without those of a head."""
        return int(self.config["num_hidden_layers"])

    def _norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self.weights[f"{name}.weight"])

    def _rope(self, x: Array) -> Array:
        half = x.shape[1] // 2
        turns = np.arange(len(x))[:, None] * self.config["rope_theta"] ** (-np.arange(half) / half)
        a, b = x[:, :half], x[:, half:]
        turned = (a * np.cos(turns) - b * np.sin(turns), b * np.cos(turns) + a * np.sin(turns))
        return np.concatenate(turned, axis=1).astype(np.float32)

    def _attend(self, query: Array, key: Array, value: Array) -> Array:
        mask = np.triu(np.full((len(query), len(query)), -np.inf, np.float32), 1)
        scores = self._rope(query) @ self._rope(key).T / np.sqrt(query.shape[1]) + mask
        return np.asarray(softmax(scores) @ value)

    def _attention(self, prefix: str, x: Array) -> Array:
        w, size = self.weights, self.config["head_dim"]
        q, k, v = (
            x @ w[f"{prefix}.{one}_proj.weight"].T + w.get(f"{prefix}.{one}_proj.bias", 0)
            for one in "qkv"
        )
        heads = []
        for head in range(self.heads):
            one = slice(head * size, (head + 1) * size)
            query, key = q[:, one], k[:, one]
            if f"{prefix}.q_norm.weight" in w:
                query = self._norm(query, f"{prefix}.q_norm")
                key = self._norm(key, f"{prefix}.k_norm")
            heads.append(self._attend(query, key, v[:, one]))
        return np.asarray(np.concatenate(heads, axis=1) @ w[f"{prefix}.o_proj.weight"].T)

    def _gated(self, prefix: str, x: Array) -> Array:
        w = self.weights
        gate = x @ w[f"{prefix}.gate_proj.weight"].T
        hidden = gate / (1 + np.exp(-gate)) * (x @ w[f"{prefix}.up_proj.weight"].T)
        return np.asarray(hidden @ w[f"{prefix}.down_proj.weight"].T)

    def _mlp(self, prefix: str, x: Array) -> Array:
        if f"{prefix}.gate.weight" not in self.weights:
            return self._gated(prefix, x)
        chances = softmax(x @ self.weights[f"{prefix}.gate.weight"].T)
        out = np.zeros_like(x)
        for row, chance in enumerate(chances):
            chosen = np.argsort(-chance)[: self.config["num_experts_per_tok"]]
            for expert in chosen:
                share = chance[expert] / chance[chosen].sum()
                out[row] += share * self._gated(f"{prefix}.experts.{expert}", x[row : row + 1])[0]
        return out

    def _layer(self, prefix: str, x: Array) -> Array:
        normed = self._norm(x, f"{prefix}.input_layernorm")
        x = x + self._attention(f"{prefix}.self_attn", normed)
        return x + self._mlp(f"{prefix}.mlp", self._norm(x, f"{prefix}.post_attention_layernorm"))

    def hidden(self, tokens: Sequence[int]) -> Array:
        """The state after the last layer, before the last norm."""
        x = self.weights["model.embed_tokens.weight"][list(tokens)]
        for number in range(self.layers):
            x = self._layer(f"model.layers.{number}", x)
        return x

    def logits(self, tokens: Sequence[int]) -> Array:
        """Those after the last token."""
        last = self._norm(self.hidden(tokens)[-1], "model.norm")
        return np.asarray(last @ self.weights["lm_head.weight"].T)

    @np.errstate(all="ignore")
    def answer(self, words: Sequence[str], most: int = 16) -> tuple[tuple[str, ...], float]:
        """The greedy continuation up to the end token, and the smallest chance of a chosen word."""
        tokens = [self.vocabulary[word] for word in words]
        said: list[str] = []
        least = 1.0
        while len(said) < most:
            chances = softmax(self.logits(tokens))
            best = int(np.argmax(chances))
            least = min(least, float(chances[best]))
            if best == self.config["eos_token_id"]:
                break
            tokens.append(best)
            said.append(self.words[best])
        return tuple(said), least

    def draft(self, words: Sequence[str]) -> str:
        """The word after next, by the head: the last of ``words`` is what the model said next."""
        w, prefix = self.weights, "model.mtp_layers.0"
        tokens = [self.vocabulary[word] for word in words]
        before = rms_norm(self.hidden(tokens)[:-1], w[f"{prefix}.hidden_layernorm.weight"])
        embedded = w["model.embed_tokens.weight"][tokens[1:]]
        embedded = rms_norm(embedded, w[f"{prefix}.token_layernorm.weight"])
        x = np.concatenate([before, embedded], axis=1) @ w[f"{prefix}.input_proj.weight"].T
        last = rms_norm(self._layer(prefix, x)[-1], w[f"{prefix}.final_layernorm.weight"])
        logits = last @ w["lm_head.weight"].T
        return str(self.words[int(np.argmax(logits))])
