"""BuildKit's cache, as ``docker buildx du`` lists it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRecord:
    """A record of BuildKit's cache: id, bytes, what made it, and whether it can go."""

    id: str
    size: int
    description: str
    reclaimable: bool


def parse(text: str) -> list[CacheRecord]:
    """The records in what ``docker buildx du --verbose`` writes.

    It writes a block for each record and a line for each field.
    """
    return [_record(block) for block in text.split("\n\n") if block.startswith("ID:")]


def _record(block: str) -> CacheRecord:
    fields = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in block.splitlines())
    }
    return CacheRecord(
        id=fields["ID"].rstrip("*"),
        size=_bytes(fields.get("Size", "0B")),
        description=fields.get("Description", ""),
        reclaimable=fields.get("Reclaimable") == "true",
    )


def _bytes(text: str) -> int:
    """Bytes of a size as Docker writes it, such as ``2.223GB``."""
    number = text.rstrip("*BkMGTK")
    unit = text.rstrip("*").removeprefix(number)
    return int(
        float(number) * {"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    )
