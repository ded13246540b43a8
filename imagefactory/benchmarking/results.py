"""Results of benchmarks: files below the state folder, by the digest of the image."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from imagefactory.benchmarking.metrics import METRICS, Spread, spread
from imagefactory.errors import InputError, fail
from imagefactory.system import files, strict_json

#: The format of a result; another one is not read.
FORMAT = 1
LARGEST = 1 << 28
#: What comparing results needs, besides the levels.
KEYS = {"date", "url", "image", "digest", "model_id", "prompt_tokens", "output_tokens"}
#: The folder of results of servers whose image is not known.
UNKNOWN = "unknown-image"
#: No figure, in any of the units, is larger.
_LARGEST_FIGURE = 1e15


@dataclass(frozen=True, slots=True)
class Result:
    """What one benchmark measured, as it is kept: ``docs/bench.md`` lists the keys."""

    data: dict[str, Any]

    @property
    def levels(self) -> dict[int, dict[str, Any]]:
        """The levels by their concurrency."""
        return {level["max_concurrency"]: level for level in self.data["levels"]}

    @property
    def failed(self) -> int:
        """Requests that failed."""
        return sum(level["failed"] for level in self.data["levels"])

    @property
    def name(self) -> str:
        """What was measured, and when."""
        return f"{self.data['image'] or self.data['url']} {self.data['date']}"


class Store:
    """The results of this machine, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, result: Result) -> Path:
        """Keep ``result``; returns its file."""
        digest = result.data["digest"] or UNKNOWN
        folder = self._folder / digest.replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{result.data['date']}.json"
        files.write_text(path, json.dumps(result.data) + "\n")
        return path

    def find(
        self, name: str, digest_of: Callable[[str], str | None], warn: Callable[[str], None]
    ) -> Result:
        """The result in the file ``name``, or the newest of the image with that name or digest.

        ``digest_of`` says which image has the name now: a server that was started by digest was
        measured under no other. Files that hold no result are passed over, and warned of. Raises
        InputError if there is none.
        """
        if Path(name).is_file():
            return read(Path(name))
        digest = name if name.startswith("sha256:") else f"sha256:{name}"
        # seven digits, as people shorten digests; fewer may be part of a tag
        wanted = [digest] if len(digest) >= 14 else []
        if named := digest_of(name):
            wanted.append(named)
        for path in self._newest_first():
            try:
                found = read(path)
            except InputError as error:
                warn(f"{path}: {error.problems[0].what}")
                continue
            own = found.data["digest"] or ""
            if name == found.data["image"] or own.startswith(tuple(wanted)):
                return found
        what = f"there is no result of {name!r}"
        fix = f"measure it, or name a file of a result; those of this machine are in {self._folder}"
        raise fail(InputError, "bench-unknown", what, fix=fix)

    def _newest_first(self) -> Iterator[Path]:
        found = self._folder.glob("*/*.json")
        yield from sorted(found, key=lambda path: path.name, reverse=True)


def read(path: Path) -> Result:
    """The result in a file. Raises InputError if it holds none."""
    try:
        return _checked(strict_json.loads(files.read(path, LARGEST), LARGEST))
    except OSError as error:
        what = f"it cannot be read: {error.strerror or error}"
        raise fail(InputError, "bench-result", what, where=str(path)) from None
    except (ValueError, LookupError, TypeError, AttributeError):
        what = "it is not a result of imagefactory bench"
        fix = "name a file that imagefactory bench has written"
        raise fail(InputError, "bench-result", what, where=str(path), fix=fix) from None


def _checked(data: Any) -> Result:
    """The result that ``data`` is. Raises ValueError and others if it is none."""
    result = Result(data)
    found = [spread(level, metric) for level in result.levels.values() for metric in METRICS]
    if data["format"] != FORMAT or not {*data} >= KEYS or not found or result.failed:
        raise ValueError("not a result that is kept")
    if any(not isinstance(data[key] or "", str) for key in ("date", "url", "image", "digest")):
        raise ValueError("a name that is no text")
    if any(type(level) is not int for level in result.levels):
        raise ValueError("a level that is no number")
    if not all(map(_is_possible, found)):
        raise ValueError("figures that nothing has")
    return result


def _is_possible(one: Spread) -> bool:
    """Whether something can have been measured so; of NaN, each comparison would say something."""
    figures = astuple(one)
    if any(type(figure) not in (int, float) for figure in figures):
        return False
    return 0 <= one.low <= one.high and all(0 <= figure <= _LARGEST_FIGURE for figure in figures)
