"""Numbers and names as people read them."""

from __future__ import annotations

import math
import unicodedata

DASH = "\u2013"  # where there is no number
MINUS = "\u2212"
NARROW = "\u00a0"  # a space that does not break, before a unit
_BREAKS = {"\t": " ", "\n": " ", "\r": " "}


def plain(text: object) -> str:
    """A text without characters that a page, or an SVG file, cannot hold.

    Example:
        >>> plain("a" + chr(0) + "b")
        'a\ufffdb'
    """
    return "".join(
        _BREAKS.get(c, "\ufffd" if unicodedata.category(c) in ("Cc", "Cs", "Cn") else c)
        for c in str(text)
    )


def shortened(text: object, most: int = 26) -> str:
    """A name for a figure, where room is short; without marks that turn the line around."""
    clean = "".join(c for c in plain(text) if unicodedata.category(c) != "Cf").strip()
    return clean if len(clean) <= most else clean[: most - 1].rstrip() + "\u2026"


def one_line(text: object, most: int = 10_000) -> str:
    """A text on one line, and not longer than that."""
    line = " ".join(plain(text).split())
    return line if len(line) <= most else line[: most - 1] + "\u2026"


def percent(value: float | None, digits: int = 1) -> str:
    """A share of 1 as a number of percent, without the sign.

    Example:
        >>> percent(0.7234)
        '72.3'
    """
    return DASH if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}"


def points(value: float, digits: int = 1) -> str:
    """A difference of two shares, in points, with its sign."""
    if not math.isfinite(value):
        return DASH
    text = f"{abs(100 * value):.{digits}f}"
    if float(text) == 0:
        return text
    return ("+" if value > 0 else MINUS) + text


def share(value: float | None) -> str:
    """A share of images in percent, with as many digits as it takes to see it.

    Example:
        >>> [share(v) for v in (0.5, 0.0123, 0.0004, 0.0)]
        ['50', '1.2', '0.04', '0']
    """
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    size = 100 * value
    digits = 0 if size >= 9.95 else min(max(1 - math.floor(math.log10(size)), 0), 6)
    text = f"{size:.{digits}f}"
    return text.rstrip("0") if size < 1 else text


def count(value: float | None) -> str:
    """A whole number with its thousands apart."""
    return DASH if value is None or not math.isfinite(value) else f"{round(value):,}"


def plural(number: float, one: str, many: str | None = None) -> str:
    """A number and what is counted.

    Example:
        >>> plural(1, "class", "classes"), plural(3, "seed")
        ('1 class', '3 seeds')
    """
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def listed(parts: list[str]) -> str:
    """Some things in a sentence.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def scheme_title(scheme: str) -> str:
    """What a scheme of annotation is called.

    Example:
        >>> scheme_title("fpc:100")
        'Fixed per class, N = 100'
    """
    kind, _, value = scheme.partition(":")
    titles = {
        "given": "Labels as given",
        "complete": "Complete labels",
        "fpc": f"Fixed per class, N = {value}",
        "rpa": f"Random per annotation, p = {value}",
        "single-positive": "One positive per image",
        "drop-positives": f"Positives dropped, {value}",
    }
    return titles.get(kind, scheme)


def scheme_short(scheme: str) -> str:
    """A scheme as a heading of a narrow column.

    Example:
        >>> scheme_short("fpc:100"), scheme_short("complete")
        ('FPC, N = 100', 'Complete')
    """
    kind, _, value = scheme.partition(":")
    short = {
        "given": "As given",
        "complete": "Complete",
        "fpc": f"FPC, N = {value}",
        "rpa": f"RPA, p = {value}",
        "single-positive": "One positive",
    }
    return short.get(kind, scheme)


def scheme_phrase(scheme: str) -> str:
    r"""How a sentence about a scheme begins.

    Example:
        >>> scheme_phrase("rpa:0.5")
        'With 50\xa0% of the labels dropped at random'
    """
    kind, _, value = scheme.partition(":")
    try:
        number = float(value or 0)
    except ValueError:
        return f"With the labels of {scheme}"
    phrases = {
        "given": "On these labels",
        "complete": "With complete labels",
        "fpc": f"With {number:,.0f} positives and {number:,.0f} negatives known of each class",
        "rpa": f"With {share(number)}{NARROW}% of the labels dropped at random",
        "single-positive": "With one known positive per image",
        "drop-positives": f"With {share(number)}{NARROW}% of the positives dropped",
    }
    return phrases.get(kind, f"With the labels of {scheme}")
