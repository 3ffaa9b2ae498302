"""Every measured figure of README and docs is made by script from the stored results."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = re.compile(r"\d(?:[\d.,]*\d)? ?(?:×|times (?:as|faster|slower)|µs|ms|s|MB|GB|GiB)(?![\w])")
PAGES_WITH_FIGURES = (
    "README.md",
    "docs/comparison.md",
    "docs/wide-networks.md",
    "docs/half-space-index.md",
    "docs/pytorch.md",
    "docs/solvers.md",
    "docs/export.md",
    "docs/quantum.md",
    "docs/tabular-data.md",
)
# Properties of formats and settings, not measurements.
CONSTANTS = {
    "docs/half-space-index.md": {"16 MB", "32 MB"},  # a chunk of 2²² coordinates
    "docs/export.md": {"2 GB"},  # the largest file
    "docs/tabular-data.md": {
        "256 MB",
        "8 GB",
        "1.6 GB",
        "5 MB",
        "60s",
    },  # limits of the reader and of a test; size of a page
}


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import figures  # pyright: ignore[reportMissingImports]

    yield figures
    for name in ("figures", "accuracy_report", "tabular_peers", "collect"):
        sys.modules.pop(name, None)


def test_every_marked_block_agrees_with_the_stored_results(figures):
    results, names = figures.Results(), []
    for page in figures.PAGES:
        text = page.read_text(encoding="utf-8")
        names += figures.marked(text)
        assert len(figures.marked(text)) == len(re.findall(r"^<!-- /", text, re.MULTILINE)), page.name
        assert figures.fill(text, results) == text, f"{page.name}: run `make figures`"
    assert set(names) == set(figures.BLOCKS)


def test_collected_pages_agree_with_the_stored_results(figures):
    from collect import page  # pyright: ignore[reportMissingImports]

    assert page(RESULTS) == (RESULTS / "README.md").read_text()
    summary = figures.accuracy.summary(figures.Results().accuracy_lines)
    assert summary == (RESULTS / "accuracy-summary.md").read_text()


@pytest.mark.parametrize("name", PAGES_WITH_FIGURES)
def test_figures_are_in_marked_blocks(figures, name):
    prose = re.sub(r"```.*?```", "", figures.without_blocks((ROOT / name).read_text(encoding="utf-8")), flags=re.DOTALL)
    assert set(MEASURED.findall(prose)) <= CONSTANTS.get(name, set())
    if name == "README.md":
        assert "| --- " not in prose


def test_a_new_result_changes_the_page(figures, tmp_path):
    stored = json.loads((RESULTS / "scale.json").read_text())
    stored |= {"date": "2031-02-03", "regression": [stored["regression"][0] | {"rows": 12_345, "score": 0.25}]}
    (tmp_path / "scale.json").write_text(json.dumps(stored))
    page = "before\n<!-- scale -->\nold\n<!-- /scale -->\nafter\n<!-- step -->\n<!-- /step -->\n"
    filled = figures.fill(page, figures.Results(tmp_path))
    assert filled.startswith("before\n<!-- scale -->\n")
    assert "old" not in filled
    assert "2031-02-03" in filled
    assert re.search(r"^\| 12,345 \| fireset .* \| 0\.2500 \|$", filled, re.MULTILINE)
    assert "\nafter\n" in filled
    assert figures.fill(filled, figures.Results(tmp_path)) == filled
    assert not re.search(r"\d", filled.partition("<!-- step -->")[2])  # no results: no figures
