"""The checks of an image's content, which read its layers and run nothing."""

from __future__ import annotations

from collections.abc import Sequence

from imagefactory.verifying.check_registry import (
    Verdict,
    check,
    count,
    excused,
    failed,
    passed,
    unknown,
)
from imagefactory.verifying.outside.judged import Judged
from imagefactory.verifying.subject import Subject

SHOWN = 5


@check("image-origin", excusable=True)
def origin(subject: Subject) -> Verdict:
    """The image has a digest that a build of its build key gave on this machine.

    Fails for a foreign image: one with the labels of a cell that something else made or changed. An
    image whose build key was never built here is judged by its content alone.
    """
    key = subject.label("build-key")[:12]
    if not subject.builds:
        return excused(f"this machine has not built {key}: see the checks of the image's content")
    if subject.image.digest in subject.builds:
        return passed(f"built here from {key}")
    return failed(
        f"foreign: the image is {subject.image.digest}, and builds of {key} gave "
        f"{', '.join(subject.builds)}"
    )


@check("image-config")
def config(subject: Subject) -> Verdict:
    """Environment, entrypoint, command, user, folder and labels are those that the cell has.

    Fails for a variable such as LD_PRELOAD or PYTHONPATH, another entrypoint, a user, a volume or a
    health check.
    """
    return _verdict(subject, "config", "as the cell and its base have it")


@check("image-files")
def files(subject: Subject) -> Verdict:
    """Every file has the hash, size and mode that its source has.

    Sources are the locked wheels, the patches as applied to them on this machine, the base and the
    build's own files. Fails for a file that was changed, cut, added to or removed, whether this
    machine would load it or not.
    """
    content = subject.content
    if content is None:
        return _verdict(subject, "changed", "")
    left = f"; left out as obsolete: {', '.join(content.obsolete)}" if content.obsolete else ""
    wheels = count(content.wheels, "wheel")
    said = f"{content.files} files compared with {wheels} and the base{left}"
    return _verdict(subject, "changed", said)


@check("image-unexplained")
def unexplained(subject: Subject) -> Verdict:
    """No file comes from nowhere: each is of a locked wheel, a patch, the base or the build.

    Fails for a module without a wheel, a ``.pth`` file, a ``sitecustomize`` or a preloaded library.
    """
    return _verdict(subject, "extra", "nothing is in the image that is not explained")


def _verdict(subject: Subject, part: str, said: str) -> Verdict:
    content = subject.content
    if content is None:
        return unknown(
            "it is not known what it should be: neither its tag nor its labels are those of a cell"
        )
    if content.error:
        return failed(content.error) if content.damaged else unknown(content.error)
    faults = _faults(content, part)
    if not faults:
        return passed(said, seconds=content.seconds if part == "changed" else 0.0)
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    return failed(f"{'; '.join(faults[:SHOWN])}{more}", seconds=content.seconds)


def _faults(content: Judged, part: str) -> Sequence[str]:
    found = {"config": content.config, "changed": content.changed, "extra": content.extra}
    return [str(fault) for fault in found[part]]
