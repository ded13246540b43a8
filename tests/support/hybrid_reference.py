"""Qwen3-Next by its definition: the gated delta rule in recurrent form, a gate on attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
        w, size = self.weights, self.config["linear_key_head_dim"]
        keys, heads = (self.config[f"linear_num_{of}_heads"] for of in ("key", "value"))
        group = heads // keys
        taps = w[f"{prefix}.conv1d.weight"][:, 0]
        # of each head of keys: query, key, its group's values, and their gates
        parts = (x @ w[f"{prefix}.in_proj_qkvz.weight"].T).reshape(len(x), keys, -1, size)
        columns = (parts[:, :, 0], parts[:, :, 1], parts[:, :, 2 : 2 + group])
        mixed = np.concatenate([one.reshape(len(x), -1) for one in columns], axis=1)
        gates = parts[:, :, 2 + group :].reshape(len(x), heads, size)
        before = np.concatenate([np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed])
        mixed = silu(sum(before[at : at + len(x)] * tap for at, tap in enumerate(taps.T)))
        every = mixed.reshape(len(x), -1, size).transpose(1, 0, 2)
        q, k, v = every[:keys], every[keys : 2 * keys], every[2 * keys :]
        rates = (x @ w[f"{prefix}.in_proj_ba.weight"].T).reshape(len(x), keys, 2, group)
        written, forgotten = rates.transpose(2, 1, 3, 0).reshape(2, heads, len(x))
        brought = []
        for head in range(heads):
            pace = np.log1p(np.exp(forgotten[head] + w[f"{prefix}.dt_bias"][head]))
            kept = np.exp(-np.exp(w[f"{prefix}.A_log"][head]) * pace)
            of = head // group
            found = _delta_rule(q[of], k[of], v[head], kept, sigmoid(written[head]))
            found = rms_norm(found, w[f"{prefix}.norm.weight"])
            brought.append(found * silu(gates[:, head]))
        return np.asarray(np.concatenate(brought, axis=1) @ w[f"{prefix}.out_proj.weight"].T)


def _delta_rule(q: Array, k: Array, v: Array, kept: Array, written: Array) -> Array:
    """One head: each word reads after it has written."""
    units: list[Any] = [
        one / np.sqrt((one * one).sum(axis=1, keepdims=True) + 1e-6) for one in (q, k)
    ]
    q, k = units
    state = np.zeros((k.shape[1], v.shape[1]))
    read = []
    for at in range(len(q)):
        state *= kept[at]
        state += np.outer(k[at], (v[at] - k[at] @ state) * written[at])
        read.append(q[at] @ state / np.sqrt(q.shape[1]))
    return np.asarray(read, np.float32)
