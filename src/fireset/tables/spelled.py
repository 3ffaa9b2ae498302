"""How text cells spell numbers, truth values and dates: 12,345.67, 3,5, $1,234.50, 12.5%, 2024-01-31, 31.01.2024.

A spelling is learned once, from all columns of the training table, and stored with the model. Later cells are read
one by one with the stored spelling, so that a cell means the same in every file. A cell that does not fit is refused.

Conventions, d being a digit:

==================  ==================================  =================================
decimal, grouping   accepted                            refused
==================  ==================================  =================================
``.`` and none      d.d, d, 1,234.5 (proves itself)     1,234
``.`` and ``,``     d.d, d, 1,234, 1,234.5              3,5
``,`` and none      d,d, d, 1.234,5 (proves itself)     46.901
``,`` and ``.``     d,d, d, 1.234, 1.234,5              4.5
==================  ==================================  =================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fireset._util.errors import InputError
from fireset.tables.cells import first_row, quoted

if TYPE_CHECKING:
    import polars as pl

# What people write into a column of numbers where there is none. Beside words, "None" is a word.
NO_NUMBER = ("", "?", "-", "--", ".", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "unknown")
CURRENCIES = "$€£¥"
PERCENT = "%"

_EXPONENT = r"([eE][+-]?[0-9]+)?"
_PLAIN = rf"([0-9]+\.?[0-9]*|\.[0-9]+){_EXPONENT}"
_COMMA = rf"([0-9]*,)?[0-9]+{_EXPONENT}"
_COMMA_GROUPS = r"[1-9][0-9]{0,2}(,[0-9]{3})+"
_POINT_GROUPS = r"[1-9][0-9]{0,2}(\.[0-9]{3})+"
_ANY_NUMBER = r"^[+-]?[$€£¥]? *[+-]?[0-9.,]*[0-9][0-9.,]*" + _EXPONENT + r" *[$€£¥%]?$"

# Each is tried on all cells of a column. Where days and months could be taken for each other the first that fits is.
DATE_FORMATS = (
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
_YEAR_FIRST = tuple(tried for tried in DATE_FORMATS if tried.startswith("%Y"))
_LIKE_A_DATE = r"^(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{4})"


@dataclass(frozen=True)
class NumberSpelling:
    """How the cells of one column spell numbers.

    Attributes
    ----------
    decimal : "." or ","
    grouping : "", "." or ","
        What separates thousands, if anything is known to.
    unit : str
        "", a currency symbol, which cells may have before or after the number, or "%", which all cells have after it.
    words : tuple of str
        Texts of training that stand for a missing number, besides ``NO_NUMBER``; in letters of any case.
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
        """The cells as ``float`` reads them, such as -1234.5; null where a cell is missing or does not fit."""
        bare = _bare(text)
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
            return rf"{_PLAIN}|{_COMMA_GROUPS}(\.[0-9]*)?" if self.grouping else rf"{_PLAIN}|{_COMMA_GROUPS}\.[0-9]+"
        return rf"{_COMMA}|{_POINT_GROUPS}(,[0-9]+)?" if self.grouping else rf"{_COMMA}|{_POINT_GROUPS},[0-9]+"

    def numbers(self, text: pl.Series, label: str) -> pl.Series:
        """The cells as numbers, null where one is missing; refuses the first cell that does not fit.

        Whole numbers are Int64 where all are, else all are Float64.
        """
        import polars as pl

        text = self.without_words(text)
        missing = is_missing(text)
        if self == PLAIN:  # nearly every column
            bare = _bare(text)
            for dtype in (pl.Int64, pl.Float64):
                numbers = bare.cast(dtype, strict=False)
                if numbers.null_count() == bare.null_count():
                    return numbers
        cells = self.normalized(text)
        numbers = cells.cast(pl.Float64, strict=False)
        if numbers.null_count() > missing.sum():
            row = first_row(numbers.is_null() & ~missing)
            value = text.cast(pl.String).str.strip_chars()[row - 1]
            if not _spells_any_number(value):
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

    def without_words(self, text: pl.Series) -> pl.Series:
        """The cells with null in place of ``words``."""
        if not self.words:
            return text
        lowered = text.str.strip_chars().str.to_lowercase()
        return text.set(lowered.is_in([word.lower() for word in self.words]).fill_null(False), None)

    def unknown_words(self, text: pl.Series) -> pl.Series:
        """Which cells hold text that is neither a number, in any spelling, nor known to stand for a missing one.

        Neither are true and false, which may stand for 1 and 0 and are refused.
        """
        bare = self.without_words(text).str.strip_chars()
        known = is_missing(bare) | bare.str.contains(_ANY_NUMBER) | bare.str.to_lowercase().is_in(["true", "false"])
        return ~known.fill_null(True)

    def to_dict(self) -> dict[str, Any]:
        stored: dict[str, Any] = {"decimal": self.decimal, "grouping": self.grouping, "unit": self.unit}
        return stored | ({"words": list(self.words)} if self.words else {})


