"""The page in a real browser: no request, no error, light and dark, desktop and phone, by mouse and by keyboard.

Chromium is a Debian package, which ``make test-slow`` installs where it may; without it these tests are skipped, but
never in CI. Screenshots are kept in out/ to be looked at.
"""

import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from playwright.sync_api import sync_playwright

from fireset import ShiftedReLUNetwork
from fireset.commands.compare.budget import Budget
from fireset.commands.compare.engine_contenders import EngineProblem, fixed_learning_rate
from fireset.commands.compare.engines import compare_engines
from fireset.commands.compare.report import write_comparison
from fireset.commands.train import train_table
from support.checks import CI, sphere

CHROMIUM = shutil.which("chromium")
WANTED = "the report is tested in Chromium, and there is none on the path; as root: apt-get install chromium"
pytestmark = [pytest.mark.slow, *([pytest.mark.skip(reason=WANTED)] if CHROMIUM is None and not CI else [])]

KEPT = Path(__file__).parents[2] / "out"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
EVIL = "<img src=https://example.org/x.png onerror=alert(1)>.csv"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.fail(WANTED)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    """The report of a small comparison of a file with a hostile name."""
    rng = np.random.default_rng(0)
    X = sphere(rng, 100, 8)
    network = ShiftedReLUNetwork.initialize(500, 8, dtype="float64")
    problem = EngineProblem(X, rng.standard_normal((100, 1)), network, fixed_learning_rate(network, X))
    found = compare_engines(problem, ["dense", "data", "hashing"], 12, Budget(600), interrupted=threading.Event())
    path = tmp_path_factory.mktemp("report") / "page.html"
    write_comparison(path, found, {"file": EVIL, "width": 500, "iterations": 12})
    KEPT.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="module")
