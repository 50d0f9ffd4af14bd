"""The language of a page: what the reader chose, else what the browser asks for, else English."""

from collections.abc import Callable, Mapping

from fastapi import Request

from settled.runtime.server.texts_en import TEXTS as EN
from settled.runtime.server.texts_zh import TEXTS as ZH

COOKIE = "settled_language"
LANGUAGES: Mapping[str, Mapping[str, str]] = {"en": EN, "zh": ZH}
NAMES = {"en": "English", "zh": "中文"}
TAGS = {"en": "en", "zh": "zh-Hans"}

Say = Callable[..., str]
"""`say("key", name=value)`: a text of the page's language with values put in."""


def language_of(request: Request) -> str:
    """Return the language of the answer to a request."""
    chosen = request.cookies.get(COOKIE)
    return (
        chosen if chosen is not None and chosen in LANGUAGES else accepted(request.headers.get("accept-language", ""))
    )


def accepted(header: str) -> str:
    """Return the best of our languages for an `Accept-Language` header."""
    wanted = sorted(filter(None, map(_range, header.split(",")[:20])), key=lambda one: -one[1])
    return next((language for language, weight in wanted if weight > 0), "en")


def _range(part: str) -> tuple[str, float] | None:
    tag, _, weight = part.strip().partition(";")
    language = tag.partition("-")[0].lower()
    try:
        quality = float(weight.strip().removeprefix("q=") or 1)
    except ValueError:
        return None
    return (language, quality) if language in LANGUAGES else None


def speaker(language: str) -> Say:
    """Return what says the texts of a language; a text that is missing is a KeyError, and a test looks for it."""
    texts = LANGUAGES[language]

    def say(key: str, /, **values: object) -> str:
        return texts[key].format(**values) if values else texts[key]

    return say
