"""Prompts of a wanted length that no server has seen before. Pure.

The text is prose, as words in random order would make speculative decoding look bad, and the same
in every run. What comes before it differs in every request, so no prefix of it is in a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

#: Words of a prompt that are sent to learn how many tokens a word has.
FIRST_WORDS = 64
_PROSE = (
    "The road along the river was empty when the first carts came down from the hills.",
    "She counted the lamps in the harbour twice and wrote the number into a small grey book.",
    "Nobody in the village could remember a winter in which the mill had not stood still.",
    "A clerk carried the letters up four flights of stairs and laid them beside the window.",
    "Rain had fallen for nine days, and the lower fields looked like a lake with fences in it.",
    "The engineer tapped the gauge, waited for the needle to settle, and nodded to the driver.",
    "In the afternoon the market smelled of oranges, wet wool, coffee and new rope.",
    "They agreed to meet again in spring, although neither of them believed that they would.",
    "Two boys sold maps of the old town, in which half of the streets had other names by now.",
    "The choir sang badly but with such patience that the whole square stopped to listen.",
    "Behind the last house a path led through birches to a bench that faced the wrong way.",
    "He repaired clocks for a living and was late for everything else in his life.",
    "The bridge was closed to wagons, so the bales were carried across on people's backs.",
    "By the time the soup was hot the argument had moved on to the price of coal.",
    "A dog slept in front of the bakery, and the customers stepped over it without looking.",
    "The captain read the orders aloud, folded them, and asked whether anyone could cook.",
)
_NAMES = ("Aurora", "Basalt", "Cinder", "Delta", "Ember", "Fjord", "Granite", "Harbor")
_CODES = ("BANANA", "WALRUS", "COPPER", "LANTERN", "MOOSE", "PEPPER", "TUNDRA", "VIOLIN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needle:
    """A sentence to be found in a long text, and what shows that it was.

    Attributes:
        depth: where it is: 0 is the beginning of the text, 1 its end.
        sentence: the sentence.
        question: what is asked after the text.
        code: the right answer, which nothing but the sentence says.
    """

    depth: float
    sentence: str
    question: str
    code: str


def words_for(tokens: int, *, words: int, counted: int) -> int:
    """How many words have about ``tokens``, if ``words`` of them had ``counted`` tokens."""
    return max(1, round(words * tokens / counted)) if counted else words


def prompt(words: int, *, number: int, nonce: str) -> str:
    """A text of so many words, the nonce included; texts differ by ``number``."""
    return " ".join([nonce, *_prose(words - 1, number)])


def needle(depth: float, random: Random) -> Needle:
    """A needle that was never used before."""
    project = random.choice(_NAMES)
    code = "-".join([*random.sample(_CODES, 2), str(random.randrange(1000, 10000))])
    return Needle(
        depth=depth,
        sentence=f"IMPORTANT: The secret access code for Project {project} is {code}.",
        question=(
            f"Based on the text above, what is the secret access code for Project {project}? "
            "Reply with just the code itself, nothing else."
        ),
        code=code,
    )


def haystack(words: int, hidden: Needle, *, number: int, nonce: str) -> str:
    """A text of so many words with the needle at its depth, and the question at the end.

    The needle stands between two sentences.
    """
    text = _prose(words, number)
    at = round(hidden.depth * len(text))
    while at > 0 and not text[at - 1].endswith("."):
        at -= 1
    hay = " ".join([nonce, *text[:at], hidden.sentence, *text[at:]])
    return f"{hay}\n\n{hidden.question}"


def _prose(words: int, number: int) -> list[str]:
    random = Random(number)  # noqa: S311 - the same text in every run
    found: list[str] = []
    while len(found) < words:
        sentences = list(_PROSE)
        random.shuffle(sentences)
        found += " ".join(sentences).split()
    return found[: max(0, words)]
