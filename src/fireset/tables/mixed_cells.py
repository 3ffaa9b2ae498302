"""Columns of numbers in which a few cells hold words, such as "rotary" among counts of cylinders, or "<5".

A column with few different numbers becomes categories, the words among them. In one with many different numbers the
words count as missing; the column that marks missing cells keeps what they say. Columns with many different words are
text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fireset.tables.cells import cli_option, first_row, listed, quoted
from fireset.tables.spelled import NumberSpelling, is_missing, learn_spellings, spell_any_number

if TYPE_CHECKING:
    import polars as pl

_FEW_NUMBERS = 10  # different ones, each in two rows on average: categories
_RARE = 0.2  # of the cells: words that are rarer may all differ
_FEW_WORDS = 5  # different ones, each in two cells on average, which need not be rare
_MAX_STORED = 100  # words in a model file; later tables are warned of the others, which count as missing, too


@dataclass(frozen=True)
class MixedCells:
    """What a column with words among numbers becomes: numbers of this ``spelling``, or categories if it is None.

    ``str`` gives the warning about it. ``row`` is the 1-based row of the first of ``words``, the most
    frequent; ``numbers`` are the cells as numbers, null in place of words.
    """

    name: str
    words: list[str]
    cells: int
    row: int
    spelling: NumberSpelling | None
    numbers: pl.Series | None = None

    def __str__(self) -> str:
        held = "1 cell holds a word" if self.cells == 1 else f"{self.cells:,} cells hold words"
        found = f"column {quoted(self.name)}: {held} among numbers ({listed(self.words, 5)})"
        if self.spelling is None:
            return f"{found}; the column is used as categories; to use it as numbers, leave those cells empty"
        counted = "it counts as missing" if self.cells == 1 else "they count as missing"
        option = cli_option("--categorical", self.name)
        return f"{found}; {counted}; to use the column as categories, pass {option} (categorical=)"


def find_words(series: pl.Series) -> MixedCells | None:
    """Decide on a column of text of which at least half of the cells spell numbers; None for any other column."""
    import polars as pl

    text = series.cast(pl.String)
    numeric = spell_any_number(text)  # null where a cell is missing
    present, numbers = text.len() - int(is_missing(text).sum()), int(numeric.sum() or 0)
    if numbers in (0, present) or 2 * numbers < present:
        return None
    is_word = (~numeric).fill_null(False)
    rest = text.set(is_word, None)
    spelling = learn_spellings([rest]).columns.get(series.name)
    counts = text.filter(is_word).str.strip_chars().rename("word").value_counts()
    counts = counts.sort("count", "word", descending=[True, False])
    words, different = counts["word"].to_list(), rest.str.strip_chars().drop_nulls().n_unique()
    row, cells = first_row((text.str.strip_chars() == words[0]).fill_null(False)), present - numbers
    if different <= _FEW_NUMBERS and 2 * different <= numbers and len(words) <= _FEW_NUMBERS:
        return MixedCells(series.name, words, cells, row, None)
    rare = cells <= _RARE * present or (len(words) <= _FEW_WORDS and cells >= 2 * len(words))
    if not isinstance(spelling, NumberSpelling) or not rare:
        return None
    known = NumberSpelling(spelling.decimal, spelling.grouping, spelling.unit, tuple(sorted(words[:_MAX_STORED])))
    return MixedCells(series.name, words, cells, row, known, spelling.numbers(rest, f"column {quoted(series.name)}"))
