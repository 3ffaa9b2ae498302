"""From the columns of a table to rows of norm 1, as the network sees them, in the nodes of a graph.

Numbers are float64 all the way, as in ``TableEncoder`` and ``SphereMap``.
"""

import re
from collections.abc import Iterator

import numpy as np

from fireset.estimators.onnx_export.graph import ML, Graph
from fireset.tables.column_kinds import (
    OTHER_CATEGORY,
    PERIODS,
    PHASE_STEP,
    CategoryColumn,
    DateColumn,
    NumberColumn,
    OrderedColumn,
)
from fireset.tables.columns import CLIP, BentColumn, ColumnMap
from fireset.tables.encoder import TableEncoder
from fireset.tables.sphere import SphereMap

_UNKNOWN, _REFUSED = -1, -2  # codes of cells that are none of the categories

Part = tuple[str, list[int]]  # a value (rows, k), and which k features it holds


def add_inputs(graph: Graph, encoder: TableEncoder, by_name: bool) -> list[str]:
    """One input X for the columns of an array, or one for each column of a table."""
    if not by_name:
        return [graph.input("X", np.float64, len(encoder.columns))]
    types = [object if isinstance(column, CategoryColumn | OrderedColumn) else np.float64 for column in encoder.columns]
    return [graph.input(column.name, dtype, 1) for column, dtype in zip(encoder.columns, types, strict=True)]


def add_encoder(graph: Graph, encoder: TableEncoder, inputs: list[str], by_name: bool) -> str:
    """(rows, features): what ``TableEncoder.encode`` gives; NaN or ∞ in rows with cells that it refuses."""
    starts = (np.cumsum(encoder.features_per_column) - encoder.features_per_column).tolist()
    numbers: list[tuple[int, NumberColumn]] = []
    given: list[str] = []
    parts: list[Part] = []
    for j, column in enumerate(encoder.columns):
        places = list(range(starts[j], starts[j] + len(column.feature_names)))
        if isinstance(column, NumberColumn):
            numbers.append((starts[j], column))
            given += [inputs[j]] if by_name else []
        elif isinstance(column, DateColumn):
            parts.append((_date(graph, inputs[j], column), places))
        elif isinstance(column, OrderedColumn):
            parts.append((_ordered(graph, inputs[j], column), places))
        else:
            parts.append((_categories(graph, inputs[j], column), places))
    if numbers:
        value = graph.joined(given or inputs, "numbers")  # an array is all of them already
        parts = _numbers(graph, value, numbers) + parts
    return _in_order(graph, parts, "features")


def add_sphere(graph: Graph, features: str, sphere: SphereMap) -> str:
    """(rows, features + 1): what ``SphereMap`` gives, x ↦ (s·z, bias) / ‖(s·z, bias)‖."""
    z = _column_map(graph, features, sphere.columns)
    z = graph.add("Mul", z, graph.constant("column_scales", sphere.column_scales), name="z_scaled")
    z = graph.add("Div", z, graph.constant("typical", sphere.typical), name="z_typical")
    squares = graph.row_sums(graph.add("Mul", z, z, name="z_squared"), "squared_length")
    whole = graph.add("Add", squares, graph.constant("squared_bias", sphere.bias**2), name="squared_norm")
    norm = graph.add("Sqrt", whole, name="norm")
    last = graph.add("Div", graph.constant("bias", [[sphere.bias]]), norm, name="bias_normalized")
    return graph.joined([graph.add("Div", z, norm, name="z_normalized"), last], "rows_on_sphere")


def add_doubts(graph: Graph, features: str) -> str:
    """(rows, 1): 0, but NaN for rows with cells that are missing where they must not be, or infinite."""
    products = graph.add("Mul", features, graph.constant("zero", 0.0), name="features_times_zero")
    return graph.row_sums(products, "doubts")


def _numbers(graph: Graph, value: str, columns: list[tuple[int, NumberColumn]]) -> list[Part]:
    """All columns of numbers at once: the numbers with medians where some are missing, and where that is."""
    missing = graph.add("IsNaN", value, name="missing")
    fills = [np.nan if column.fill is None else column.fill for _, column in columns]
    filled = graph.add("Where", missing, graph.constant("fills", fills), value, name="numbers_filled")
    parts = [(filled, [start for start, _ in columns])]
    if indicated := [k for k, (_, column) in enumerate(columns) if column.indicator]:
        says = graph.cast(graph.columns(missing, indicated, "indicated"), np.float64, "indicators")
        parts.append((says, [columns[k][0] + 1 for k in indicated]))
    return parts


