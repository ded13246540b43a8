"""An HTTP session that keeps answers, and asks servers by ETag whether they still hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from requests import Response, Session

from imagefactory.system import files

#: Longer answers are not kept.
LONGEST = 8_000_000


class Keeping(Session):
    """A session whose ``get`` sends ``If-None-Match`` for what ``folder`` has."""

    def __init__(self, folder: Path, agent: str) -> None:
        super().__init__()
        self._folder = folder
        self.headers["User-Agent"] = agent

    def get(self, url: str | bytes, **options: Any) -> Response:
        """As ``Session.get``; an answer that has not changed comes from the folder."""
        headers = dict(options.pop("headers", None) or {})
        name = hashlib.sha256(f"{url!r} {headers.get('Accept')}".encode()).hexdigest()
        path = self._folder / f"{name}.json"
        kept = _read(path)
        if kept:
            headers["If-None-Match"] = kept["etag"]
        answer = super().get(url, headers=headers, **options)
        if answer.status_code == 304 and kept:
            answer.status_code = 200
            answer._content = kept["body"].encode()  # noqa: SLF001 - what pip's cache does, too
            answer.headers["Content-Type"] = kept["type"]
        elif answer.status_code == 200 and "ETag" in answer.headers:
            _keep(path, answer)
        return answer


def _read(path: Path) -> dict[str, str] | None:
    """What is kept; None for nothing, and for what is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kept = {key: str(found[key]) for key in ("etag", "type", "body")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return (
        kept if hashlib.sha256(kept["body"].encode()).hexdigest() == found.get("sha256") else None
    )


def _keep(path: Path, answer: Response) -> None:
    body = answer.content
    if len(body) > LONGEST:
        return
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return
    row = {
        "etag": answer.headers["ETag"],
        "type": answer.headers.get("Content-Type", ""),
        "sha256": hashlib.sha256(body).hexdigest(),
        "body": text,
    }
    files.keep(path, json.dumps(row))
