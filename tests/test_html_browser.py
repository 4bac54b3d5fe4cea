"""The HTML report in a real browser: it loads quietly, sorts, filters, shifts the histogram, prints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ampdoctor.diagnose.report import Report
from ampdoctor.render import FORMATS, MANY, Options
from ampdoctor.render.html import fragment
from hostile import NAMES, clean, sick
from html_reports import gradients, layered, overflow

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

pytest.importorskip("selenium", reason="drives the browser; the dev extra brings it")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Debian's packages chromium and chromium-driver"
)

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1100,900",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


Show = Callable[[str], "Page"]


class Page:
    """A document in the browser."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    @property
    def layers(self) -> list[str]:
        """The module and type of each row of the layer table that can be seen."""
        rows = self.all(".layers tbody tr")
        return [row.find_element("css selector", "th").text for row in rows if row.is_displayed()]

    @property
    def shares(self) -> dict[str, str]:
        figures = self.all("[data-figure]")
        return {figure.get_attribute("data-figure") or "": figure.text for figure in figures}

    def sort(self, key: str) -> None:
        self.one(f".layers thead [data-key='{key}']").click()

    def type(self, selector: str, *keys: str) -> None:
        self.one(selector).send_keys(*keys)

    def move(self, exponent: int) -> None:
        """Nothing; the slider stands at 2^exponent, as if dragged there."""
        self.driver.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
            self.one("input.scale"),
            exponent,
        )

    def style(self, selector: str, name: str) -> str:
        return self.one(selector).value_of_css_property(name)


@pytest.fixture
def show(browser: Chrome, tmp_path: Path) -> Show:
    """Opens a document from a file."""

    def opened(html: str) -> Page:
        for log in ("browser", "performance"):
            browser.get_log(log)
        file = tmp_path / "report.html"
        file.write_text(html, encoding="utf-8")
        browser.get(file.as_uri())
        return Page(browser)

    return opened


@pytest.fixture
def screen(browser: Chrome) -> Iterator[Callable[[int, str], None]]:
    """Sets the width of the screen in pixels, and light or dark."""

    def changed(width: int, scheme: str) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    yield changed
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def page(report: Report) -> str:
    return FORMATS["html"](report, Options(base="/repo"))