def _date(graph: Graph, days: str, column: DateColumn) -> str:
    """Days, sine and cosine of each period, and where the cell was missing."""
    missing = graph.add("IsNaN", days, name=f"{column.name}/missing")
    if column.fill is not None:
        fill = graph.constant(f"{column.name}/fill", column.fill)
        days = graph.add("Where", missing, fill, days, name=f"{column.name}/days")
    values = [days]
    for period in column.periods:
        name = f"{column.name}/{period}"
        length = graph.constant(f"{name}/length", PERIODS[period])
        # The sign of the remainder is that of the days, and not as in NumPy; sine and cosine are the same.
        since = graph.add("Mod", days, length, name=f"{name}/remainder", fmod=1)
        turn = graph.constant(f"{name}/turn", 2.0 * np.pi / PERIODS[period])
        angle = graph.add("Mul", since, turn, name=f"{name}/angle")
        # The cosine by the sine, which earlier versions of onnxruntime have in float64, too.
        quarter = graph.constant(f"{name}/quarter", np.pi / 2)
        ahead = graph.add("Add", angle, quarter, name=f"{name}/angle_ahead")
        values += [_rounded_sine(graph, angle, f"{name}/sine"), _rounded_sine(graph, ahead, f"{name}/cosine")]
    if column.indicator:
        values.append(graph.cast(missing, np.float64, f"{column.name}/indicator"))
    return graph.joined(values, f"{column.name}/features")


def _rounded_sine(graph: Graph, angle: str, name: str) -> str:
    """As ``DateColumn.phases`` rounds it."""
    step = graph.constant(f"{name}/step", PHASE_STEP)
    steps = graph.add("Div", graph.add("Sin", angle, name=f"{name}/exact"), step, name=f"{name}/steps")
    return graph.add("Mul", graph.add("Round", steps, name=f"{name}/whole_steps"), step, name=name)


def _categories(graph: Graph, text: str, column: CategoryColumn) -> str:
    """0 and 1 for each category; the empty text is a missing cell."""
    number = {category: code for code, category in enumerate(column.categories)}
    known = {"": _REFUSED if column.fill is None else number[column.fill]}
    for category, code in number.items():
        known |= {spelled: code for spelled in _spellings(category) if spelled not in number}
    known |= number
    codes = graph.add(
        "LabelEncoder",
        text,
        name=f"{column.name}/code",
        domain=ML,
        keys_strings=list(known),
        values_int64s=list(known.values()),
        default_int64=number[OTHER_CATEGORY] if column.other else _UNKNOWN,
    )
    all_codes = graph.constant(f"{column.name}/codes", [list(number.values())], np.int64)
    same = graph.add("Equal", codes, all_codes, name=f"{column.name}/is")
    one_hot = graph.cast(same, np.float64, f"{column.name}/features")
    if column.fill is not None:
        return one_hot
    refused = graph.add(
        "Equal", codes, graph.constant(f"{column.name}/refused_code", _REFUSED, np.int64), name=f"{column.name}/refused"
    )
    return graph.add("Where", refused, graph.constant("nan", np.nan), one_hot, name=f"{column.name}/checked")


def _ordered(graph: Graph, text: str, column: OrderedColumn) -> str:
    """The place in the order, and where the cell was missing; NaN for texts that have no place."""
    name = column.name
    places = {level: place for place, level in enumerate(column.levels)}
    known = {spelled: place for level, place in places.items() for spelled in _spellings(level)}
    known = {"": _UNKNOWN} | known | places
    codes = graph.add(
        "LabelEncoder",
        text,
        name=f"{name}/code",
        domain=ML,
        keys_strings=list(known),
        values_int64s=list(known.values()),
        default_int64=_REFUSED,
    )
    missing, strange = (
        graph.add("Equal", codes, graph.constant(f"{name}/{kind}_code", code, np.int64), name=f"{name}/{kind}")
        for kind, code in (("missing", _UNKNOWN), ("strange", _REFUSED))
    )
    nan = graph.constant("nan", np.nan)
    fill = nan if column.fill is None else graph.constant(f"{name}/fill", column.fill)
    numbers = graph.add("Where", strange, nan, graph.cast(codes, np.float64, f"{name}/place"), name=f"{name}/known")
    values = [graph.add("Where", missing, fill, numbers, name=f"{name}/filled")]
    if column.indicator:
        values.append(graph.cast(missing, np.float64, f"{name}/indicator"))
    return graph.joined(values, f"{name}/features")


