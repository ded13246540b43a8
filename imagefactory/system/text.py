"""Text for a terminal: data made safe to print, and styled parts of a line."""

from __future__ import annotations

from rich.text import Text

from imagefactory import redaction

#: What a line or a table cell is made of: a ``str`` is data and is printed as it is, a ``Text``
#: (see ``styled``) has a style. Neither is ever parsed for markup or emoji codes.
Part = str | Text


def safe(text: str) -> str:
    """``text`` with everything that is not printable written as an escape, such as ``\\x1b``,
    and without secrets.

    Data comes from images, logs and indexes: none of it may move the cursor, set colours, reverse
    the reading direction or break the encoding of the output. Line ends and tabs stay.
    """
    text = redaction.hide(text)
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in "\n\t"
        else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


def encodable(text: str) -> str:
    """``text`` for a file: names of files that are no UTF-8 are in messages as lone surrogates."""
    return text.encode(errors="replace").decode()


def styled(text: str, style: str) -> Text:
    """``text``, which is data, in a rich style such as ``green`` or ``bold``."""
    return Text(safe(text), style)


def join(*parts: Part) -> Text:
    """``parts`` as one line."""
    return Text.assemble(*(safe(part) if isinstance(part, str) else part for part in parts))


def shorten(text: str, length: int) -> str:
    """``text`` in at most ``length`` characters, its middle left out if it is longer."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"
