"""``fireset quantum``: what it counts, what it shows, what it refuses, and that it does without Qiskit."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fireset.commands.quantum import PAPER_EXPONENT, quantum_costs, quantum_sections, quantum_summary
from fireset.quantum import make_schedule
from fireset.reporting.figures import Section
from support.checks import mentions

ROWS, WIDTH = 60, 320


@pytest.fixture
def table(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).standard_normal((ROWS, 3))
    pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(y=pl.Series(X @ [1.0, -2.0, 0.5])).write_csv("table.csv")
    return "table.csv"


@pytest.fixture
def costs(table, tmp_path):
    return quantum_costs(
        tmp_path / table,
        "y",
        width=WIDTH,
        iterations=3,
        failure_probability=1e-6,
        bits=6,
        seed=0,
        verbose=False,
    )


@pytest.fixture
def quantum(run, table):
    return lambda *options: run("quantum", table, "--target", "y", *options)


SMALL = ("--width", WIDTH, "--iterations", 2)


def test_counts(costs):
    assert (costs.rows, costs.coordinates, costs.width, costs.pairs) == (ROWS, 4, WIDTH, ROWS * WIDTH)
    first, second = costs.versions["quantum-weights"], costs.versions["quantum-data"]
    assert first.searches == [ROWS] * 4
    assert second.searches[0] == WIDTH
    assert all(0 < again < WIDTH for again in second.searches[1:])
    for version, name, items in ((first, "quantum-weights", WIDTH), (second, "quantum-data", ROWS)):
        assert version.missed_pairs == [0] * 4
        assert costs.verdict_calls[name] == make_schedule(items).verdict_calls
        for calls, searches in zip(version.oracle_calls, version.searches, strict=True):
            assert calls > 0.8 * searches * costs.verdict_calls[name]
    active = costs.active_fraction * costs.pairs
    assert 0 < first.square_roots[0] <= np.sqrt(ROWS * WIDTH * active) * (1 + 1e-9)  # Cauchy–Schwarz
    assert 0 < second.square_roots[0] <= np.sqrt(ROWS * WIDTH * active) * (1 + 1e-9)
    assert second.square_roots[0] >= active  # √(n k) ≥ k
    assert costs.data_first_inner_products >= costs.pairs
    assert len(costs.data_inner_products) == 4


def test_growth(costs):
    scaling = costs.scaling
    assert scaling.widths == [20, 40, 80, 160, 320]
    assert scaling.oracle_calls["quantum-weights"][-1] == costs.versions["quantum-weights"].oracle_calls[0]
    assert 0.4 < scaling.exponents["quantum-weights"] < 1.0
    assert 0.8 < scaling.exponents["quantum-data"] < 1.1


def test_sections_are_plain_data(costs):
    sections = quantum_sections(costs)
    assert [section.heading for section in sections] == [
        "Oracle calls by iteration",
        "Growth with the width",
        "The circuit of one oracle call",
        "Assumptions",
    ]
    for section in sections:
        assert isinstance(section, Section)
        assert all(isinstance(text, str) and text for text in section.paragraphs)
        for part in section.tables:
            assert all(
                len(row) == len(part.columns) and all(isinstance(cell, str) for cell in row) for row in part.rows
            )
        for figure in section.figures:
            assert figure.alt
            for series in figure.series:
                assert len(series.x) == len(series.y) > 0
                assert np.isfinite(np.array(series.y, float)).all()
    calls, growth, circuits, assumed = sections
    assert len(calls.tables[0].rows) == 8
    assert growth.tables[0].rows[-1] == ["paper", "0.9", "0.9"]
    assert [row[0] for row in circuits.tables[0].rows] == ["Version 1", "Version 2"]
    assert "QRAM" in assumed.paragraphs[0]
    assert "fault-tolerant" in assumed.paragraphs[0]


def test_json_and_text(quantum):
    code, out, err = quantum(*SMALL, "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["paper_exponent"] == PAPER_EXPONENT
    assert len(facts["versions"]["quantum-data"]["oracle_calls"]) == 3
    assert facts["versions"]["quantum-weights"]["resources"]["qubits"] > 20
    assert "Version 1: 0/2" in err
    code, out, err = quantum(*SMALL, "--quiet")
    assert (code, err) == (0, "")
    for words in ("evaluations of every pair    19,200", "version 1 calls first", "paper exponent", "QRAM"):
        assert words in out


def test_summary_says_what_was_missed(table, tmp_path):
    settings = {"width": WIDTH, "iterations": 1, "bits": 4, "seed": 0, "verbose": False}
    summary = quantum_summary(quantum_costs(tmp_path / table, "y", failure_probability=0.5, **settings))
    assert summary["version_1_missed_pairs"] > 0
    assert summary["version_2_missed_pairs"] > 0


def test_page(quantum, monkeypatch):
    written = []
    monkeypatch.setattr("fireset.reporting.check_report", written.append)
    monkeypatch.setattr(
        "fireset.commands.quantum.write_page",
        lambda path, title, sections, **_: written.append((path, title, len(sections))),
    )
    code, _, _ = quantum(*SMALL, "--quiet", "--report", "page.html")
    assert code == 0
    assert str(written[0]) == "page.html"
    assert written[1] == (written[0], "Quantum search for active neurons on table.csv", 4)


def test_without_qiskit(quantum, monkeypatch):
    for missing in ("qiskit", "qiskit_aer"):
        monkeypatch.setitem(sys.modules, missing, None)
    assert quantum(*SMALL, "--quiet")[0] == 0


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--width 10", ["width", "64", "10"]),
        ("--iterations 0", ["iterations", "1", "0"]),
        ("--failure-probability 0", ["failure_probability", "0", "1", "0.0"]),
        ("--failure-probability 1", ["failure_probability", "0", "1", "1.0"]),
        ("--bits 1", ["bits", "2", "24", "1"]),
        ("--seed -1", ["seed", "0", "2", "32", "-1"]),
        ("--target z", ["--target", "'z'", "'a'", "'b'", "'c'", "'y'"]),
        ("--drop y", ["--drop"]),
    ],
)
def test_refusals(quantum, options, parts):
    code, out, err = quantum("--quiet", *options.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert mentions(err, *parts)


def test_an_interrupt_ends_it(quantum, monkeypatch):
    def interrupted(*_, **__):
        return SimpleNamespace(stop_reason="interrupted")

    monkeypatch.setattr("fireset.commands.quantum.train", interrupted)
    code, out, _ = quantum(*SMALL, "--quiet")
    assert (code, out) == (130, "")
