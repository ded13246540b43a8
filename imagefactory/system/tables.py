"""Tables that fit a terminal, and plain aligned columns for everything else. Pure.

On a terminal a table is as wide as the terminal at most. What does not fit is made smaller in this
order: digests are shortened, prose is wrapped at its spaces, and a value that is still too long for
its column (a cell's name, a tag, a path) gets a line of its own below, or above if it is the first
of its row. Only what is longer than a whole line is broken, after ``/``, ``:`` or ``-`` if it has
one there.

In a pipe a row is one line and no value is wrapped or shortened, so that programs can read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from rich.cells import cell_len
from rich.text import Text

from imagefactory.system.text import Part, safe

GAP = 2
#: Columns below which prose is not squeezed, and above which a word gets a line of its own.
NARROW = 24
#: Columns by which values below a row are indented at most, the gap left aside.
INDENT = 4
_DIGEST = re.compile(r"(?<=sha256:)([0-9a-f]{12})[0-9a-f]{52}\b")
_WORD = re.compile(r"\S+\s*|\s+")
_PIECE = re.compile(r"[^/:-]*[/:-]+|[^/:-]+")

#: A cell: its lines.
Lines = list[Text]


def layout(columns: Sequence[str], rows: Sequence[Sequence[Part]], *, width: int | None) -> Lines:
    """The lines of a table; ``width`` is that of the terminal, None for a pipe.

    Raises ValueError if a row has another number of cells than there are columns.
    """
    head = [Text(safe(column), "bold") for column in columns]
    if any(len(row) != len(head) for row in rows):
        raise ValueError(f"a row has not {len(head)} cells")
    body = [[_text(part) for part in row] for row in rows]
    if width is None:
        return _aligned([head, *body] if any(columns) else body)
    grid = [[list(text.split("\n", allow_blank=True)) for text in row] for row in body]
    heads = [[text] for text in head]
    sizes = [max(_width(row[at]) for row in (heads, *grid)) for at in range(len(head))]
    if _total(sizes) > width:
        grid = [[[_short(line) for line in cell] for cell in row] for row in grid]
        sizes = _squeezed(heads, grid, width)
    shown = [cell if size else [] for cell, size in zip(heads, sizes, strict=True)]
    table = [shown, *grid] if any(columns) else grid
    return [line for row in table for line in _row(row, columns, sizes, width)]


def wrap(text: Text, width: int) -> Lines:
    """``text`` in lines of at most ``width``, broken at spaces.

    Words longer than a line are broken after ``/``, ``:`` or ``-``, and anywhere if they have none.
    """
    starts = [0]
    used = 0
    for at, size, room in _pieces(text.plain, width):
        if at and used + room > width:
            starts.append(at)
            used = 0
        used += size
    lines = text.divide(starts[1:])
    for line in lines:
        line.rstrip()
    return list(lines)


def _pieces(plain: str, width: int) -> Iterator[tuple[int, int, int]]:
    """Where ``plain`` may be broken: offset, width with and without the spaces that follow."""
    for word in _WORD.finditer(plain):
        found, at = word.group(), word.start()
        if cell_len(found.rstrip()) <= width:
            yield at, cell_len(found), cell_len(found.rstrip())
            continue
        for piece in _PIECE.finditer(found):
            if cell_len(piece.group().rstrip()) <= width:
                size = cell_len(piece.group())
                yield at + piece.start(), size, cell_len(piece.group().rstrip())
            else:
                for offset, char in enumerate(piece.group(), at + piece.start()):
                    yield offset, cell_len(char), cell_len(char)


def _text(part: Part) -> Text:
    if isinstance(part, Text) and safe(part.plain) == part.plain:
        text = part.copy()
        text.expand_tabs(1)
        return text
    plain = part.plain if isinstance(part, Text) else part
    return Text(safe(plain).replace("\t", " "), part.style if isinstance(part, Text) else "")


def _short(line: Text) -> Text:
    """``line`` with its digests cut to twelve digits."""
    for found in reversed(list(_DIGEST.finditer(line.plain))):
        line = line[: found.end(1)] + line[found.end() :]
    return line


def _width(cell: Lines) -> int:
    return max((cell_len(line.plain) for line in cell), default=0)


def _total(sizes: Sequence[int]) -> int:
    shown = [size for size in sizes if size]
    return sum(shown) + GAP * (len(shown) - 1)


def _longest(cell: Lines) -> int:
    return max((cell_len(word) for line in cell for word in line.plain.split()), default=0)


def _squeezed(heads: Sequence[Lines], grid: Sequence[Sequence[Lines]], width: int) -> list[int]:
    """Widths of the columns that fit ``width`` together.

    A column may come out narrower than words in it: their cells get lines of their own. A width of
    0 means that all of them do.
    """
    columns = [[row[at] for row in (heads, *grid)] for at in range(len(heads))]
    full = [max(map(_width, column)) for column in columns]
    least = [max(map(_longest, column)) for column in columns]
    sizes, moved = full, set[int]()
    for limit in (NARROW, NARROW // 2, 1):
        sizes = [min(size, max(word, limit)) for size, word in zip(full, least, strict=True)]
        moved = set()
        # the column with the longest word gives its room away first
        for at in sorted(range(len(sizes)), key=least.__getitem__, reverse=True):
            if _total(sizes) <= width:
                break
            inside = [
                min(_width(one), limit) for one in columns[at][1:] if 0 < _longest(one) <= limit
            ]
            sizes[at] = max([_width(heads[at]), *inside]) if inside or not at else 0
            moved.add(at)
        if _total(sizes) <= width:
            break
    # what is left goes to prose, last to that of a column whose long words moved out; names that
    # moved out would only leave a gap
    growing = set(range(len(sizes))) - (moved & {0})
    for at in sorted(growing, key=lambda at: (at in moved, full[at])):
        most = sizes[at] + width - _total(sizes)
        wanted = [_width(cell) for cell in columns[at] if _longest(cell) <= most]
        if sizes[at] and wanted:
            sizes[at] = max(sizes[at], min(most, max(wanted)))
    return sizes


def _row(
    row: Sequence[Lines], columns: Sequence[str], sizes: Sequence[int], width: int
) -> Iterator[Text]:
    """A row: above it its name, below it the other values that fit no column."""
    cells, above, below = list[Lines](), Lines(), Lines()
    indent = min(sizes[0], INDENT) + GAP if len(sizes) > 1 else 0
    for at, (cell, name, size) in enumerate(zip(row, columns, sizes, strict=True)):
        fits = _longest(cell) <= size
        cells.append([part for line in cell for part in wrap(line, max(size, 1))] if fits else [])
        if fits:
            continue
        if at == 0:
            above += [part for line in cell for part in wrap(line, width)]
            continue
        label = Text(f"{name}: ", "dim") if name and not size else Text()
        for line in cell:
            parts = wrap(label + line, max(width - indent, NARROW))
            below += [Text(" " * indent) + part for part in parts]
    beside = [_padded(parts, sizes) for parts in zip_longest(*cells, fillvalue=Text())]
    return chain(above, (line for line in beside if line.plain or not (above or below)), below)


def _padded(parts: Sequence[Text], sizes: Sequence[int]) -> Text:
    line = Text()
    for part, size in zip(parts, sizes, strict=True):
        if size:
            line.append_text(part)
            line.append(" " * (size - cell_len(part.plain) + GAP))
    line.rstrip()
    return line


def _aligned(rows: Sequence[Sequence[Text]]) -> Lines:
    flat = [[Text(" ").join(text.split("\n", allow_blank=True)) for text in row] for row in rows]
    sizes = [max(cell_len(text.plain) for text in column) for column in zip(*flat, strict=True)]
    return [_padded(row, sizes) for row in flat]