def run_page(tmp_path_factory) -> Path:
    """The report of a training run: seven classes with hostile and long names, columns likewise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    codes = np.clip(np.round(X[:, 0] * 2 + 3 + 0.3 * rng.standard_normal(400)), 0, 6).astype(int)
    labels = [f"{EVIL} number {k} {'of many words ' * 12}" for k in range(6)] + ["x" * 200]
    folder = tmp_path_factory.mktemp("run")
    file = folder / "table.csv"
    columns = pl.DataFrame(X, schema=[EVIL, "</script><script>alert(1)</script>" * 5, "c"])
    columns.with_columns(y=pl.Series([labels[k] for k in codes])).write_csv(file)
    train_table(
        file,
        "y",
        out=folder / "m.safetensors",
        loss="squared_error",
        holdout=0.3,
        settings={"width": 1000, "random_state": 0, "verbose": False},
        report=folder / "page.html",
    )
    return folder / "page.html"


class Visit:
    """A page opened from the file system; notes every request, console message and error."""

    def __init__(self, browser, file: Path, size="desktop", scheme="light", **options):
        touch = {"has_touch": True, "is_mobile": True} if size == "phone" else {}
        self.context = browser.new_context(viewport=SIZES[size], color_scheme=scheme, **touch, **options)
        self.page = self.context.new_page()
        self.requests, self.messages = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.messages.append("dialog") or dialog.dismiss())
        self.page.goto(file.as_uri())
        self.url = file.as_uri()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            assert self.messages == []
            elsewhere = [url for url in self.requests if not url.startswith((self.url, "data:", "blob:"))]
            assert elsewhere == []
        self.context.close()


def eventually(holds) -> None:
    """Wait until it holds. (Playwright's own way evaluates text, which the page's policy forbids.)"""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_looks(browser, page_file, size, scheme):
    with Visit(browser, page_file, size, scheme) as visit:
        page = visit.page
        figures = page.locator("figure")
        assert figures.count() == 7
        for k in range(7):
            assert page.locator(f"#plot-{k} .main-svg").first.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
        ink = page.evaluate("getComputedStyle(document.querySelector('#plot-0 .xtick text')).fill")
        assert ink == ("rgb(31, 35, 40)" if scheme == "light" else "rgb(230, 237, 243)")
        page.screenshot(path=KEPT / f"report-{size}-{scheme}.png", full_page=True)


def luminance(color: list[float]) -> float:
    """As WCAG defines it, of red, green and blue from 0 to 1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_training_page_looks(browser, run_page, size, scheme):
    with Visit(browser, run_page, size, scheme) as visit:
        page = visit.page
        page.screenshot(path=KEPT / f"run-{size}-{scheme}.png", full_page=True)
        width = SIZES[size]["width"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for summary in page.locator("summary").all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for plot in page.locator(".plot").all():
            drawing = plot.locator(".main-svg").first.bounding_box()
            assert drawing["x"] >= 0
            assert drawing["x"] + drawing["width"] <= width
        assert page.locator("table.matrix tbody tr").count() == 7
        names = page.locator("table.matrix tbody th")
        assert all(name.bounding_box()["width"] < width / 2 for name in names.all())
        shades = page.evaluate(
            "[...document.querySelectorAll('.match, .mismatch')].map(e => getComputedStyle(e).backgroundColor)"
        )
        paper, ink = (
            ([1, 1, 1], [31, 35, 40]) if scheme == "light" else ([13 / 255, 17 / 255, 23 / 255], [230, 237, 243])
        )
        for shade in shades:
            *mixed, alpha = (float(part) for part in re.findall(r"[\d.]+(?:e-?\d+)?", shade.removeprefix("color(srgb")))
            below = luminance([alpha * c + (1 - alpha) * p for c, p in zip(mixed, paper, strict=True)])
            levels = sorted([luminance([c / 255 for c in ink]), below])
            assert (levels[1] + 0.05) / (levels[0] + 0.05) >= 4.5, shade


def test_colours_follow_the_reader(browser, page_file):
    with Visit(browser, page_file) as visit:
        ink = "getComputedStyle(document.querySelector('#plot-0 .xtick text')).fill"
        light = visit.page.evaluate(ink)
        visit.page.emulate_media(color_scheme="dark")
        eventually(lambda: visit.page.evaluate(ink) != light)


def test_click_through(browser, page_file):
    with Visit(browser, page_file) as visit:
        page = visit.page
        for link in page.locator("nav a").all():
            link.click()
            target = link.get_attribute("href")
            assert page.locator(target).is_visible()
        lines = page.locator("#plot-0 .scatterlayer .trace")
        assert lines.count() == 3
        page.locator("figure").first.get_by_role("checkbox", name="data").uncheck()
        eventually(lambda: lines.count() == 2)
        page.locator("figure").first.get_by_role("checkbox", name="data").check()
        eventually(lambda: lines.count() == 3)
        for summary in page.locator("summary").all():
            summary.click()
        assert page.locator("figure table").first.is_visible()
        page.locator("#plot-0 .nsewdrag").hover(force=True)
        page.locator("#plot-0").dblclick(force=True)
        assert page.get_by_role("heading", level=1).inner_text() == f"Does preprocessing help on {EVIL}?"


def test_by_keyboard(browser, page_file):
    with Visit(browser, page_file) as visit:
        page = visit.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.locator(".skip").bounding_box()["x"] >= 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        reached = []
        for _ in range(30):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.tagName"))
        assert {"INPUT", "SUMMARY", "DIV"} <= set(reached)  # lines to switch, data to open, tables to scroll
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("details").first.get_attribute("open") is not None


def test_without_script(browser, page_file):
    with Visit(browser, page_file, java_script_enabled=False) as visit:
        visit.page.locator("summary").first.click()
        assert visit.page.locator("figure table").first.is_visible()


def test_print(browser, page_file):
    with Visit(browser, page_file, scheme="dark") as visit:
        visit.page.pdf(path=KEPT / "report.pdf")
        visit.page.emulate_media(media="print")
        paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"
        assert not visit.page.locator("nav").is_visible()


def test_text_alternatives(browser, page_file):
    with Visit(browser, page_file) as visit:
        for figure in visit.page.locator("[role=img]").all():
            label = figure.get_attribute("aria-label")
            assert label is not None
            assert len(label) > 30
        names = visit.page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id).filter(id => id)")
        assert len(names) == len(set(names))
