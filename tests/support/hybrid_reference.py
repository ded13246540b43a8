"""Qwen3-Next by its definition: the gated delta rule in recurrent form, a gate on attention."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from support.model_reference import Array, Reference, rms_norm


def reference(folder: Path) -> Reference:
    """The reference for the model in a folder."""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    return HybridReference(folder) if kind == "qwen3_next" else Reference(folder)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def silu(x: Array) -> Array:
    return x * sigmoid(x)


class HybridReference(Reference):
    """A model in a folder."""

    def _norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self.weights[f"{name}.weight"] + 1)

    def _rope(self, x: Array) -> Array:
        part = int(x.shape[1] * self.config["partial_rotary_factor"])
        return np.concatenate([super()._rope(x[:, :part]), x[:, part:]], axis=1)

    def _attention(self, prefix: str, x: Array) -> Array:
        if f"{prefix}.q_proj.weight" not in self.weights:
            return self._linear(prefix.replace("self_attn", "linear_attn"), x)
        w, size = self.weights, self.config["head_dim"]
        both = (x @ w[f"{prefix}.q_proj.weight"].T).reshape(len(x), self.heads, 2, size)
        k, v = ((x @ w[f"{prefix}.{one}_proj.weight"].T).reshape(len(x), -1, size) for one in "kv")
        brought = []
        for head in range(self.heads):
            query = self._norm(both[:, head, 0], f"{prefix}.q_norm")
            key = self._norm(k[:, head], f"{prefix}.k_norm")
            found = self._attend(query, key, v[:, head])
            brought.append(found * sigmoid(both[:, head, 1]))
        return np.asarray(np.concatenate(brought, axis=1) @ w[f"{prefix}.o_proj.weight"].T)

    def _linear(self, prefix: str, x: Array) -> Array:
        w, heads = self.weights, self.config["linear_num_key_heads"]
        taps = w[f"{prefix}.conv1d.weight"][:, 0]
        size = self.config["linear_key_head_dim"]
        parts = (x @ w[f"{prefix}.in_proj_qkvz.weight"].T).reshape(len(x), heads, 4, size)
        mixed = parts[:, :, :3].transpose(0, 2, 1, 3).reshape(len(x), -1)
        before = np.concatenate([np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed])
        mixed = silu(sum(before[at : at + len(x)] * tap for at, tap in enumerate(taps.T)))
        q, k, v = mixed.reshape(len(x), 3, heads, size).transpose(1, 2, 0, 3)
        rates = (x @ w[f"{prefix}.in_proj_ba.weight"].T).reshape(len(x), heads, 2)
        brought = []
        for head in range(heads):
            pace = np.log1p(np.exp(rates[:, head, 1] + w[f"{prefix}.dt_bias"][head]))
            kept = np.exp(-np.exp(w[f"{prefix}.A_log"][head]) * pace)
            found = _delta_rule(q[head], k[head], v[head], kept, sigmoid(rates[:, head, 0]))
            found = rms_norm(found, w[f"{prefix}.norm.weight"])
            brought.append(found * silu(parts[:, head, 3]))
        return np.asarray(np.concatenate(brought, axis=1) @ w[f"{prefix}.out_proj.weight"].T)


def _delta_rule(q: Array, k: Array, v: Array, kept: Array, written: Array) -> Array:
    """One head: each word reads after it has written."""
    q, k = (one / np.sqrt((one * one).sum(axis=1, keepdims=True) + 1e-6) for one in (q, k))
    state = np.zeros((k.shape[1], v.shape[1]))
    read = []
    for at in range(len(q)):
        state *= kept[at]
        state += np.outer(k[at], (v[at] - k[at] @ state) * written[at])
        read.append(q[at] @ state / np.sqrt(q.shape[1]))
    return np.asarray(read, np.float32)