class TruthSpelling:
    """Cells that spell true or false, in letters of any case."""

    def __str__(self) -> str:
        return "true or false"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TruthSpelling)

    def __hash__(self) -> int:
        return hash(TruthSpelling)

    def numbers(self, text: pl.Series, label: str) -> pl.Series:
        """The cells as booleans, null where one is missing; refuses the first cell that is neither true nor false."""
        missing = is_missing(text)
        lowered = text.str.strip_chars().str.to_lowercase().set(missing, None)
        strange = ~lowered.is_in(["true", "false"]) & ~missing
        if strange.any():
            row = first_row(strange)
            value = text.str.strip_chars()[row - 1]
            raise InputError(
                f"{label} holds {quoted(value)} in row {row}, which does not fit the cells of training, {self}; "
                "write it like them"
            )
        return lowered == "true"

    def to_dict(self) -> str:
        return "boolean"


PLAIN = NumberSpelling()
TRUTH = TruthSpelling()


@dataclass(frozen=True)
class DateSpelling:
    """The format of the dates of one column."""

    format: str


Spelling = NumberSpelling | TruthSpelling | DateSpelling


class Spellings(NamedTuple):
    """The spellings of the columns of a table by name, texts left out, and what was ambiguous in them, in words."""

    columns: dict[str, Spelling]
    doubts: list[str]


def is_missing(text: pl.Series) -> pl.Series:
    """Which cells of a column of numbers hold none: null, or a word for it."""
    bare = text.str.strip_chars().str.to_lowercase()
    return (bare.is_null() | bare.is_in(NO_NUMBER)).fill_null(True)


def learn_spellings(columns: Sequence[pl.Series], *, decimal_comma: bool = False) -> Spellings:
    """How text columns spell their cells, decided together.

    A column whose cells allow one reading only decides for itself, and its decimal mark for columns that allow two:
    46.901 in all rows, 1,234 in all rows, or whole numbers alone. If no column decides, commas in such columns group
    thousands, unless ``decimal_comma``, which is for files that separate cells by semicolons. A lone 46.901 is
    46901 only if another cell of the table shows that points group thousands beside decimal commas.
    """
    found: dict[str, Spelling] = {}
    doubts: list[str] = []
    evidences: list[_Evidence] = []
    for series in columns:
        if (evidence := _Evidence.of(series)) is not None:
            evidences.append(evidence)
        elif _is_truth(series):
            found[series.name] = TRUTH
        elif (dates := dates_in_text(series)) is not None:
            found[series.name] = DateSpelling(dates[1])
            doubts += _doubtful_dates(series, dates[1])
    commas = any(one.only_commas for one in evidences)
    points = any(one.only_points for one in evidences)
    context = _Context(
        commas=commas and not points,
        points=points and not commas,
        point_groups=any(one.shows_point_groups for one in evidences),
        comma_groups=any(one.shows_comma_groups for one in evidences),
        default_comma=decimal_comma,
    )
    for one in evidences:
        spelling, doubt = one.decide(context)
        found[one.name] = spelling
        doubts += [doubt] if doubt else []
    return Spellings(found, doubts)


class _Context(NamedTuple):
    """What the number columns of a table show together."""

    commas: bool  # some column has decimal commas, and none decimal points
    points: bool
    point_groups: bool
    comma_groups: bool
    default_comma: bool


