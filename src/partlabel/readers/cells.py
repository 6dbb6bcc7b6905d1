"""Lists of classes written in one cell: Python or json lists, arrays, or words with a separator."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import numpy as np

from partlabel.assemble import Ints
from partlabel.readers.base import Vocabulary
from partlabel.readers.scan_csv import BadRow

# Lists that can be split at commas without reading them as a language: plain words or numbers.
_WORDS = (
    r"""^\s*\[\s*(?:(?:'[^'",\\]*'|"[^'",\\]*")(?:\s*,\s*(?:'[^'",\\]*'|"[^'",\\]*"))*)?\s*\]\s*$"""
)
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
            raise BadRow(0, f"classes are given as numbers ({indices[0]})", fix)
        wrong = np.flatnonzero((indices < 0) | (indices >= len(vocabulary)))
        if len(wrong):
            what = f"class number {indices[wrong[0]]} is outside 0..{len(vocabulary) - 1}"
            raise BadRow(int(self.rows()[wrong[0]]), what, "the class file has too few lines")
        return np.asarray(indices, np.int64)


def read_lists(column: Any, separator: str | None) -> Lists:
    """Read a column of lists: Arrow lists, or strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        filled = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
        return Lists(filled, _plain(column.flatten()))
    text = pc.fill_null(column.cast(pa.string()), "")
    if separator is not None:
        return _separated(text, separator)
    empty = pc.equal(pc.utf8_trim_whitespace(text), "")
    text = pc.if_else(empty, "[]", text)
    for pattern, kind in ((_WORDS, pa.string()), (_NUMBERS, pa.int64())):
        if pc.all(pc.match_substring_regex(text, pattern)).as_py() is not False:
            parts = _separated(text, ",")
            return Lists(parts.counts, parts.values.cast(kind))
    return _literal(text.to_pylist())


def _plain(values: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        raise BadRow(0, "a list has an empty entry", "remove the null from the list")
    if pa.types.is_integer(values.type):
        return values.cast(pa.int64())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return values.cast(pa.string())
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
    """Read each cell as a Python (or json) list: any quoting, commas in names."""
    import pyarrow as pa

    counts = np.zeros(len(cells), np.int64)
    values: list[Any] = []
    for row, cell in enumerate(cells):
        try:
            entries = ast.literal_eval(cell.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            entries = None
        if not isinstance(entries, list | tuple):
            short = cell if len(cell) <= 40 else cell[:37] + "..."
            raise BadRow(row, f"{short!r} is not a list", "write ['a', 'b'], or name a --separator")
        counts[row] = len(entries)
        values.extend(entries)
        kinds = {type(entry) for entry in (*values[:1], *entries)}
        if not (kinds <= {str} or kinds <= {int}):
            raise BadRow(
                row, "a list has something else than class ids", "use all strings or all numbers"
            )
    try:
        return Lists(
            counts,
            pa.array(values, pa.int64() if values and isinstance(values[0], int) else pa.string()),
        )
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise BadRow(0, f"the lists cannot be read ({error})") from error
