"""Lists of classes written in one cell: Python or json lists, arrays, or words with a separator."""

from __future__ import annotations

import ast
import json
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from partlabel.assemble import Ints
from partlabel.readers.base import Vocabulary
from partlabel.readers.records import short
from partlabel.readers.scan_csv import BadRow

# Lists that can be split at commas without reading them as a language: plain words or numbers.
_WORD = r"""(?:'[^'",\\]+'|"[^'",\\]+")"""
_WORDS = rf"^\s*\[\s*(?:{_WORD}(?:\s*,\s*{_WORD})*)?\s*\]\s*$"
_NUMBERS = r"^\s*\[\s*(?:\d{1,9}(?:\s*,\s*\d{1,9})*)?\s*\]\s*$"


@dataclass
class Lists:
    """The entries of a column of lists, one after the other."""

    counts: Ints
    """How many entries each cell has."""
    values: Any
    """Arrow array: strings are class ids, integers are class indices."""

    def rows(self) -> Ints:
        """The row of each entry."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def indices(self, vocabulary: Vocabulary, *, drop: bool = False) -> Ints:
        """The class index of each entry; with ``drop``, -1 where the class is not in the table."""
        import pyarrow as pa

        if pa.types.is_integer(self.values.type):
            return self._checked(self.values.to_numpy(), vocabulary)
        encoded = self.values.dictionary_encode()
        ids = encoded.dictionary.to_pylist()
        found = vocabulary.indices(ids)
        indices = found[encoded.indices.to_numpy()] if len(ids) else np.zeros(0, np.int64)
        wrong = np.flatnonzero(indices < 0)
        if len(wrong) and not drop:
            name = self.values[int(wrong[0])].as_py()
            raise BadRow(int(self.rows()[wrong[0]]), *vocabulary.missing(name))
        return indices

    def _checked(self, indices: Any, vocabulary: Vocabulary) -> Ints:
        if vocabulary.classes is None and len(indices):
            fix = "name them with --classes FILE, one class per line"
            raise BadRow(int(self.rows()[0]), f"classes are given as numbers ({indices[0]})", fix)
        wrong = np.flatnonzero((indices < 0) | (indices >= len(vocabulary)))
        if len(wrong):
            number = indices[wrong[0]]
            what = f"class number {number} is outside 0..{len(vocabulary) - 1}"
            fix = "the class file has too few lines" if number > 0 else "class numbers start at 0"
            raise BadRow(int(self.rows()[wrong[0]]), what, fix)
        return np.asarray(indices, np.int64)


def read_lists(column: Any, separator: str | None) -> Lists:
    """Read a column of lists: Arrow lists, or strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        column = column.cast(pa.large_list(kind.value_type))
        counts = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
        return _plain(Lists(counts, column.flatten()))
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind)):
        raise BadRow(0, f"a column of {kind} has no lists", "use lists, or text like ['a', 'b']")
    text = pc.fill_null(column.cast(pa.string()), "")
    if separator is not None:
        return _separated(text, separator)
    empty = pc.equal(pc.utf8_trim_whitespace(text), "")
    text = pc.if_else(empty, "[]", text)
    for pattern, wanted in ((_WORDS, pa.string()), (_NUMBERS, pa.int64())):
        if pc.all(pc.match_substring_regex(text, pattern)).as_py() is not False:
            parts = _separated(text, ",")
            return Lists(parts.counts, parts.values.cast(wanted))
    return _literal(text.to_pylist())


def _plain(lists: Lists) -> Lists:
    """The entries of Arrow lists as strings or 64-bit integers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = lists.values
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type) and not len(values):
        return Lists(lists.counts, pa.array([], pa.string()))
    wrong = values.is_null()
    words = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if words:
        wrong = pc.or_kleene(wrong, pc.equal(values, "")).fill_null(True)
    if pc.any(wrong).as_py():
        row = int(lists.rows()[int(np.argmax(np.asarray(wrong)))])
        raise BadRow(row, "a list has an empty entry", "remove it from the list")
    if words:
        return Lists(lists.counts, values.cast(pa.string()))
    if pa.types.is_integer(values.type):
        return Lists(lists.counts, values.cast(pa.int64()))
    raise BadRow(0, f"lists of {values.type} cannot be classes", "use class ids or class numbers")


def _separated(text: Any, separator: str) -> Lists:
    import pyarrow.compute as pc

    inner = pc.replace_substring_regex(text, r"(?s)^\s*\[(.*)\]\s*$", r"\1")
    parts = pc.split_pattern(inner, separator)
    words = pc.utf8_trim(pc.utf8_trim_whitespace(parts.flatten()), "'\"")
    filled = np.asarray(pc.not_equal(words, ""))
    row = np.repeat(np.arange(len(text)), np.asarray(pc.list_value_length(parts), np.int64))
    return Lists(np.bincount(row[filled], minlength=len(text)), words.filter(filled))


def _literal(cells: list[str]) -> Lists:
    """Read each cell as a json or Python list: any quoting, commas in names."""
    import pyarrow as pa

    counts = np.zeros(len(cells), np.int64)
    values: list[Any] = []
    for row, cell in enumerate(cells):
        entries = _parsed(cell)
        if not isinstance(entries, list | tuple):
            fix = "write ['a', 'b'], or name a --separator"
            raise BadRow(row, f"{short(cell)} is not a list", fix)
        counts[row] = len(entries)
        values.extend(entries)
        kinds = {type(entry) for entry in (*values[:1], *entries)}
        if not (kinds <= {str} or kinds <= {int}):
            fix = "use all strings or all numbers"
            raise BadRow(row, "a list has something else than class ids", fix)
        for entry in entries:
            _check_entry(row, entry)
    numbers = bool(values) and isinstance(values[0], int)
    return Lists(counts, pa.array(values, pa.int64() if numbers else pa.string()))


def _parsed(cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an escape that Python does not know
            return ast.literal_eval(cell.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, Warning):
        return None


def _check_entry(row: int, entry: str | int) -> None:
    if entry == "":
        raise BadRow(row, "a list has an empty entry", "remove it from the list")
    if isinstance(entry, int) and not -(1 << 62) < entry < 1 << 62:
        raise BadRow(row, f"class number {str(entry)[:40]} is too large")
    if isinstance(entry, str):
        try:
            entry.encode()
        except UnicodeEncodeError:
            raise BadRow(row, f"class {entry!r} is not text that can be written") from None
