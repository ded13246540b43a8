"""The checks that the labels say what the image is: push, inspect and people rely on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from imagefactory.matrix.cell import pins_of
from imagefactory.planning.cell_plan import LABEL
from imagefactory.verifying.check_registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Expectation, Subject

OCI = "org.opencontainers.image"
ALWAYS = (
    *(f"{OCI}.{name}" for name in ("title", "version", "created")),
    *(f"{LABEL}.{name}" for name in ("cell", "build-key", "lock-digest", "flavor", "channel")),
)


@check("labels-complete", needs="manifest")
def complete(subject: Subject) -> Verdict:
    """No label is missing or empty: the fixed ones, one for each pin and one for each patch.

    Fails for an image that was relabelled or built by something else.
    """
    axes = subject.manifest.get("axes", {})
    patches = [patch["name"].replace("/", ".", 1) for patch in subject.manifest.get("patches", [])]
    wanted = [
        *ALWAYS,
        *(f"{LABEL}.pin.{axis}" for axis in pins_of(axes) if axis in axes),
        *(f"{LABEL}.patch.{name}" for name in patches),
    ]
    missing = [name for name in wanted if not subject.image.labels.get(name)]
    if missing:
        return failed(f"missing or empty: {', '.join(missing)}")
    return passed(f"{len(wanted)} labels")


@check("labels-true", needs="manifest")
def true(subject: Subject) -> Verdict:
    """The labels agree with the image's manifest, and with the cell where the caller knows it.

    Fails for a relabelled image, or one of another cell, build key, lock, pin or platform.
    """
    axes = subject.manifest.get("axes", {})
    recorded = {
        "cell": subject.manifest.get("cell"),
        "build-key": subject.manifest.get("build_key"),
        **{name: axes.get(name) for name in ("flavor", "channel")},
        **{f"pin.{axis}": axes.get(axis) for axis in _pins(subject, axes)},
    }
    faults = _differences(subject, recorded, axes.get("platform"), "the image's manifest")
    if subject.expected:
        expected = subject.expected
        asked = _asked(expected, _pins(subject, expected.cell.axes))
        faults += _differences(subject, asked, expected.cell.platform, "the cell")
    if faults:
        return failed("; ".join(faults))
    return passed("as in the image's manifest" + (" and the cell" if subject.expected else ""))


def _pins(subject: Subject, axes: Iterable[str]) -> tuple[str, ...]:
    """The pins that an image with ``axes`` has, and those that its labels name."""
    prefix = f"{LABEL}.pin."
    named = [label.removeprefix(prefix) for label in subject.image.labels if prefix in label]
    return tuple(dict.fromkeys([*pins_of(axes), *named]))


def _asked(expected: Expectation, pins: Iterable[str]) -> dict[str, str | None]:
    """The labels that an image of the expected cell has."""
    cell = expected.cell
    return {
        "cell": cell.name,
        "build-key": expected.build_key,
        "lock-digest": expected.lock_digest,
        "flavor": cell.flavor.name,
        "channel": cell.channel,
        **{f"pin.{axis}": cell.pins.get(axis) for axis in pins},
    }


def _differences(
    subject: Subject, wanted: Mapping[str, str | None], platform: str | None, source: str
) -> list[str]:
    """How labels and platform differ from what ``source`` has."""
    faults = [
        f"{LABEL}.{name} is {subject.label(name) or 'missing'}, {source} has {value or 'nothing'}"
        for name, value in wanted.items()
        if subject.label(name) != (value or "")
    ]
    if platform != subject.image.platform:
        faults.append(
            f"the image is for {subject.image.platform}, {source} has {platform or 'nothing'}"
        )
    return faults
