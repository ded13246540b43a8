"""What a server's log has to say, and must not: rules in ``log_rules.toml``, by release of vLLM."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from packaging.specifiers import SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict


def _compiles(text: str) -> str:
    re.compile(text)
    return text


def _is_range(text: str) -> str:
    SpecifierSet(text)
    return text


class Rule(BaseModel):
    """A row of the file, where its fields are explained."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    must: bool
    pattern: Annotated[str, AfterValidator(_compiles)]
    source: str
    vllm: Annotated[str, AfterValidator(_is_range)]
    why: str
    project: Literal["vllm", "flashinfer"] = "vllm"
    models: list[str] = []
    devices: list[Literal["cpu", "cuda"]] = []
    capabilities: list[str] = []

    def concerns(self, *, vllm: str, model: str, device: str, capability: str) -> bool:
        """Whether it is about such a server; ``capability`` is empty where it is not known."""
        return (
            SpecifierSet(self.vllm, prereleases=True).contains(vllm)
            and (not self.models or model in self.models)
            and (not self.devices or device in self.devices)
            and (not self.capabilities or capability in self.capabilities)
        )

    def broken_by(self, log: str) -> str:
        """How ``log`` breaks it; empty if it does not."""
        found = re.search(self.pattern, log)
        if self.must and not found:
            return f"no line with {self.pattern!r}: {self.why}"
        if not self.must and found:
            return f"{found[0]!r}: {self.why}"
        return ""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rule: list[Rule]


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule. Raises ValidationError if the file is wrong."""
    file = resources.files(__package__).joinpath("log_rules.toml")
    return tuple(_File.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))).rule)


def broken(
    log: str, *, vllm: str, model: str, device: str, capability: str
) -> tuple[list[Rule], list[str]]:
    """The rules about such a server, and how its log breaks them."""
    rules = [
        rule
        for rule in all_rules()
        if rule.concerns(vllm=vllm, model=model, device=device, capability=capability)
    ]
    return rules, [text for rule in rules if (text := rule.broken_by(log))]
