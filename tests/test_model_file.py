"""Model files are untrusted input: whatever is in one, loading works or raises one line. Writing loses nothing."""

import copy
import json
import os
import resource
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fireset import InputError, ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor
from fireset._util.files import atomic_path, check_writable, read_model, write_model
from fireset.cli.output import readable
from fireset.commands.info import describe_model
from fireset.commands.predict import predict_table
from fireset.model import Model
from support.checks import mentions

ROWS = pl.DataFrame({"a": [1.0, -2.0, 0.5, 3.0], "b": ["u", "v", "u", "w"]})


def small_model(task: str) -> Model:
    options: dict[str, Any] = {"width": 12, "max_iter": 2, "random_state": 0, "engine": "dense"}
    if task == "classification":
        estimator = ShiftedReLUClassifier(loss="log_loss", **options).fit(ROWS, ["no", "yes", "no", "maybe"])
    else:
        estimator = ShiftedReLURegressor(**options).fit(ROWS, [1.0, 2.0, 3.0, 5.0])
    return Model(task, "y", estimator, {"loss": 1.0, "dropped": ["id"]})


@pytest.fixture(scope="module", params=["classification", "regression"])
def saved(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    small_model(request.param).save(path)
    return path


def try_everything(path: Path) -> None:
    """Load, predict and describe. Nothing but an InputError of one line may come of it."""
    table = path.with_name("rows.csv")
    ROWS.with_columns(y=pl.lit("no")).write_csv(table)

    def predict(path: Path) -> None:
        predict_table(path, table, proba=False)

    def show(path: Path) -> None:
        for key, value in describe_model(path).items():
            readable(key, value)

    for use in (Model.load, ShiftedReLUNetwork.load, predict, show):
        message = ""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # numbers may overflow, categories may be new
            try:
                use(path)
            except InputError as error:
                message = str(error)
        assert len(message.splitlines()) <= 1


def test_there_and_back(saved):
    model = Model.load(saved)
    again = saved.with_name("again")
    model.save(again)
    assert again.read_bytes() == saved.read_bytes()
    fresh = small_model(model.task)
    np.testing.assert_array_equal(model.estimator.predict(ROWS), fresh.estimator.predict(ROWS))
    assert (model.target, model.encoder, model.training) == (fresh.target, fresh.encoder, fresh.training)


class TestDamage:
    @settings(max_examples=300)
    @given(data=st.data())
    def test_bytes(self, saved, data):
        content = bytearray(saved.read_bytes())
        # Half of the places are in the header, which is what readers trip over.
        header = 8 + struct.unpack("<Q", content[:8])[0]
        place = st.one_of(st.integers(0, header - 1), st.integers(0, len(content) - 1))
        for position, byte in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=6)):
            content[position] = byte
        if data.draw(st.booleans()):
            content = content[: data.draw(st.integers(0, len(content)))]
        path = saved.with_name("mutated")
        path.write_bytes(content)
        try_everything(path)

    @settings(max_examples=300)
    @given(data=st.data())
    def test_description(self, saved, data):
        """One part of the JSON text is replaced by something else, or taken away."""
        _, description = read_model(saved)
        mutate(description, data)
        path = saved.with_name("mutated")
        save_file(load_file(saved), path, {"fireset": json.dumps(description)})
        try_everything(path)

    @settings(max_examples=200)
    @given(data=st.data())
    def test_header_of_the_arrays(self, saved, data):
        """Types, shapes and places of arrays, in the header that safetensors itself reads."""
        content = saved.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + size])
        name = data.draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
        types = ["BOOL", "U8", "I8", "I16", "F16", "BF16", "F8_E4M3", "F32", "I64", "F64", "C64", "X"]
        change = data.draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "dtype": st.sampled_from(types),
                    "shape": st.lists(st.integers(-1, 40) | st.just(2**62), max_size=4),
                    "data_offsets": st.lists(st.integers(0, len(content)), max_size=3),
                },
            )
        )
        header[name] |= change
        text = json.dumps(header).encode()
        path = saved.with_name("mutated")
        path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
        try_everything(path)

    @settings(max_examples=150)
    @given(data=st.data())
    def test_arrays(self, saved, data):
        """Whole arrays of other types, shapes and values."""
        arrays = load_file(saved)
        _, description = read_model(saved)
        name = data.draw(st.sampled_from(sorted(arrays)))
        shape = data.draw(st.one_of(st.just(arrays[name].shape), st.lists(st.integers(0, 13), max_size=3).map(tuple)))
        dtype = data.draw(st.sampled_from(["?", "u1", "i1", "i8", "f2", "f4", "f8", "c8"]))
        value = data.draw(st.sampled_from([0.0, 1.0, -1.0, 1.5, 1e30, np.nan, np.inf]))
        with np.errstate(all="ignore"):
            arrays[name] = np.full(shape, value).astype(dtype)
        path = saved.with_name("mutated")
        save_file(arrays, path, {"fireset": json.dumps(description)})
        try_everything(path)

    @pytest.mark.parametrize(
        ("part", "value", "named"),
        [
            ("task", "sorcery", ["task"]),
            ("target", 3, ["target"]),
            ("target", None, ["'target'"]),
            ("classes", ["a", "b"], ["3", "1"]),
            ("classes", [1, "b", "c"], ["classes", "[1, 'b', 'c']"]),
            ("classes", ["c", "b"], ["classes", "['c', 'b']"]),
            ("sphere", {"typical": 0.0, "bias": 1.0}, ["scales"]),
            ("sphere", {"typical": 1.0, "bias": 10**400}, ["header"]),
            ("threshold", 10**400, ["header"]),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path, part, value, named):
        path = tmp_path / "model"
        small_model("classification").save(path)
        _, description = read_model(path)
        description[part] = value
        if value is None:
            del description[part]
        save_file(load_file(path), path, {"fireset": json.dumps(description)})
        with pytest.raises(InputError) as error:
            Model.load(path)
        assert mentions(str(error.value), str(path), *named)


@pytest.mark.parametrize("kind", ["<U1000000000000", "V1000000000000", "S1000000000000", "M8[s]", "f8", "no type"])
def test_arrays_among_the_parameters(tmp_path, kind):
    path = tmp_path / "model"
    small_model("regression").save(path)
    _, description = read_model(path)
    description["parameters"]["column_scales"] = {"kind": "array", "type": kind, "items": ["a", 1.0, None]}
    save_file(load_file(path), path, {"fireset": json.dumps(description)})
    try_everything(path)


def mutate(description: dict[str, Any], data) -> None:
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                collect(node[key])

    collect(description)
    node, key = data.draw(st.sampled_from(places))
    if data.draw(st.booleans()):
        del node[key]
        return
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.sampled_from([10**30, 10**400, 2**63, -1, 1e308, float("nan"), float("inf")]),
        st.floats(),
        st.text(max_size=5),
    )
    others = st.one_of(
        scalars, st.lists(scalars, max_size=3), st.dictionaries(st.text(max_size=5), scalars, max_size=2)
    )
    whole = st.sampled_from([copy.deepcopy(parent[k]) for parent, k in places])  # a part in the wrong place
    node[key] = data.draw(st.one_of(others, whole))


