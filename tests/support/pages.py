"""Pages of HTML as a parser reads them, which does as a browser does."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

VOID = {"meta", "link", "br", "img", "path", "!doctype"}


class Page(HTMLParser):
    """A page: its tags with their attributes, its text, and what is wrong with its structure."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text, self.wrong, self.open = "", list[str](), list[str]()
        self.feed(text)

    @classmethod
    def of(cls, path: Path) -> Page:
        """The page in a file."""
        return cls(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def barriers(self) -> list[str]:
        """What keeps somebody out who reads it without a mouse, or without seeing it."""
        levels = [int(tag[1]) for tag, _ in self.tags if tag in ("h1", "h2", "h3")]
        scrolls = [one for _, one in self.tags if one.get("class") == "scroll"]
        rules = {
            "its language is unknown": self.all("html") == [{"lang": "en"}],
            "it has not one heading and one main part": len(self.all("h1"))
            == len(self.all("main"))
            == 1,
            "nothing skips to the content": self.all("a")[0] == {"class": "skip", "href": "#main"},
            "it skips a level of headings": all(b - a <= 1 for a, b in pairwise(levels)),
            "a heading of a table has no scope": all(one.get("scope") for one in self.all("th")),
            "a plot has no name": all(
                one.get("role") == "img" and one.get("aria-label") for one in self.all("svg")
            ),
            "the keyboard cannot scroll a part": all(
                one.get("tabindex") == "0" and one.get("aria-label") for one in scrolls
            ),
            "the policy forbids an attribute": not {"onclick", "onload", "style"}
            & {name for _, attributes in self.tags for name in attributes},
        }
        return [what for what, good in rules.items() if not good]