@dataclass(frozen=True)
class _Evidence:
    """What the cells of one column of numbers show about its spelling."""

    name: str
    unit: str
    fits_points: bool
    fits_commas: bool
    has_comma: bool
    has_point: bool
    shows_point_groups: bool
    shows_comma_groups: bool
    example: str | None  # a cell with two readings

    @property
    def only_commas(self) -> bool:
        return self.fits_commas and not self.fits_points

    @property
    def only_points(self) -> bool:
        return self.fits_points and not self.fits_commas

    @classmethod
    def of(cls, series: pl.Series) -> _Evidence | None:
        """None if some cell is no number, or none is."""
        text = _bare(series).drop_nulls()
        if text.is_empty():
            return None
        if _is_whole(text):  # the usual cases first, without patterns
            return cls(series.name, "", True, True, False, False, False, False, None)
        if _is_plain(text) and NumberSpelling(",", ".").normalized(text[:100]).null_count():
            return cls(series.name, "", True, False, False, True, False, False, None)
        unit = _unit(text)
        if unit is None:
            return None
        points, commas = NumberSpelling(".", ",", unit), NumberSpelling(",", ".", unit)
        as_points, as_commas = points.normalized(text), commas.normalized(text)
        fits = as_points.null_count() == 0, as_commas.null_count() == 0
        if not any(fits) and not (unit == "" and _is_plain(text)):
            return None
        digits = text.str.extract(r"([0-9.,]*[0-9.,])", 1).fill_null("")
        two_readings = (as_points.is_not_null() & as_commas.is_not_null() & (as_points != as_commas)).fill_null(False)
        return cls(
            series.name,
            unit,
            fits[0] or not fits[1],
            fits[1],
            bool(digits.str.contains(",", literal=True).any()),
            bool(digits.str.contains(".", literal=True).any()),
            bool(digits.str.contains(rf"^{_POINT_GROUPS},|^[0-9]+\.[0-9]+\.").any()),
            bool(digits.str.contains(rf"^{_COMMA_GROUPS}\.|^[0-9]+,[0-9]+,").any()),
            text.filter(two_readings)[0] if two_readings.any() else None,
        )

    def decide(self, table: _Context) -> tuple[NumberSpelling, str | None]:
        """The spelling, and what was ambiguous, in words."""
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
            spelling = NumberSpelling(",", "." if grouped else "", self.unit)
        else:
            grouped = self.has_comma or (table.comma_groups and not table.commas)
            spelling = NumberSpelling(".", "," if grouped else "", self.unit)
        return spelling, self._doubt(spelling, table, proven)

    def _doubt(self, spelling: NumberSpelling, table: _Context, proven: bool) -> str | None:
        import polars as pl

        if self.example is None:
            return None
        if spelling.decimal == ".":
            # In a table without decimal commas 46.901 has one reading.
            doubtful = not proven and (self.has_comma or table.commas) and not (self.has_comma and table.points)
        else:
            doubtful = not (self.shows_point_groups or table.point_groups) if self.has_point else not proven
            doubtful = doubtful and not (self.has_comma and not self.has_point and table.commas)
        if not doubtful:
            return None
        value = spelling.normalized(pl.Series([self.example])).cast(pl.Float64)[0]
        read = f"{quoted(self.example)} is read as {value:.15g}"
        return f"column {quoted(self.name)}: {read}, since its numbers are taken to be written like {spelling}"


def numbers_in_text(text: pl.Series) -> pl.Series | None:
    """The numbers that a text column spells, null where it says that there is none; None if some cell is no number."""
    import polars as pl

    spelling = learn_spellings([text.cast(pl.String)]).columns.get(text.name)
    if not isinstance(spelling, NumberSpelling):
        return None
    return spelling.numbers(text.cast(pl.String), f"column {quoted(text.name)}")


def restore_spelling(stored: Any) -> NumberSpelling | TruthSpelling | None:
    """What ``to_dict`` of a spelling gave; None if it is none."""
    if stored == TRUTH.to_dict():
        return TRUTH
    if not isinstance(stored, dict) or set(stored) - {"words"} != {"decimal", "grouping", "unit"}:
        return None
    decimal, grouping, unit, words = stored["decimal"], stored["grouping"], stored["unit"], stored.get("words", [])
    known = decimal in (".", ",") and grouping in ("", "." if decimal == "," else ",")
    known = known and isinstance(unit, str) and (unit in ("", PERCENT) or (len(unit) == 1 and unit in CURRENCIES))
    known = known and isinstance(words, list) and all(isinstance(word, str) for word in words)
    known = known and not any("\ud800" <= c <= "\udfff" for word in words for c in word)  # which no table can hold
    return NumberSpelling(decimal, grouping, unit, tuple(words)) if known else None


