"""Nodes from the columns of a table to rows of norm 1, in float64 as in ``TableEncoder`` and ``SphereMap``."""

import numpy as np

from fireset._util.onnx_graph import Graph
from fireset.tables.column_map import CLIP, ColumnMap, QuantileMap
from fireset.tables.column_types.base import NumberEncoding
from fireset.tables.encoder import TableEncoder
from fireset.tables.pieces import Pieces
from fireset.tables.sphere import SphereMap

_Part = tuple[str, list[int]]  # a value (rows, k), and the positions of its k features


def add_inputs(graph: Graph, encoder: TableEncoder, by_name: bool) -> list[str]:
    """Add one input for each column of a table, or one input X for all columns of an array."""
    if not by_name:
        return [graph.input("X", np.float64, len(encoder.columns))]
    return [graph.input(column.name, column.onnx_dtype, 1) for column in encoder.columns]


def add_encoder(graph: Graph, encoder: TableEncoder, inputs: list[str], by_name: bool) -> str:
    """Add nodes for ``TableEncoder.encode``, (rows, features). Cells that it refuses become NaN or infinite."""
    starts = (np.cumsum(encoder.features_per_column) - encoder.features_per_column).tolist()
    numbers: list[tuple[int, NumberEncoding]] = []
    number_inputs: list[str] = []
    parts: list[_Part] = []
    for j, column in enumerate(encoder.columns):
        if column.number_encoding is None:
            positions = range(starts[j], starts[j] + len(column.feature_names))
            parts.append((column.to_onnx(graph, inputs[j]), list(positions)))
        else:
            numbers.append((starts[j], column.number_encoding))
            number_inputs += [inputs[j]] if by_name else []
    if numbers:
        value = graph.joined(number_inputs or inputs, "numbers")  # an array is one value already
        parts = _add_numbers(graph, value, numbers) + parts
    return _in_order(graph, parts, "features")


def add_sphere(graph: Graph, features: str, sphere: SphereMap) -> str:
    """Add nodes for ``SphereMap``, (rows, coordinates): x ↦ (v, bias) / ‖(v, bias)‖.

    v is zP/t, or its coordinates in the row space.
    """
    z = _add_column_map(graph, features, sphere.columns)
    metric = graph.constant("metric", sphere.metric)
    # Not MatMul: onnxruntime would fuse it with the division, whose divisor it then rounds to float32.
    z = graph.add("Mul" if sphere.metric.ndim == 1 else "Gemm", z, metric, name="z_in_metric")
    z = graph.add("Div", z, graph.constant("typical", sphere.typical), name="z_typical")
    if sphere.row_space is not None:
        inside = graph.add("Gemm", z, graph.constant("row_space", sphere.row_space), name="z_inside")
        back = graph.constant("row_space_transposed", sphere.row_space.T)
        outside = graph.add("Sub", z, graph.add("Gemm", inside, back, name="z_projected"), name="z_outside")
        squares = graph.row_sums(graph.add("Mul", outside, outside, name="z_outside_squared"), "outside_squared_length")
        z = graph.joined([inside, graph.add("Sqrt", squares, name="outside_length")], "z_in_row_space")
    squares = graph.row_sums(graph.add("Mul", z, z, name="z_squared"), "squared_length")
    whole = graph.add("Add", squares, graph.constant("squared_bias", sphere.bias**2), name="squared_norm")
    norm = graph.add("Sqrt", whole, name="norm")
    last = graph.add("Div", graph.constant("bias", [[sphere.bias]]), norm, name="bias_normalized")
    return graph.joined([graph.add("Div", z, norm, name="z_normalized"), last], "rows_on_sphere")


def add_invalid_rows(graph: Graph, features: str) -> str:
    """Add a value of shape (rows, 1): NaN for rows with a NaN or infinite feature, 0 for all others."""
    products = graph.add("Mul", features, graph.constant("zero", 0.0), name="features_times_zero")
    return graph.row_sums(products, "nan_if_invalid")


def _add_numbers(graph: Graph, value: str, columns: list[tuple[int, NumberEncoding]]) -> list[_Part]:
    """Add nodes for all number columns at once: imputed numbers, and indicators. Columns come with their positions."""
    missing = graph.add("IsNaN", value, name="missing")
    fills = [np.nan if encoding.fill is None else encoding.fill for _, encoding in columns]
    filled = graph.add("Where", missing, graph.constant("fills", fills), value, name="numbers_filled")
    parts = [(filled, [start for start, _ in columns])]
    if with_indicator := [k for k, (_, encoding) in enumerate(columns) if encoding.indicator]:
        selected = graph.columns(missing, with_indicator, "missing_with_indicator")
        indicators = graph.cast(selected, np.float64, "indicators")
        parts.append((indicators, [columns[k][0] + 1 for k in with_indicator]))
    return parts


