"""Results of benchmarks: files below the state folder, by the digest of the image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from imagefactory.benchmarking.metrics import METRICS, spread
from imagefactory.errors import InputError, fail
from imagefactory.system import files

#: The format of a result; another one is not read.
FORMAT = 1
LARGEST = 1 << 28
#: What comparing results needs, besides the levels.
KEYS = {"date", "url", "image", "digest", "model_id", "prompt_tokens", "output_tokens"}
#: The folder of results of servers whose image is not known.
UNKNOWN = "unknown-image"


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

    def find(self, name: str) -> Result:
        """The result in the file ``name``, or the newest of the image with that name or digest.

        Raises InputError if there is none.
        """
        if Path(name).is_file():
            return read(Path(name))
        digest = name if name.startswith("sha256:") else f"sha256:{name}"
        for path in self._newest_first():
            found = read(path)
            own = found.data["digest"] or ""
            # seven digits, as people shorten digests; fewer may be part of a tag
            if name == found.data["image"] or (len(digest) >= 14 and own.startswith(digest)):
                return found
        fix = f"name a file, or an image that imagefactory bench has measured: {self._folder}"
        raise fail(InputError, "bench-unknown", f"there is no result of {name}", fix=fix)

    def _newest_first(self) -> Iterator[Path]:
        found = self._folder.glob("*/*.json")
        yield from sorted(found, key=lambda path: path.name, reverse=True)


def read(path: Path) -> Result:
    """The result in a file. Raises InputError if it holds none."""
    try:
        return _checked(json.loads(files.read_text(path, LARGEST)))
    except OSError as error:
        what = f"it cannot be read: {error.strerror or error}"
        raise fail(InputError, "bench-result", what, where=str(path)) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        what = "it is not a result of imagefactory bench"
        fix = "name a file that imagefactory bench has written"
        raise fail(InputError, "bench-result", what, where=str(path), fix=fix) from None


def _checked(data: Any) -> Result:
    """The result that ``data`` is. Raises ValueError and others if it is none."""
    result = Result(data)
    found = [spread(level, metric) for level in result.levels.values() for metric in METRICS]
    figures = [figure for one in found for figure in astuple(one)]
    if data["format"] != FORMAT or not {*data} >= KEYS or not figures or result.failed:
        raise ValueError("not a result that is kept")
    if any(type(figure) not in (int, float) for figure in figures):
        raise ValueError("a figure that is no number")
    return result
