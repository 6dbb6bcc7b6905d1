"""The report in a real browser: chromium, driven by playwright."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partlabel.report import write_report
from partlabel.report.wording import plain
from tests.report_folders import HOSTILE, WORDS, make_compare

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
NAMES = [*HOSTILE, *WORDS[:12]]
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with the worst names there are, among good ones."""
    folder = make_compare(tmp_path_factory.mktemp("browser"), names=NAMES, seeds=(0, 1))
    return write_report(folder, gallery=6).as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Opened:
    """A page, and all that went wrong in it."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.context = browser.new_context(viewport=context.pop("viewport", DESK), **context)
        self.page = self.context.new_page()
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: self.trouble.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def column(self, place: int) -> list[str]:
        """The visible texts of a column of the table of classes."""
        script = """place => Array.from(document.querySelectorAll("#class-table tbody tr"))
            .filter(row => !row.hidden).map(row => row.cells[place].innerText.trim())"""
        return list(self.page.evaluate(script, place))


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    found = Opened(browser, address)
    yield found
    assert not found.trouble
    found.context.close()


def test_it_opens_without_errors_and_asks_only_for_itself(opened: Opened, address: str) -> None:
    opened.page.mouse.wheel(0, 100_000)
    assert [url for url in opened.requests if not url.startswith("data:")] == [address]
    assert opened.page.title() == "kitchen and street \u2013 partlabel report"
    assert opened.page.evaluate("Array.from(document.images).every(i => i.naturalWidth > 0)")
    assert opened.page.locator("script").count() == 1


def test_every_column_sorts_both_ways(opened: Opened) -> None:
    headings = opened.page.locator("#class-table thead th")
    assert headings.count() >= 7
    for place in range(headings.count()):
        orders = []
        for wanted in ("ascending", "descending") if place == 0 else ("descending", "ascending"):
            headings.nth(place).locator("button").click()
            assert headings.nth(place).get_attribute("aria-sort") == wanted
            assert opened.page.locator("#class-table thead th[aria-sort]").count() == 1
            texts = opened.column(place)
            assert len(texts) == len(NAMES)
            orders.append(texts)
            if place:
                numbers = [float(t.replace(",", "")) for t in texts if t != "\u2013"]
                assert numbers == sorted(numbers, reverse=wanted == "descending")
        if place == 0:
            assert orders[0] == orders[1][::-1]


def test_search_and_filter(opened: Opened) -> None:
    page = opened.page
    assert page.locator("#shown").inner_text() == f"{len(NAMES)} classes"
    page.fill("#search", "SKY")
    assert [text.split()[0] for text in opened.column(0)] == ["sky"]
    assert page.locator("#shown").inner_text() == f"1 of {len(NAMES)} classes"
    page.fill("#search", "<script>")
    assert len(opened.column(0)) == 1
    page.fill("#search", "no such class")
    assert opened.column(0) == []
    assert page.locator("#nothing").is_visible()
    page.press("#search", "Escape")
    assert len(opened.column(0)) == len(NAMES)
    page.select_option("#filter", "f")
    assert len(opened.column(0)) == 6
    page.locator("#class-table thead button").first.click()  # sorting keeps the filter
    assert len(opened.column(0)) == 6
    page.select_option("#filter", "")
    assert page.locator("#nothing").is_hidden()


def test_the_keyboard_reaches_the_table(opened: Opened) -> None:
    opened.page.focus("#class-table thead th:nth-child(2) button")
    opened.page.keyboard.press("Enter")
    heading = opened.page.locator("#class-table thead th").nth(1)
    assert heading.get_attribute("aria-sort") == "descending"
    unnamed = opened.page.evaluate(
        """Array.from(document.querySelectorAll("input, select, img, [role=img], [role=region]"))
        .filter(e => !(e.getAttribute("aria-label") || e.alt || e.labels?.length)).length"""
    )
    assert unnamed == 0


def test_hostile_names_are_text(opened: Opened) -> None:
    shown = opened.page.evaluate(
        """Array.from(document.querySelectorAll("#class-table tbody .cut"))
        .map(e => e.textContent)"""
    )
    assert {plain(name) for name in NAMES} <= set(shown)
    assert opened.page.locator("main b, main i, main iframe").count() == 0


@pytest.mark.parametrize("viewport", [PHONE, {"width": 390, "height": 844}, DESK])
def test_nothing_is_wider_than_the_screen(
    browser: Any, address: str, viewport: dict[str, int]
) -> None:
    found = Opened(browser, address, viewport=viewport)
    assert found.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    wide = found.page.evaluate(
        """Array.from(document.querySelectorAll("main *")).filter(e => {
            const box = e.getBoundingClientRect();
            return box.width && box.right > innerWidth + 1
                && !e.closest(".scroll, .plot, pre, nav, .sr, .guess, .chips, .cut, .id");
        }).map(e => e.outerHTML.slice(0, 120))"""
    )
    assert wide == []
    assert not found.trouble
    found.context.close()


def luminance(colour: str) -> float:
    """Of a computed colour, as WCAG counts it."""
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_figures_can_be_read_in_light_and_dark(
    browser: Any, address: str, scheme: str
) -> None:
    found = Opened(browser, address, color_scheme=scheme)
    colour = """([selector, what]) => getComputedStyle(document.querySelector(selector))[what]"""

    def of(selector: str, what: str = "color") -> str:
        return str(found.page.evaluate(colour, [selector, what]))

    ground, card = of("body", "backgroundColor"), of(".chart", "backgroundColor")
    assert (luminance(ground) < 0.1) == (scheme == "dark")
    for selector in (".lead", ".prose p", "nav a", ".over", ".classes td", ".note"):
        assert contrast(of(selector), ground) >= 4.5, selector
    for selector in ("figcaption", ".tag.prior", ".tag.likelihood", ".mark.yes", ".mark.no"):
        assert contrast(of(selector), card) >= 4.5, selector
    assert contrast(of(".plot svg text", "fill"), card) >= 7
    lines = found.page.evaluate(
        """Array.from(document.querySelectorAll("#fig-curves-map svg path[style*=var]"))
        .map(e => getComputedStyle(e).stroke).filter(s => s.startsWith("rgb"))"""
    )
    assert sum(contrast(line, card) >= 3 for line in lines) >= 3
    found.context.close()


def test_it_prints(browser: Any, address: str, tmp_path: Path) -> None:
    found = Opened(browser, address, color_scheme="dark")
    found.page.emulate_media(media="print")
    assert found.page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    body = found.page.evaluate("getComputedStyle(document.body).color")
    assert luminance(body) < 0.05  # black on white, whatever the screen
    found.page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    found.context.close()


def test_without_scripts_it_is_a_plain_page(browser: Any, address: str) -> None:
    found = Opened(browser, address, java_script_enabled=False)
    assert found.page.locator("#class-table tbody tr").count() == len(NAMES)
    assert not found.page.locator(".tools").is_visible()
    assert found.page.locator("#class-table thead button").count() == 0
    found.context.close()
