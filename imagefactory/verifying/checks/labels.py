"""Do the labels say what the image is? Push, inspect and people go by them."""

from __future__ import annotations

from imagefactory.matrix.cell import PINS
from imagefactory.planning.cell_plan import LABEL
from imagefactory.verifying.registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Subject

OCI = "org.opencontainers.image"
ALWAYS = (
    *(f"{OCI}.{name}" for name in ("title", "version", "created")),
    *(f"{LABEL}.{name}" for name in ("cell", "build-key", "lock-digest", "flavor", "channel")),
)


@check("labels-complete", needs="facts")
def complete(subject: Subject) -> Verdict:
    """No label is missing or empty: the fixed ones, one for every pin and one for every patch."""
    axes = subject.manifest.get("axes", {})
    patches = [patch["name"].replace("/", ".", 1) for patch in subject.manifest.get("patches", [])]
    wanted = [
        *ALWAYS,
        *(f"{LABEL}.pin.{axis}" for axis in PINS if axis in axes),
        *(f"{LABEL}.patch.{name}" for name in patches),
    ]
    missing = [name for name in wanted if not subject.image.labels.get(name)]
    if missing:
        return failed(f"missing or empty: {', '.join(missing)}")
    return passed(f"{len(wanted)} labels")


@check("labels-true", needs="facts")
def true(subject: Subject) -> Verdict:
    """The labels agree with what the build wrote into the image and with what the caller asked
    for, if it says so.
    """
    manifest, expected = subject.manifest, subject.expected
    axes = manifest.get("axes", {})
    wanted = {
        "cell": manifest.get("cell"),
        "build-key": manifest.get("build_key"),
        **{name: axes.get(name) for name in ("flavor", "channel")},
        **{f"pin.{axis}": axes.get(axis) for axis in PINS},
    }
    faults = [
        (
            f"{LABEL}.{name} is {subject.label(name) or 'missing'}, the image's "
            f"manifest says {value or 'nothing'}"
        )
        for name, value in wanted.items()
        if subject.label(name) != (value or "")
    ]
    if axes.get("platform") != subject.image.platform:
        faults.append(
            f"the image is for {subject.image.platform}, its manifest says {axes.get('platform')}"
        )
    if expected:
        asked = {
            "cell": expected.cell.name,
            "build-key": expected.build_key,
            "lock-digest": expected.lock_digest,
            **{f"pin.{axis}": value for axis, value in expected.cell.pins.items()},
        }
        faults += [
            f"{LABEL}.{name} is {subject.label(name) or 'missing'}, the cell has {value}"
            for name, value in asked.items()
            if subject.label(name) != value
        ]
    if faults:
        return failed("; ".join(faults))
    return passed("as the image's manifest says" + (" and the cell" if expected else ""))