def _add_column_map(graph: Graph, features: str, columns: ColumnMap) -> str:
    """Add nodes for ``ColumnMap``, (rows, features, squared norm and pieces)."""
    maps = columns.quantile_maps
    linear = np.setdiff1d(np.arange(len(columns.mean)), [one.column for one in maps])
    parts: list[_Part] = []
    if len(linear):
        x = graph.columns(features, linear, "linear") if maps else features
        x = graph.add("Sub", x, graph.constant("mean", columns.mean[linear]), name="centred")
        x = graph.add("Div", x, graph.constant("scale", columns.scale[linear]), name="standardized")
        limits = graph.constant("lowest", -CLIP), graph.constant("highest", CLIP)
        parts.append((graph.add("Clip", x, *limits, name="clipped"), linear.tolist()))
    if maps:
        parts.append((_add_quantile_maps(graph, features, maps), [one.column for one in maps]))
    z = _in_order(graph, parts, "z")
    extended = [z]
    if (norm := columns.squared_norm) is not None:
        squares = graph.row_sums(graph.add("Mul", z, z, name="feature_squares"), "squared_norm")
        centred = graph.add("Sub", squares, graph.constant("squared_norm_mean", norm.mean), name="squared_norm_centred")
        scale = graph.constant("squared_norm_scale", norm.scale)
        extended.append(graph.add("Div", centred, scale, name="squared_norm_scaled"))
    extended += [_add_pieces(graph, z, columns.pieces)] if columns.pieces else []
    return graph.joined(extended, "z_extended") if len(extended) > 1 else z


def _add_pieces(graph: Graph, z: str, pieces: list[Pieces]) -> str:
    """Add nodes for the pieces of all features at once, (rows, pieces)."""
    lower, upper = (np.concatenate([one.edges[part] for one in pieces]) for part in (slice(None, -1), slice(1, None)))
    counts = [len(one.mean) for one in pieces]
    x = graph.columns(z, np.repeat([one.column for one in pieces], counts), "piece_z")
    x = graph.add("Sub", x, graph.constant("piece_edges", lower), name="above_edge")
    x = graph.add("Div", x, graph.constant("piece_lengths", upper - lower), name="along_piece")
    x = graph.add("Clip", x, graph.constant("piece_begin", 0.0), graph.constant("piece_end", 1.0), name="piece")
    x = graph.add(
        "Sub", x, graph.constant("piece_mean", np.concatenate([one.mean for one in pieces])), name="centred_piece"
    )
    scales = np.repeat([one.scale for one in pieces], counts)
    return graph.add("Div", x, graph.constant("piece_scale", scales), name="pieces")


def _add_quantile_maps(graph: Graph, features: str, maps: list[QuantileMap]) -> str:
    """Add nodes for all piecewise linear maps at once. Bisection finds the last knot at or below x."""
    longest = max(len(one.knots) for one in maps)
    steps = [1 << k for k in reversed(range(int(longest - 1).bit_length()))]
    length = 2 * steps[0]  # of the part of each column in the tables; unused knots are infinite
    knots, values, slopes = (np.full((len(maps), length), fill) for fill in (np.inf, 0.0, 0.0))
    for k, one in enumerate(maps):
        count = len(one.knots)
        knots[k, :count], values[k, :count] = one.knots, one.values
        with np.errstate(over="ignore"):  # no x lies between knots that differ by a subnormal number
            rises = np.diff(one.values) / np.diff(one.knots)
        slopes[k, : count - 1] = np.minimum(rises, np.finfo(np.float64).max)
    table = graph.constant("knots", knots.ravel())
    x = graph.columns(features, [one.column for one in maps], "quantile_x")
    x = graph.add("Max", x, graph.constant("first_knots", [one.knots[0] for one in maps]), name="above_first")
    x = graph.add("Min", x, graph.constant("last_knots", [one.knots[-1] for one in maps]), name="within_knots")
    at = graph.constant("first_positions", [np.arange(len(maps)) * length], np.int64)
    for step in steps:
        next_at = graph.add("Add", at, graph.constant("step", step, np.int64), name="next_position")
        reached = graph.add("GreaterOrEqual", x, graph.add("Gather", table, next_at, name="next_knot"), name="reached")
        at = graph.add("Where", reached, next_at, at, name="position")
    beyond = graph.add("Sub", x, graph.add("Gather", table, at, name="knot"), name="beyond_knot")
    slope = graph.add("Gather", graph.constant("slopes", slopes.ravel()), at, name="slope_at_knot")
    start = graph.add("Gather", graph.constant("values_at_knots", values.ravel()), at, name="value_at_knot")
    return graph.add("Add", graph.add("Mul", slope, beyond, name="rise"), start, name="quantile_z")


def _in_order(graph: Graph, parts: list[_Part], name: str) -> str:
    """Concatenate parts, with each feature at its position."""
    positions = [position for _, part in parts for position in part]
    joined = graph.joined([value for value, _ in parts], f"{name}_by_part")
    if positions == sorted(positions):
        return joined
    return graph.columns(joined, np.argsort(positions), name)