def dates_in_text(text: pl.Series) -> tuple[pl.Series, str] | None:
    """The times that a text column spells, in UTC, and their format; None if some cell is no date."""
    import polars as pl

    bare = text.cast(pl.String).str.strip_chars()
    present = bare.drop_nulls()
    if present.is_empty() or not present.str.contains(_LIKE_A_DATE).all():
        return None
    for tried in DATE_FORMATS:
        times = _times(bare, tried)
        if times.null_count() == bare.null_count():
            return times, tried
    return None


def dates_by_format(text: pl.Series, format: str | None, label: str) -> pl.Series:
    """The times of a text column whose cells have the ``format`` of training; refuses the first that has not.

    Without a format, since training had dates as dates, the year must come first, which leaves no doubt.
    """
    bare = text.str.strip_chars()
    bare = bare.set(is_missing(text), None)
    times = _times(bare, format or _YEAR_FIRST[0])
    if format is None:
        for tried in _YEAR_FIRST[1:]:
            times = times.zip_with(times.is_not_null(), _times(bare, tried))
    strange = times.is_null() & bare.is_not_null()
    if strange.any():
        row = first_row(strange)
        shown = "2024-01-31" if format is None else format
        raise InputError(
            f"{label} holds {quoted(bare[row - 1])} in row {row}, which is no date in the format of training, {shown}; "
            "write it so"
        )
    return times


def as_times(series: pl.Series) -> pl.Series:
    """Dates and times with or without a zone as times in UTC that have none."""
    import polars as pl

    if series.dtype == pl.Date:
        return series.cast(pl.Datetime("us"))
    if getattr(series.dtype, "time_zone", None) is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return series.cast(pl.Datetime("us"))


def _times(bare: pl.Series, format: str) -> pl.Series:
    """Null where a cell does not have the format."""
    import polars as pl

    try:
        return as_times(bare.str.to_datetime(format, strict=False, time_unit="us"))
    except pl.exceptions.PolarsError:  # a format with offsets, and no cell has one
        return pl.Series(bare.name, [None] * bare.len(), dtype=pl.Datetime("us"))


def _doubtful_dates(series: pl.Series, format: str) -> list[str]:
    """Dates in which days and months could be exchanged in all rows."""
    if not format.startswith(("%m/%d", "%d/%m")):
        return []
    exchanged = format.translate(str.maketrans("md", "dm"))
    bare = series.str.strip_chars().drop_nulls()
    other = _times(bare, exchanged)
    differs = other != _times(bare, format)
    if other.null_count() or not differs.any():
        return []
    named = quoted(bare.filter(differs)[0])
    return [f"column {quoted(series.name)}: {named} is read as {format}; {exchanged} would fit all rows as well"]


def _bare(text: pl.Series) -> pl.Series:
    """Without surrounding spaces, null where a column of numbers has none."""
    return text.str.strip_chars().set(is_missing(text), None)


def _unit(text: pl.Series) -> str | None:
    """The unit of cells that are not missing; None if they disagree."""
    marks = text.str.extract(rf"([{CURRENCIES}%])", 1)
    units = set(marks.drop_nulls().to_list())
    if len(units) > 1 or (units == {PERCENT} and marks.null_count()):
        return None
    return units.pop() if units else ""


def _is_whole(text: pl.Series) -> bool:
    import polars as pl

    return text.cast(pl.Int64, strict=False).null_count() == 0


def _is_plain(text: pl.Series) -> bool:
    """Whether polars reads all cells as numbers, infinite ones included, which are refused with their own words."""
    import polars as pl

    return text.cast(pl.Float64, strict=False).null_count() == 0


def _is_truth(series: pl.Series) -> bool:
    lowered = series.drop_nulls().str.strip_chars().str.to_lowercase()
    lowered = lowered.filter(~lowered.is_in(NO_NUMBER))
    return not lowered.is_empty() and bool(lowered.is_in(["true", "false"]).all())


def spell_any_number(text: pl.Series) -> pl.Series:
    """Which cells spell a number in some convention; null where the cell is missing."""
    return _bare(text).str.contains(_ANY_NUMBER)


def _spells_any_number(value: str) -> bool:
    import polars as pl

    return bool(pl.Series([value]).str.contains(_ANY_NUMBER)[0])
