"""A plan as a bar: what fills the memory of a node. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from imagefactory.memory import machine
from imagefactory.memory.memory import Plan


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the memory: its letter in plain text, its colour on a terminal."""

    name: str
    letter: str
    colour: str
    bytes: int
    source: str


def segments(plan: Plan, measured: str = "read from its index") -> list[Segment]:
    """What fills the memory of a node, from the bottom up; it may be more than there is.

    ``measured`` says where the size of the weights is from if it was not computed.
    """
    weights = measured if plan.measured else "computed from its shapes"
    cache = max(plan.cache, plan.needed) if plan.fits else plan.needed
    seqs = f"{plan.request.seqs} x {plan.context} tokens in {plan.cache_dtype}"
    found = [
        Segment("system", "s", "bright_black", machine.SYSTEM.bytes, machine.SYSTEM.source),
        Segment("server", "h", "magenta", machine.SERVER.bytes, machine.SERVER.source),
        Segment("weights", "w", "blue", plan.weights, weights),
    ]
    found += [Segment(one.name, "r", "cyan", one.bytes, one.source) for one in plan.runtime]
    found.append(Segment("KV cache", "k", "green", cache, seqs))
    left = plan.request.total - sum(one.bytes for one in found)
    if left > 0:
        found.append(Segment("left", ".", "dim", left, machine.PAGE_CACHE))
    return found


def bar(plan: Plan, width: int) -> list[tuple[Segment, int]]:
    """Each segment with its columns of ``width``, of which the memory takes all.

    What is too much goes beyond ``width``. All that is not nothing has a column.
    """
    shown, at, used = [], 0, 0
    for one in segments(plan):
        at += one.bytes
        end = max(round(at / plan.request.total * width), used + (1 if one.bytes else 0))
        shown.append((one, end - used))
        used = end
    return shown