class TestHalfASurrogatePair:
    """JSON may hold one, and text may not: no file, no table and no terminal takes it."""

    @pytest.mark.parametrize("part", ["class", "column", "unknown"])
    def test_reading(self, tmp_path, part):
        path = tmp_path / "model"
        small_model("classification").save(path)
        arrays = load_file(path)
        _, changed = read_model(path)
        if part == "column":
            changed["encoder"]["columns"][0]["name"] = "a\ud800"
        elif part == "class":
            changed["classes"][-1] = "yes\udc00"
        else:
            changed["\ud800"] = 1
        save_file(arrays, path, {"fireset": json.dumps(changed)})
        with pytest.raises(InputError) as caught:
            Model.load(path)
        assert str(caught.value).startswith(f"{path} is damaged: its header")

    def test_writing(self, tmp_path):
        path = tmp_path / "model"
        with pytest.raises(InputError) as caught:
            write_model(path, {"weights": np.ones(3)}, {"classes": ["good", "b\ud800d"]})
        words = "has half of a surrogate pair, which is not text; rename it"
        assert str(caught.value) == f"cannot write {path}: 'b\\ud800d' {words}"
        assert os.listdir(tmp_path) == []


class TestWriting:
    @pytest.mark.parametrize(
        ("failure", "words"),
        [
            (OSError(28, "No space left on device"), "No space left on device"),
            (OSError("out of ink"), "out of ink"),
            (SafetensorError("I/O error: full\nsecond line"), "I/O error: full"),
        ],
    )
    def test_failure_midway_keeps_the_old_file(self, tmp_path, monkeypatch, failure, words):
        path = tmp_path / "network"
        network = ShiftedReLUNetwork.initialize(10, 3)
        network.save(path)
        old = path.read_bytes()

        def fails(arrays, path, metadata):  # noqa: ARG001
            Path(path).write_bytes(b"half a file")
            raise failure

        monkeypatch.setattr("safetensors.numpy.save_file", fails)
        with pytest.raises(InputError) as error:
            network.save(path)
        assert str(error.value) == f"cannot write {path}: {words}"
        assert os.listdir(tmp_path) == ["network"]
        assert path.read_bytes() == old

    def test_a_file_that_may_not_grow(self, tmp_path):
        """The real thing: the system refuses bytes in the middle of writing."""
        network = ShiftedReLUNetwork.initialize(5000, 3)
        network.save(tmp_path / "network")
        old = (tmp_path / "network").read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            with pytest.raises(InputError, match=r"^cannot write .*File too large"):
                network.save(tmp_path / "network")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert os.listdir(tmp_path) == ["network"]
        assert (tmp_path / "network").read_bytes() == old

    @pytest.mark.parametrize("trouble", [KeyboardInterrupt, ValueError])
    def test_any_other_end_leaves_nothing(self, tmp_path, trouble):
        def write() -> None:
            with atomic_path(tmp_path / "file") as temporary:
                temporary.write_text("half")
                raise trouble

        with pytest.raises(trouble):
            write()
        assert os.listdir(tmp_path) == []

    def test_ordinary_file_of_any_name(self, tmp_path):
        mask = os.umask(0o027)
        try:
            with atomic_path(tmp_path / ("n" * 250)) as temporary:
                temporary.write_text("whole")
        finally:
            os.umask(mask)
        (file,) = tmp_path.iterdir()
        assert file.read_text() == "whole"
        assert file.stat().st_mode & 0o777 == 0o640

    def test_link_stays_a_link(self, tmp_path):
        (tmp_path / "far").mkdir()
        (tmp_path / "far" / "model").write_text("old")
        (tmp_path / "link").symlink_to("far/model")
        with atomic_path(tmp_path / "link") as temporary:
            temporary.write_text("new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "far" / "model").read_text() == "new"
        assert os.listdir(tmp_path / "far") == ["model"]

    def test_checking_leaves_no_trace(self, tmp_path):
        check_writable(tmp_path / "new")
        assert os.listdir(tmp_path) == []
        (tmp_path / "old").write_text("kept")
        before = (tmp_path / "old").stat()
        check_writable(tmp_path / "old")
        assert (tmp_path / "old").stat() == before
        assert os.listdir(tmp_path) == ["old"]

    def test_a_pipe_or_device_is_never_replaced(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for write in (check_writable, ShiftedReLUNetwork.initialize(10, 3).save):
            with pytest.raises(InputError, match=r"it is a device or a pipe; give an ordinary file$"):
                write(tmp_path / "pipe")
        assert (tmp_path / "pipe").is_fifo()
        assert os.listdir(tmp_path) == ["pipe"]

    def test_too_long_a_name(self, tmp_path):
        with pytest.raises(InputError, match=r"File name too long$"):
            check_writable(tmp_path / ("n" * 300))
        with pytest.raises(InputError, match=r"File name too long"):
            Model.load(tmp_path / ("n" * 300))