def _spellings(category: str) -> Iterator[str]:
    """Other texts that programs make of a category that is a whole number or a truth value."""
    if re.fullmatch(r"-?\d+", category):
        yield f"{category}.0"
    elif category in ("true", "false"):
        yield category.capitalize()


def _column_map(graph: Graph, features: str, columns: ColumnMap) -> str:
    """(rows, features): what ``ColumnMap`` gives."""
    straight = np.setdiff1d(np.arange(len(columns.mean)), [bent.column for bent in columns.bent])
    parts: list[Part] = []
    if len(straight):
        x = graph.columns(features, straight, "straight") if columns.bent else features
        x = graph.add("Sub", x, graph.constant("mean", columns.mean[straight]), name="centred")
        x = graph.add("Div", x, graph.constant("scale", columns.scale[straight]), name="standardized")
        limits = graph.constant("lowest", -CLIP), graph.constant("highest", CLIP)
        parts.append((graph.add("Clip", x, *limits, name="clipped"), straight.tolist()))
    if columns.bent:
        parts.append((_bend(graph, features, columns.bent), [bent.column for bent in columns.bent]))
    return _in_order(graph, parts, "z")


def _bend(graph: Graph, features: str, bent: list[BentColumn]) -> str:
    """Maps that are linear between knots, of all such columns at once: the last knot at or below x by bisection."""
    longest = max(len(one.knots) for one in bent)
    steps = [1 << k for k in reversed(range(int(longest - 1).bit_length()))]
    length = 2 * steps[0]  # of each column's part of the tables; knots beyond its own are ∞
    knots, values, slopes = (np.full((len(bent), length), fill) for fill in (np.inf, 0.0, 0.0))
    for k, one in enumerate(bent):
        own = len(one.knots)
        knots[k, :own], values[k, :own] = one.knots, one.values
        with np.errstate(over="ignore"):  # between knots a denormal number apart lies no x
            rises = np.diff(one.values) / np.diff(one.knots)
        slopes[k, : own - 1] = np.minimum(rises, np.finfo(np.float64).max)
    table = graph.constant("bent_knots", knots.ravel())
    x = graph.columns(features, [one.column for one in bent], "bent_x")
    x = graph.add("Max", x, graph.constant("bent_first", [one.knots[0] for one in bent]), name="bent_above")
    x = graph.add("Min", x, graph.constant("bent_last", [one.knots[-1] for one in bent]), name="bent_between")
    at = graph.constant("bent_starts", [np.arange(len(bent)) * length], np.int64)
    for step in steps:
        further = graph.add("Add", at, graph.constant("bent_step", step, np.int64), name="bent_further")
        reached = graph.add("GreaterOrEqual", x, graph.add("Gather", table, further, name="bent_knot"), name="bent_is")
        at = graph.add("Where", reached, further, at, name="bent_at")
    beyond = graph.add("Sub", x, graph.add("Gather", table, at, name="bent_below"), name="bent_beyond")
    slope = graph.add("Gather", graph.constant("bent_slopes", slopes.ravel()), at, name="bent_slope")
    start = graph.add("Gather", graph.constant("bent_values", values.ravel()), at, name="bent_value")
    return graph.add("Add", graph.add("Mul", slope, beyond, name="bent_rise"), start, name="bent_z")


def _in_order(graph: Graph, parts: list[Part], name: str) -> str:
    """The parts side by side, each feature at its place."""
    places = [place for _, held in parts for place in held]
    joined = graph.joined([value for value, _ in parts], f"{name}_by_kind")
    if places == sorted(places):
        return joined
    return graph.columns(joined, np.argsort(places), name)
