"""Large json files of one object with long arrays, element by element, in little memory.

COCO and LVIS files reach a gigabyte; loading one as a whole takes five times that. Here only one
element of an array is held at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from partlabel.errors import DataError
from partlabel.files import READ_ERRORS, Source

_BLOCK = 4 << 20
_LONGEST_ELEMENT = 64 << 20
_SPACE = " \t\r\n"


class JsonFile:
    """A json object read as a stream."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._stream = source.text()
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._lines = 0
        self._ended = False
        self.arrays: set[str] = set()
        """The keys met so far whose value is an array, empty ones too."""

    def pairs(self) -> Iterator[tuple[str, int | None, Any]]:
        """Walk through the file: key, index and element of arrays; key, None and other values."""
        if not self._peek():
            raise DataError("is empty", path=self.source.path, fix="a json object was expected")
        if self._peek() == "[":
            fix = "is it an instances file of COCO or LVIS?"
            what = "is a json list, not an object"
            raise DataError(what, path=self.source.path, line=1, fix=fix)
        self._expect("{")
        if self._peek() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise self._error("expected a key")
            self._expect(":")
            if self._peek() == "[":
                self.arrays.add(key)
                yield from ((key, i, element) for i, element in enumerate(self._elements()))
            else:
                yield key, None, self._value()
            if self._peek() != ",":
                break
            self._at += 1
        self._expect("}")
        if self._peek():
            raise self._error("text after the end of the object")

    def _elements(self) -> Iterator[Any]:
        self._expect("[")
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            self.source.progress.advance(rows=1)
            mark = self._peek()
            if mark not in ("]", ","):
                raise self._error("expected , or ]")
            self._at += 1
            if mark == "]":
                return

    def _value(self) -> Any:
        """Decode one value; an incomplete one at the end of the buffer asks for more text."""
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                ahead = getattr(error, "pos", self._at) - self._at
                if len(self._text) - self._at > _LONGEST_ELEMENT or not self._more():
                    what = getattr(error, "msg", "a number too long or nested too deeply")
                    raise self._error(what, self._at + ahead) from error
                continue
            # A number near the end of the buffer may go on in the next one: 1 of 1.5e3.
            rest = self._text[end : end + 4]
            number = isinstance(value, int | float) and not rest.strip("0123456789.eE+-")
            if number and end + len(rest) == len(self._text) and self._more():
                continue
            self._at = end
            return value

    def _peek(self) -> str:
        """The next character that is not white space, or an empty string at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise self._error(f"expected {mark}")
        self._at += 1

    def _more(self) -> bool:
        """Forget what is behind, read on; False at the end of the file."""
        if self._ended:
            return False
        self._lines += self._text.count("\n", 0, self._at)
        try:
            block = self._stream.read(max(_BLOCK, len(self._text) - self._at))
        except (*READ_ERRORS, UnicodeDecodeError) as error:
            raise self.source.unreadable(error) from error
        self._text = self._text[self._at :] + block
        self._at = 0
        self._ended = not block
        return bool(block)

    def _error(self, what: str, at: int | None = None) -> DataError:
        where = self._at if at is None else at
        line = self._lines + self._text.count("\n", 0, where) + 1
        seen = self._text[where : where + 20]
        found = f" at {seen!r}" if seen else " at the end of the file: is it cut off?"
        if what.startswith("Unterminated"):
            found += ": is it cut off?"
        return DataError(f"not valid json ({what}){found}", path=self.source.path, line=line)
