"""Tutorial, gallery, settings, commands page and built site."""

import ast
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import typer.main
from typer.testing import CliRunner

import fireset
from fireset.cli import app
from support.checks import CI
from support.pages import ROOT, blocks, commands, resolve, text_of

DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
TUTORIAL = DOCS / "tutorial.md"


# The tutorial


@pytest.fixture(scope="module")
def rentals(tmp_path_factory) -> Path:
    """Return a folder with the tables of the tutorial."""
    folder = tmp_path_factory.mktemp("rentals")
    subprocess.run([sys.executable, EXAMPLES / "make_rentals.py", folder], check=True, capture_output=True, timeout=60)
    return folder


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_the_tutorial_runs(rentals, monkeypatch):
    """Run every command and compare its output with the page, then run the Python blocks."""
    monkeypatch.chdir(rentals)
    shown = {line for block in blocks(TUTORIAL, "text") for line in block.splitlines()}
    assert set((rentals / "rentals.csv").read_text().splitlines()[:3]) <= shown
    followed = [words for _, *words in commands(TUTORIAL)]
    assert [words[0] for words in followed] == ["train", "train", "compare", "predict"]

    explained = run(*followed[0]).splitlines()
    columns = [line for line in explained if line.startswith(("rental", "pickup", "station", "age"))]
    assert len(columns) == 4
    # Shares may differ in the last digit between machines.
    assert {re.sub(r"[\d.]+ %", "", line) for line in columns} <= {re.sub(r"[\d.]+ %", "", line) for line in shown}

    trained = run(*followed[1])
    held_out = re.search(r"^accuracy +([\d.]+) %", trained, re.MULTILINE)
    assert held_out is not None
    assert 82 < float(held_out[1]) < 89
    assert "plotly" in (rentals / "rentals.html").read_text(encoding="utf-8").lower()

    table = (rentals / "rentals.csv").read_text().splitlines(keepends=True)
    (rentals / "few.csv").write_text("".join(table[:301]))  # a fifth of the rows
    assert followed[2][:3] == ["compare", "--models", "rentals.csv"]
    compared = run("compare", "--models", "few.csv", *followed[2][3:], "--quiet", "--budget", "20s")
    assert re.search(r"^fireset +0\.\d", compared, re.MULTILINE), compared
    assert "No answer" not in compared

    run(*followed[3])
    predicted = (rentals / "predictions.csv").read_text().splitlines()
    assert predicted[0] == "rental,prediction,p(no),p(yes)"
    assert re.match(r"R20000,no,0\.[89]", predicted[1])

    names = {"__name__": "tutorial"}
    for number, block in enumerate(blocks(TUTORIAL, "python"), 1):
        exec(compile(block, f"tutorial.md, block {number}", "exec"), names)


@pytest.mark.slow
def test_semicolons_and_decimal_commas_give_the_same_result(rentals):
    explained = [
        json.loads(run("train", str(rentals / name), "--target", "late", "--explain", "--width", "500", "--json"))
        for name in ("rentals.csv", "rentals-semicolon.csv")
    ]
    points, commas = ([{**one, "read_as": None} for one in found["table_columns"]] for found in explained)
    assert points == commas
    assert explained[0]["forecast_accuracy"] == explained[1]["forecast_accuracy"]