def requests(driver: Chrome) -> list[str]:
    """What the page asked for, itself left out. The browser's own pages ask for a lot as it starts."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    sent = [request for request in sent if request["documentURL"] == driver.current_url]
    return [request["request"]["url"] for request in sent if request["request"]["url"] != driver.current_url]


DOCUMENTS = {
    "overflow": lambda: page(overflow()),
    "gradients": lambda: page(gradients()),
    "clean": lambda: page(clean()),
    "several": lambda: MANY["html"]([overflow(), gradients()], Options()),
    "fragments": lambda: fragment(gradients()) + fragment(overflow()),
    **{f"name: {what}": lambda name=name: page(sick(name)) for what, name in NAMES.items()},
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_it_loads_without_complaint_and_asks_for_nothing(show: Show, document: Callable[[], str]) -> None:
    shown = show(document())
    assert "live" in (shown.one(".ampdoctor").get_attribute("class") or "").split()
    assert shown.driver.get_log("browser") == []
    assert [url for url in requests(shown.driver) if url != "data:,"] == []


def test_a_script_in_a_name_stays_text(show: Show) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    shown = show(page(sick("<script>alert(1)</script>")))
    with pytest.raises(NoAlertPresentException):
        shown.driver.switch_to.alert  # noqa: B018  raises where there is none
    assert shown.one(".fault .place strong").text == "<script>alert(1)</script>"
    assert len(shown.all("script")) == 1


def test_an_injected_script_would_not_run(show: Show) -> None:
    shown = show(page(clean()).replace("<h1", "<script>document.title = 'ran'</script><h1", 1))
    assert shown.driver.title == "CLEAN. healthy.yaml · ampdoctor"


def test_layers_sort_by_any_column_and_back(show: Show) -> None:
    shown = show(page(layered()))
    assert shown.layers == ["layer0 Conv2d", "layer1 Linear", "layer2 Linear"]  # worst first
    shown.sort("calls")
    assert shown.layers == ["layer2 Linear", "layer1 Linear", "layer0 Conv2d"]
    assert shown.one(".layers th[aria-sort]").get_attribute("aria-sort") == "descending"
    shown.sort("calls")
    assert shown.layers == ["layer0 Conv2d", "layer1 Linear", "layer2 Linear"]
    assert shown.one(".layers th[aria-sort]").get_attribute("aria-sort") == "ascending"
    shown.sort("module")
    assert shown.layers[0] == "layer0 Conv2d"
    shown.sort("module")
    assert shown.layers[0] == "layer2 Linear"


def test_what_was_not_measured_stays_last_either_way(show: Show) -> None:
    shown = show(page(layered()))
    shown.sort("headroom")
    assert shown.layers == ["layer0 Conv2d", "layer1 Linear", "layer2 Linear"]
    shown.sort("headroom")
    assert shown.layers == ["layer1 Linear", "layer0 Conv2d", "layer2 Linear"]


def test_an_overflow_sorts_as_the_largest_with_the_least_headroom(show: Show) -> None:
    shown = show(page(overflow()))
    for key in ("absmax", "headroom"):
        shown.sort(key)
        assert shown.layers[0] == "blocks.1.ff.wo Linear"


def test_sorting_needs_no_mouse(show: Show) -> None:
    from selenium.webdriver.common.keys import Keys

    shown = show(page(layered()))
    shown.type("input.filter", Keys.TAB, Keys.TAB, Keys.TAB)  # past the first columns' buttons
    assert shown.driver.switch_to.active_element.text == "Calls"
    shown.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert shown.layers[0] == "layer2 Linear"


def test_the_filter_takes_parts_of_names_and_types(show: Show) -> None:
    shown = show(page(layered(30)))
    assert len(shown.layers) == 20
    assert shown.one("output.count").text == "30 layers"
    shown.type("input.filter", "ER2")
    assert shown.layers == ["layer2 Linear", *(f"layer{i} Linear" for i in range(20, 30))]
    assert shown.one("output.count").text == "11 of 30 layers"
    shown.one("input.filter").clear()
    shown.type("input.filter", "conv")
    assert shown.layers == ["layer0 Conv2d"]
    shown.one("input.filter").clear()
    shown.type("input.filter", "nothing")
    assert shown.layers == []


def test_a_button_shows_the_rest(show: Show) -> None:
    shown = show(page(layered(30)))
    assert shown.one(".layers .more button").text == "Show all 30"
    shown.one(".layers .more button").click()
    assert len(shown.layers) == 30
    assert not shown.one(".layers .more").is_displayed()


@pytest.mark.parametrize(
    ("exponent", "shares"),
    [
        # worked out in test_html_charts.py
        (0, ("12.5 %", "31.2 %", "56.2 %", "0.0 %")),
        (1, ("6.2 %", "37.5 %", "56.2 %", "0.0 %")),
        (2, ("6.2 %", "37.5 %", "50.0 %", "6.2 %")),
        (11, ("0.0 %", "6.2 %", "87.5 %", "6.2 %")),
    ],
)
def test_the_slider_shifts_the_histogram(show: Show, exponent: int, shares: tuple[str, ...]) -> None:
    shown = show(page(gradients()))
    shown.move(exponent)
    assert tuple(shown.shares.values()) == shares
    assert shown.one("output.scale-words").text == f"2^{exponent} = {2**exponent:,}"
    # 2^0 is the tallest; the axis begins at 2^-30
    tallest = shown.all(".histogram svg g")[30 + exponent].find_element("css selector", ".column")
    assert (tallest.get_attribute("y"), tallest.get_attribute("height")) == ("0.00", "100.00")


def test_the_script_and_the_page_without_it_say_the_same(show: Show) -> None:
    shown = show(page(gradients()))
    here = shown.driver.execute_script("return document.querySelector('.histogram svg').innerHTML")
    shares = shown.shares
    without = show(page(gradients()).replace("script-src", "script-src 'none'; x"))
    assert "live" not in (without.one(".ampdoctor").get_attribute("class") or "").split()
    there = without.driver.execute_script("return document.querySelector('.histogram svg').innerHTML")
    assert (here, shares) == (there, without.shares)


def test_the_histogram_of_one_layer(show: Show) -> None:
    from selenium.webdriver.support.select import Select

    shown = show(page(gradients()))
    layers = Select(shown.one("select.layer"))
    layers.select_by_visible_text("attention")
    shown.move(1)
    assert tuple(shown.shares.values()) == ("25.0 %", "50.0 %", "25.0 %", "0.0 %")
    layers.select_by_visible_text("head")
    shown.move(0)
    assert tuple(shown.shares.values()) == ("0.0 %", "0.0 %", "50.0 %", "50.0 %")


def test_the_slider_moves_with_the_keyboard_and_jumps_to_the_recommended_scale(show: Show) -> None:
    from selenium.webdriver.common.keys import Keys

    shown = show(page(gradients()))
    shown.type("input.scale", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert shown.one("input.scale").get_attribute("aria-valuetext") == "2^2 = 4"
    shown.all(".jumps button")[1].click()
    assert shown.one("output.scale-words").text == "2^1 = 2"
    assert shown.shares["zero"] == "6.2 %"


def test_reports_on_one_page_do_not_meddle_with_each_other(show: Show) -> None:
    shown = show(fragment(gradients()) + fragment(gradients()))
    shown.move(11)
    zeros = [element.text for element in shown.all("[data-figure=zero]")]
    assert zeros == ["0.0 %", "12.5 %"]


def test_rule_pages_fold_out(show: Show) -> None:
    shown = show(page(overflow()))
    assert not shown.one("details.rule p").is_displayed()
    shown.one("details.rule summary").click()
    assert shown.one("details.rule p").is_displayed()


Screen = Callable[[int, str], None]


@pytest.mark.parametrize("document", ["overflow", "gradients", "several", "name: unicode"])
def test_a_phone_shows_it_without_scrolling_sideways(show: Show, screen: Screen, document: str) -> None:
    screen(360, "light")
    shown = show(DOCUMENTS[document]())
    assert shown.driver.execute_script("return document.documentElement.scrollWidth") <= 360
    for row in shown.all(".layers tbody tr"):
        assert row.size["width"] <= 360


def test_it_is_dark_where_the_reader_likes_it_dark(show: Show, screen: Screen) -> None:
    screen(1100, "light")
    light = show(page(overflow())).style(".ampdoctor", "background-color")
    screen(1100, "dark")
    dark = show(page(overflow())).style(".ampdoctor", "background-color")
    assert (light, dark) == ("rgba(255, 255, 255, 1)", "rgba(25, 28, 32, 1)")


def test_on_paper_rule_pages_are_open_and_every_layer_is_there(show: Show) -> None:
    shown = show(page(layered(30)))
    shown.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert len(shown.layers) == 30
        assert not shown.one(".layers .controls").is_displayed()
    finally:
        shown.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    shown = show(page(overflow()))
    rule = "return document.querySelector('details.rule').open"
    shown.driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert shown.driver.execute_script(rule) is True
    shown.driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert shown.driver.execute_script(rule) is False
