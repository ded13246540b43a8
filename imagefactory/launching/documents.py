"""YAML that readers of version 1.1 and of 1.2 understand in the same way. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

#: Text that needs no quotes, if PyYAML agrees: it takes ``1e6`` for text, which others do not.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./:@-]*")
_NAME = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 63


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN.fullmatch(text) else "|" if text.endswith("\n") else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(*documents: Mapping[str, Any], remarks: Sequence[str] = ()) -> str:
    """The documents as one text, under comment lines."""
    head = "".join(f"# {line}\n" for remark in remarks for line in remark.splitlines())
    # lines are not folded: an argument stays on one line
    return head + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1 << 20)


def dns_name(name: str) -> str:
    """``name`` as a label of DNS, as Kubernetes names objects and Compose projects."""
    return _NAME.sub("-", name.lower())[:_LONGEST_NAME].strip("-")