def test_a_model_is_served(rentals, monkeypatch):
    """Send the request of the tutorial, and invalid requests."""
    import polars as pl

    monkeypatch.syspath_prepend(str(EXAMPLES))
    from serve_model import make_server  # pyright: ignore[reportMissingImports]

    table = pl.read_csv(rentals / "rentals.csv", null_values=["NA"])
    model = fireset.ShiftedReLUClassifier(500, random_state=0).fit(table.drop("rental", "late"), table["late"])
    fireset.save(model, rentals / "small.safetensors", target="late")
    server = make_server(str(rentals / "small.safetensors"), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        curl = next(line for line in "\n".join(blocks(TUTORIAL, "")).splitlines() if line.startswith("curl "))
        with urlopen(address, shlex.split(curl)[-1].encode(), timeout=20) as reply:
            (answer,) = json.load(reply)
        assert answer["prediction"] in ("no", "yes")
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        for wrong in (b"[]", b'{"age": 3}', b"rows", b'[{"pickup": 7}]'):
            with pytest.raises(HTTPError, match="400") as refused:
                urlopen(address, wrong, timeout=20)
            assert json.load(refused.value)["error"]
    finally:
        server.shutdown()
        server.server_close()


# The gallery


def gallery(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import make_gallery  # pyright: ignore[reportMissingImports]

    return make_gallery


def picture_functions() -> list[str]:
    """Return the names of the drawing functions without importing matplotlib."""
    tree = ast.parse((DOCS / "make_gallery.py").read_text(encoding="utf-8"))
    return [each.name for each in tree.body if isinstance(each, ast.FunctionDef) and each.args.args[0].arg == "axes"]


@pytest.mark.slow
@pytest.mark.parametrize("name", picture_functions())
def test_pictures_can_be_drawn(name, monkeypatch, tmp_path):
    module = gallery(monkeypatch)
    assert name in module.PICTURES
    assert module.draw(name, tmp_path).read_bytes().startswith(b"\x89PNG")


def test_the_gallery_has_all_pictures_with_descriptions():
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^!\[(.+?)\]\(gallery/(\w+)\.png\)$", page, re.MULTILINE))
    assert len(shown) >= 8
    assert sorted(shown.values()) == sorted(picture_functions())
    for words, name in shown.items():
        assert len(words) > 40
        assert (DOCS / "gallery" / f"{name}.png").stat().st_size < 150_000


# Settings and commands


def test_settings_exist():
    """Every option on the page belongs to a command, every ``name=`` is a parameter of a described object."""
    known = typer.main.get_group(app).commands.values()
    options = {name for each in known for option in each.params for name in (*option.opts, *option.secondary_opts)}
    described = (
        fireset.ShiftedReLUClassifier,
        fireset.ShiftedReLURegressor,
        fireset.ShiftedReLUClassifier.fit,
        resolve("fireset.engines.data_search.DataSearchEngine"),
    )
    parameters = {name for each in described for name in inspect.signature(each).parameters}
    settings = 0
    for code in re.findall(r"`([^`]+)`", text_of(DOCS / "which-setting.md")):
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", code)) <= options, code
        named = set(re.findall(r"(\w+)=", code))
        assert named <= parameters, code
        settings += len(named)
        if re.fullmatch(r"(?:theory|nn|hsr)\.\w+", code):
            resolve(f"fireset.{code}")
    assert settings > 20


def test_the_page_of_the_commands_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import make_commands  # pyright: ignore[reportMissingImports]

    written = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert written == make_commands.page(), "run: python docs/make_commands.py"
    assert set(make_commands.FURTHER) <= set(typer.main.get_group(app).commands)


# The reference and the site


def test_parameter_sections_of_docstrings_list_names():
    """A sentence below Parameters would be rendered as a parameter."""
    heading = re.compile(r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", re.DOTALL | re.MULTILINE)
    seen = 0
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            for section in heading.findall(ast.get_docstring(node) or ""):
                for line in re.findall(r"^\S.*$", section, re.MULTILINE):
                    assert re.fullmatch(r"\*{0,2}\w+(?:, \*{0,2}\w+)*(?: : .+)?", line), f"{path.name}: {line}"
                    seen += 1
    assert seen > 50


@pytest.mark.slow
def test_the_built_site_works_from_the_file_system(tmp_path):
    """Search works in Chromium without network requests, and pages fit the width of a phone."""
    if not CI:
        pytest.importorskip("material")
    chromium = shutil.which("chromium")
    if chromium is None and not CI:
        pytest.skip("no Chromium on the path")
    from playwright.sync_api import sync_playwright

    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    requests, errors = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        for name in (
            "tutorial",
            "gallery",
            "commands",
            "which-setting",
            "comparison",
            "glossary",
            "architecture",
            "index",
        ):
            page.goto((tmp_path / "site" / f"{name}.html").as_uri())
            assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), name
        page.locator("label[for=__search].md-header__button").click()
        page.locator(".md-search__input").press_sequentially("certificate")
        page.locator(".md-search-result__link").first.wait_for(timeout=15_000)
        found = {link.get_attribute("href") or "" for link in page.locator(".md-search-result__link").all()}
        browser.close()
    assert any("certify.html" in link for link in found)
    assert not errors
    assert all(url.startswith("file:") for url in requests)


@pytest.mark.slow
def test_explain_chooses_the_settings_of_the_fit(rentals):
    command = ("train", str(rentals / "rentals.csv"), "--target", "late", "--json")
    fitted = json.loads(run(*command, "--out", str(rentals / "explained.safetensors")))
    explained = json.loads(run(*command, "--explain"))
    for name in ("forecast_accuracy", "metric", "metric_rounds", "bias", "width"):
        assert explained[name] == fitted[name], name
