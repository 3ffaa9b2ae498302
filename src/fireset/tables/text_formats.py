"""Formats of numbers, booleans and dates in text cells: 12,345.67, 3,5, $1,234.50, 12.5%, 2024-01-31, 31.01.2024.

Formats are learned once, from all columns of the training table, and stored with the model. Later cells are parsed one
by one with the stored format, so that a cell has one meaning in all files. A cell that does not fit is refused.

Conventions, where d is a digit:

==================  ==================================  =================================
decimal, grouping   accepted                            refused
==================  ==================================  =================================
``.`` and none      d.d, d, 1,234.5 (unambiguous)       1,234
``.`` and ``,``     d.d, d, 1,234, 1,234.5              3,5
``,`` and none      d,d, d, 1.234,5 (unambiguous)       46.901
``,`` and ``.``     d,d, d, 1.234, 1.234,5              4.5
==================  ==================================  =================================

Columns of numbers may contain a few words, such as "rotary" among numbers of cylinders, or "<5"
(``detect_mixed_cells``). A column with few different numbers becomes categories, which include the words. In a column
with many different numbers the words count as missing, and the indicator of missing cells marks them. A column with
many different words is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fireset._util.errors import InputError
from fireset.tables.cells import cli_option, first_position, is_unicode, listed, quoted, row_name

if TYPE_CHECKING:
    import polars as pl

# Words for a missing number. In a column of text "None" is a category like any other.
MISSING_NUMBER_WORDS = (
    "",
    "?",
    "-",
    "--",
    ".",
    "na",
    "n/a",
    "#n/a",
    "nan",
    "null",
    "none",
    "nil",
    "missing",
    "unknown",
)
CURRENCIES = "$€£¥"
PERCENT = "%"

_EXPONENT = r"([eE][+-]?[0-9]+)?"
_POINT_DECIMAL = rf"([0-9]+\.?[0-9]*|\.[0-9]+){_EXPONENT}"
_COMMA_DECIMAL = rf"([0-9]*,)?[0-9]+{_EXPONENT}"
_COMMA_GROUPS = r"[1-9][0-9]{0,2}(,[0-9]{3})+"
_POINT_GROUPS = r"[1-9][0-9]{0,2}(\.[0-9]{3})+"
_ANY_NUMBER = r"^[+-]?[$€£¥]? *[+-]?[0-9.,]*[0-9][0-9.,]*" + _EXPONENT + r" *[$€£¥%]?$"

# The first pattern that fits all cells of a column is used. So month/day/year wins over day/month/year if both fit.
DATE_PATTERNS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    "%Y/%m/%d %H:%M",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y",
    "%m/%d/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y",
    "%d/%m/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M",
)
_YEAR_FIRST_PATTERNS = tuple(pattern for pattern in DATE_PATTERNS if pattern.startswith("%Y"))
_LIKE_A_DATE = r"^(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{4})"

_MAX_NUMBER_CATEGORIES = 10  # different numbers, each in two rows on average, that become categories beside words
_MAX_WORD_FRACTION = 0.2  # of the cells; words up to this fraction may all differ
_MAX_FREQUENT_WORDS = 5  # different words, each in two cells on average, that may exceed this fraction
_MAX_STORED_WORDS = 100  # in a model file; other words count as missing with a warning


@dataclass(frozen=True)
class NumberFormat:
    """Format of numbers in the text cells of one column.

    Attributes
    ----------
    decimal : "." or ","
    grouping : "", "." or ","
        Separator of thousands; "" if none was found.
    unit : str
        "", a currency symbol, optional before or after the number, or "%", required after it.
    words : tuple of str
        Training cells that stand for a missing number, besides ``MISSING_NUMBER_WORDS``. Case is ignored.
    """

    decimal: Literal[".", ","] = "."
    grouping: Literal["", ".", ","] = ""
    unit: str = ""
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        other = "." if self.decimal == "," else ","
        text = f"1{other if self.grouping else ''}234{self.decimal}5"
        return text + self.unit if self.unit == PERCENT else self.unit + text

    def normalized(self, text: pl.Series) -> pl.Series:
        """Rewrite cells in the syntax of ``float``, such as -1234.5; null where a cell is missing or does not fit."""
        return self._rewritten(_without_missing_words(text))

    def _rewritten(self, bare: pl.Series) -> pl.Series:
        """Rewrite cells as ``normalized`` does, for cells without surrounding spaces and words for a missing number."""
        if self.unit == PERCENT:
            bare = bare.set(~bare.str.ends_with(PERCENT), None).str.replace(r"\s*%$", "")
        elif self.unit:
            symbol = "\\" + self.unit if self.unit == "$" else self.unit
            before = bare.str.replace(rf"^([+-]?)\s*{symbol}\s*", "${1}")
            bare = before.zip_with(before != bare, bare.str.replace(rf"\s*{symbol}$", ""))
        bare = bare.set(~bare.str.contains(rf"^[+-]?({self._pattern()})$"), None)
        other = "." if self.decimal == "," else ","
        return bare.str.replace_all(other, "", literal=True).str.replace(",", ".", literal=True)

    def _pattern(self) -> str:
        if self.decimal == ".":
            grouped = rf"{_COMMA_GROUPS}(\.[0-9]*)?" if self.grouping else rf"{_COMMA_GROUPS}\.[0-9]+"
            return rf"{_POINT_DECIMAL}|{grouped}"
        grouped = rf"{_POINT_GROUPS}(,[0-9]+)?" if self.grouping else rf"{_POINT_GROUPS},[0-9]+"
        return rf"{_COMMA_DECIMAL}|{grouped}"

    def parse(self, text: pl.Series, label: str) -> pl.Series:
        """Convert cells to numbers, null where one is missing; Int64 if all numbers are whole, else Float64.

        Raises InputError for the first cell that does not fit.
        """
        import polars as pl

        text = self._without_words(text)
        bare = _without_missing_words(text)
        if self == PLAIN_FORMAT:  # the most frequent case, without regular expressions
            for dtype in (pl.Int64, pl.Float64):
                numbers = bare.cast(dtype, strict=False)
                if numbers.null_count() == bare.null_count():
                    return numbers
        cells = self._rewritten(bare)
        numbers = cells.cast(pl.Float64, strict=False)
        if numbers.null_count() > bare.null_count():
            position = first_position(numbers.is_null() & bare.is_not_null())
            row, value = row_name(position), text.str.strip_chars()[position]
            if not _is_number_text(value):
                raise InputError(
                    f"{label} was numeric in training but holds the text {quoted(value)} in row {row}; "
                    "store numbers in that column"
                )
            raise InputError(
                f"{label} holds {quoted(value)} in row {row}, which does not fit the numbers of training, written like "
                f"{self}; write it like them"
            )
        whole = cells.cast(pl.Int64, strict=False)
        return whole if whole.null_count() == numbers.null_count() else numbers

    def _without_words(self, text: pl.Series) -> pl.Series:
        """Replace ``words`` by null."""
        if not self.words:
            return text
        lowered = text.str.strip_chars().str.to_lowercase()
        return text.set(lowered.is_in([word.lower() for word in self.words]).fill_null(False), None)

    def unknown_words(self, text: pl.Series) -> pl.Series:
        """Mark cells that are neither a number in any format nor a known word for a missing number.

        Cells with true or false are not marked: they may mean 1 and 0, and ``parse`` refuses them.
        """
        import polars as pl

        bare = pl.first().str.strip_chars()
        known = bare.str.contains(_ANY_NUMBER) | bare.str.to_lowercase().is_in(["true", "false"])
        known |= _is_missing(bare)
        return self._without_words(text).to_frame().select(~known.fill_null(True)).to_series()

    def to_dict(self) -> dict[str, Any]:
        stored: dict[str, Any] = {"decimal": self.decimal, "grouping": self.grouping, "unit": self.unit}
        return stored | ({"words": list(self.words)} if self.words else {})


@dataclass(frozen=True)
class BooleanFormat:
    """Format of booleans in text cells: true or false in any case."""

    def __str__(self) -> str:
        return "true or false"

    def parse(self, text: pl.Series, label: str) -> pl.Series:
        """Convert cells to booleans, null where one is missing. Raises InputError for the first other cell."""
        missing = is_missing_number(text)
        lowered = text.str.strip_chars().str.to_lowercase().set(missing, None)
        invalid = ~lowered.is_in(["true", "false"]) & ~missing
        if invalid.any():
            position = first_position(invalid)
            row, value = row_name(position), text.str.strip_chars()[position]
            raise InputError(
                f"{label} holds {quoted(value)} in row {row}, which does not fit the cells of training, {self}; "
                "write it like them"
            )
        return lowered == "true"

    def to_dict(self) -> str:
        return "boolean"


@dataclass(frozen=True)
class DateFormat:
    """Format of dates in the text cells of one column: one of ``DATE_PATTERNS``."""

    pattern: str


TextFormat = NumberFormat | BooleanFormat | DateFormat
PLAIN_FORMAT = NumberFormat()
BOOLEAN_FORMAT = BooleanFormat()


class ColumnFormats(NamedTuple):
    """Formats of text columns by name, without columns of other text, and messages about ambiguous columns."""

    columns: dict[str, TextFormat]
    ambiguities: list[str]


def restore_format(stored: Any) -> NumberFormat | BooleanFormat | None:
    """Restore the result of ``to_dict`` from an untrusted file; None if it is invalid."""
    if stored == BOOLEAN_FORMAT.to_dict():
        return BOOLEAN_FORMAT
    if not isinstance(stored, dict) or set(stored) - {"words"} != {"decimal", "grouping", "unit"}:
        return None
    decimal, grouping, unit, words = stored["decimal"], stored["grouping"], stored["unit"], stored.get("words", [])
    valid = decimal in (".", ",") and grouping in ("", "." if decimal == "," else ",")
    valid = valid and isinstance(unit, str) and (unit in ("", PERCENT) or (len(unit) == 1 and unit in CURRENCIES))
    valid = valid and isinstance(words, list) and all(map(is_unicode, words))
    return NumberFormat(decimal, grouping, unit, tuple(words)) if valid else None


# Learning


def learn_formats(columns: Sequence[pl.Series], *, decimal_comma: bool = False) -> ColumnFormats:
    """Learn the formats of text columns, all columns together.

    An unambiguous column determines its own format, and the decimal mark of ambiguous columns: those with 46.901 in all
    rows, 1,234 in all rows, or whole numbers only. If no column determines the mark, commas in ambiguous columns group
    thousands, or with ``decimal_comma`` are decimal, as in files that separate cells by semicolons. 46.901 means
    46901 only if another cell of the table has points that group thousands beside decimal commas.
    """
    found: dict[str, TextFormat] = {}
    ambiguities: list[str] = []
    evidences: list[_Evidence] = []
    for series in columns:
        if (evidence := _Evidence.of(series)) is not None:
            evidences.append(evidence)
        elif _is_boolean(series):
            found[series.name] = BOOLEAN_FORMAT
        elif (dates := detect_dates(series)) is not None:
            found[series.name] = DateFormat(dates[1])
            ambiguities += _date_ambiguities(series, dates[1])
    commas = any(one.only_commas for one in evidences)
    points = any(one.only_points for one in evidences)
    table = _TableEvidence(
        commas=commas and not points,
        points=points and not commas,
        point_groups=any(one.shows_point_groups for one in evidences),
        comma_groups=any(one.shows_comma_groups for one in evidences),
        default_comma=decimal_comma,
    )
    for one in evidences:
        found[one.name], ambiguity = one.decide(table)
        ambiguities += [ambiguity] if ambiguity else []
    return ColumnFormats(found, ambiguities)


class _TableEvidence(NamedTuple):
    """Properties of all number columns of a table together."""

    commas: bool  # some column has decimal commas, and none has decimal points
    points: bool  # some column has decimal points, and none has decimal commas
    point_groups: bool
    comma_groups: bool
    default_comma: bool


@dataclass(frozen=True)
class _Evidence:
    """Properties of the cells of one number column that determine its format."""

    name: str
    unit: str
    fits_points: bool
    fits_commas: bool
    has_comma: bool
    has_point: bool
    shows_point_groups: bool
    shows_comma_groups: bool
    example: str | None  # a cell with two possible values

    @property
    def only_commas(self) -> bool:
        return self.fits_commas and not self.fits_points

    @property
    def only_points(self) -> bool:
        return self.fits_points and not self.fits_commas

    @classmethod
    def of(cls, series: pl.Series) -> _Evidence | None:
        """Return None if some cell is not a number, or all are missing."""
        text = _without_missing_words(series).drop_nulls()
        if text.is_empty():
            return None
        if _is_whole(text):  # the most frequent cases, without regular expressions
            return cls(series.name, "", True, True, False, False, False, False, None)
        if _is_plain(text) and NumberFormat(",", ".")._rewritten(text[:100]).null_count():
            return cls(series.name, "", True, False, False, True, False, False, None)
        unit = _unit(text)
        if unit is None:
            return None
        points, commas = NumberFormat(".", ",", unit), NumberFormat(",", ".", unit)
        as_points, as_commas = points._rewritten(text), commas._rewritten(text)
        fits = as_points.null_count() == 0, as_commas.null_count() == 0
        if not any(fits) and not (unit == "" and _is_plain(text)):
            return None
        digits = text.str.extract(r"([0-9.,]*[0-9.,])", 1).fill_null("")
        ambiguous = (as_points.is_not_null() & as_commas.is_not_null() & (as_points != as_commas)).fill_null(False)
        return cls(
            series.name,
            unit,
            fits[0] or not fits[1],
            fits[1],
            bool(digits.str.contains(",", literal=True).any()),
            bool(digits.str.contains(".", literal=True).any()),
            bool(digits.str.contains(rf"^{_POINT_GROUPS},|^[0-9]+\.[0-9]+\.").any()),
            bool(digits.str.contains(rf"^{_COMMA_GROUPS}\.|^[0-9]+,[0-9]+,").any()),
            text.filter(ambiguous)[0] if ambiguous.any() else None,
        )

    def decide(self, table: _TableEvidence) -> tuple[NumberFormat, str | None]:
        """Return the format, and a message if it is ambiguous."""
        proven = not (self.fits_points and self.fits_commas)
        if proven:
            comma = self.fits_commas
        elif self.has_comma:  # 1,234
            comma = table.commas or (table.default_comma and not table.points)
        elif self.has_point:  # 46.901
            comma = table.commas and table.point_groups
        else:
            comma = table.commas
        if comma:
            grouped = self.has_point or table.point_groups
            found = NumberFormat(",", "." if grouped else "", self.unit)
        else:
            grouped = self.has_comma or (table.comma_groups and not table.commas)
            found = NumberFormat(".", "," if grouped else "", self.unit)
        return found, self._ambiguity(found, table, proven)

    def _ambiguity(self, found: NumberFormat, table: _TableEvidence, proven: bool) -> str | None:
        import polars as pl

        if self.example is None:
            return None
        if found.decimal == ".":
            # In a table without decimal commas 46.901 has one meaning.
            ambiguous = not proven and (self.has_comma or table.commas) and not (self.has_comma and table.points)
        else:
            ambiguous = not (self.shows_point_groups or table.point_groups) if self.has_point else not proven
            ambiguous = ambiguous and not (self.has_comma and not self.has_point and table.commas)
        if not ambiguous:
            return None
        value = found.normalized(pl.Series([self.example])).cast(pl.Float64)[0]
        read = f"{quoted(self.example)} is read as {value:.15g}"
        return f"column {quoted(self.name)}: {read}, since its numbers are taken to be written like {found}"


def parse_numbers(text: pl.Series) -> pl.Series | None:
    """Convert a text column to numbers in the format that fits all cells; None if no format does."""
    import polars as pl

    text = text.cast(pl.String)
    found = learn_formats([text]).columns.get(text.name)
    return found.parse(text, f"column {quoted(text.name)}") if isinstance(found, NumberFormat) else None


# Dates


def detect_dates(text: pl.Series) -> tuple[pl.Series, str] | None:
    """Parse a text column as times in UTC and return them with their pattern; None if some cell is not a date."""
    import polars as pl

    bare = text.cast(pl.String).str.strip_chars()
    present = bare.drop_nulls()
    if present.is_empty() or not present.str.contains(_LIKE_A_DATE).all():
        return None
    for pattern in DATE_PATTERNS:
        times = _parse_times(bare, pattern)
        if times.null_count() == bare.null_count():
            return times, pattern
    return None


def parse_dates(text: pl.Series, pattern: str | None, label: str) -> pl.Series:
    """Parse a text column by the ``pattern`` of training. Raises InputError for the first cell that does not fit.

    Without a pattern, as for models trained on date columns, the year must come first, which is unambiguous.
    """
    bare = _without_missing_words(text)
    first, *others = _YEAR_FIRST_PATTERNS if pattern is None else (pattern,)
    times = _parse_times(bare, first)
    for other in others:
        times = times.zip_with(times.is_not_null(), _parse_times(bare, other))
    invalid = times.is_null() & bare.is_not_null()
    if invalid.any():
        position = first_position(invalid)
        shown = "2024-01-31" if pattern is None else pattern
        raise InputError(
            f"{label} holds {quoted(bare[position])} in row {row_name(position)}, which is not a date in the format "
            f"of training, {shown}; write it so"
        )
    return times


def to_utc(series: pl.Series) -> pl.Series:
    """Convert dates and times, with or without a time zone, to times in UTC without one."""
    import polars as pl

    if series.dtype == pl.Date:
        return series.cast(pl.Datetime("us"))
    if getattr(series.dtype, "time_zone", None) is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return series.cast(pl.Datetime("us"))


def _parse_times(bare: pl.Series, pattern: str) -> pl.Series:
    """Parse times in UTC, null where a cell does not fit."""
    import polars as pl

    try:
        return to_utc(bare.str.to_datetime(pattern, strict=False, time_unit="us"))
    except pl.exceptions.PolarsError:  # the pattern has an offset, and no cell has one
        return pl.Series(bare.name, [None] * bare.len(), dtype=pl.Datetime("us"))


def _date_ambiguities(series: pl.Series, pattern: str) -> list[str]:
    """Return a message if days and months could be swapped in all rows."""
    if not pattern.startswith(("%m/%d", "%d/%m")):
        return []
    swapped = pattern.translate(str.maketrans("md", "dm"))
    bare = series.str.strip_chars().drop_nulls()
    other = _parse_times(bare, swapped)
    differs = other != _parse_times(bare, pattern)
    if other.null_count() or not differs.any():
        return []
    example = quoted(bare.filter(differs)[0])
    return [f"column {quoted(series.name)}: {example} is read as {pattern}; {swapped} would fit all rows as well"]


# Words among numbers


@dataclass(frozen=True)
class MixedCells:
    """A column of numbers that contains words.

    Attributes
    ----------
    name : str
    words : list of str
        The most frequent first.
    cells : int
        Number of cells that hold words.
    row : int
        1-based row of the first cell with ``words[0]``.
    number_format : NumberFormat or None
        Format of the numbers, including the words; None if the column becomes categories.
    numbers : polars.Series or None
        The cells as numbers with null for words; None if the column becomes categories.
    """

    name: str
    words: list[str]
    cells: int
    row: int | str
    number_format: NumberFormat | None
    numbers: pl.Series | None = None

    def __str__(self) -> str:
        """Return the warning about the column."""
        held = "1 cell holds a word" if self.cells == 1 else f"{self.cells:,} cells hold words"
        found = f"column {quoted(self.name)}: {held} among numbers ({listed(self.words, 5)})"
        if self.number_format is None:
            return f"{found}; the column is used as categories; to use it as numbers, leave those cells empty"
        counted = "it counts as missing" if self.cells == 1 else "they count as missing"
        option = cli_option("--categorical", self.name)
        return f"{found}; {counted}; to use the column as categories, pass {option} (categorical=)"


def detect_mixed_cells(series: pl.Series) -> MixedCells | None:
    """Decide on a text column of which at least half of the cells are numbers; None for all other columns."""
    import polars as pl

    text = series.cast(pl.String)
    numeric = _without_missing_words(text).str.contains(_ANY_NUMBER)  # null where a cell is missing
    present, numbers = text.len() - int(is_missing_number(text).sum()), int(numeric.sum() or 0)
    if numbers in (0, present) or 2 * numbers < present:
        return None
    is_word = (~numeric).fill_null(False)
    rest = text.set(is_word, None)
    found = learn_formats([rest]).columns.get(series.name)
    counts = text.filter(is_word).str.strip_chars().rename("word").value_counts()
    counts = counts.sort("count", "word", descending=[True, False])
    words, different = counts["word"].to_list(), rest.str.strip_chars().drop_nulls().n_unique()
    is_first = (text.str.strip_chars() == words[0]).fill_null(False)
    row, cells = row_name(first_position(is_first)), present - numbers
    few_numbers = different <= _MAX_NUMBER_CATEGORIES and 2 * different <= numbers
    if few_numbers and len(words) <= _MAX_NUMBER_CATEGORIES:
        return MixedCells(series.name, words, cells, row, None)
    rare = cells <= _MAX_WORD_FRACTION * present
    frequent = len(words) <= _MAX_FREQUENT_WORDS and cells >= 2 * len(words)
    if not isinstance(found, NumberFormat) or not (rare or frequent):
        return None
    parsed = found.parse(rest, f"column {quoted(series.name)}")
    with_words = replace(found, words=tuple(sorted(words[:_MAX_STORED_WORDS])))
    return MixedCells(series.name, words, cells, row, with_words, parsed)


# Cells


def is_missing_number(text: pl.Series) -> pl.Series:
    """Mark cells of a number column without a number: null, or a word for it."""
    import polars as pl

    return text.to_frame().select(_is_missing(pl.first().str.strip_chars())).to_series()


def _without_missing_words(text: pl.Series) -> pl.Series:
    """Strip spaces, and replace words for a missing number by null."""
    import polars as pl

    bare = pl.first().str.strip_chars()
    return text.to_frame().select(pl.when(~_is_missing(bare)).then(bare)).to_series()


def _is_missing(bare: pl.Expr) -> pl.Expr:
    return bare.str.to_lowercase().is_in(MISSING_NUMBER_WORDS).fill_null(True)


def _unit(text: pl.Series) -> str | None:
    """Return the unit of cells that are not missing; None if they have different units."""
    marks = text.str.extract(rf"([{CURRENCIES}%])", 1)
    units = set(marks.drop_nulls().to_list())
    if len(units) > 1 or (units == {PERCENT} and marks.null_count()):
        return None
    return units.pop() if units else ""


def _is_whole(text: pl.Series) -> bool:
    import polars as pl

    return text.cast(pl.Int64, strict=False).null_count() == 0


def _is_plain(text: pl.Series) -> bool:
    """Return whether polars parses all cells as numbers. Infinite ones are refused later with their own message."""
    import polars as pl

    return text.cast(pl.Float64, strict=False).null_count() == 0


def _is_boolean(series: pl.Series) -> bool:
    lowered = series.drop_nulls().str.strip_chars().str.to_lowercase()
    lowered = lowered.filter(~lowered.is_in(MISSING_NUMBER_WORDS))
    return not lowered.is_empty() and bool(lowered.is_in(["true", "false"]).all())


def _is_number_text(value: str) -> bool:
    import polars as pl

    return bool(pl.Series([value]).str.contains(_ANY_NUMBER)[0])
