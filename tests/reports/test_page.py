"""The HTML page: complete in itself, safe with hostile names, and alive in a real browser."""

import base64
import html.parser
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from browser import chromium, needs_browser
from small_graphs import chain_edges, graph_of, kernels_of, scenario_of
from waiting import wait_until

from depgraph.analysis.study import study
from depgraph.mechanisms import find_mechanisms
from depgraph.reports.page import page, timeline
from depgraph.reports.page.study_report import study_report
from depgraph.reports.plots import write_plots
from depgraph.timing.matched_profile import AluUse

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\x1b[31m"


def study_of(sizes, edges, names=None, sms=4, cost=None, mechanisms=(), **options):
    graph = graph_of(sizes, edges, cost=cost)
    scenario = scenario_of(graph, occupancy=2, kernels=kernels_of(sizes, names), sms=sms, **options)
    return study(scenario, mechanisms=mechanisms)


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Return a function that writes a page, with pictures that are drawn once."""
    drawn_in = tmp_path_factory.mktemp("plots")
    plots = write_plots(study_of([4, 6, 2], chain_edges([4, 6, 2])), drawn_in)

    def to(found, folder):
        file = folder / "index.html"
        page.write_page(found, study_report(found), plots, drawn_in, file)
        return file

    return to


def timeline_json(text):
    found = re.search(r'<script type="application/json" id="timeline-data">(.*?)</script>', text)
    return json.loads(found[1])


class Elements(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def hostile_page(write, tmp_path_factory):
    sizes = [4, 6, 2]
    found = study_of(
        sizes,
        chain_edges(sizes),
        [HOSTILE, "plain<int>(float*)", "'\"><b>&amp;"],
        metadata={
            "sources": [{"path": f"/traces/{HOSTILE}.log", "size": 5, "sha256": "00"}],
            "blind_spots": [HOSTILE],
        },
    )
    return write(found, tmp_path_factory.mktemp("hostile"))


def test_the_page_answers_in_the_order_of_the_questions(hostile_page):
    heads = re.findall(r"<h2>(.*?)</h2>", hostile_page.read_text())
    assert heads == [
        "How much faster could it be?",
        "Where?",
        "By which mechanism?",
        "Under what assumptions?",
        "What is untraced?",
    ]


def test_the_page_needs_no_other_file_and_no_network(hostile_page):
    for tag, attributes in Elements(hostile_page.read_text()).found:
        for name in ("src", "href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), (tag, value)
    assert "@import" not in hostile_page.read_text()


def test_names_from_the_trace_make_no_elements(hostile_page):
    elements = Elements(hostile_page.read_text()).found
    assert [tag for tag, _ in elements].count("script") == 3
    assert not any("onerror" in attributes for _, attributes in elements)
    assert "\x1b" not in hostile_page.read_text()


def test_hostile_names_survive_in_the_data_of_the_script(hostile_page):
    names = [o["full"] for o in timeline_json(hostile_page.read_text())["operations"]]
    assert names[0] == HOSTILE.replace("\x1b[31m", "")
    assert names[2] == "'\"><b>&amp;"


def test_a_picture_says_its_result_to_those_who_cannot_see_it(hostile_page):
    alts = [a["alt"] for tag, a in Elements(hostile_page.read_text()).found if tag == "img"]
    assert alts[0].startswith("Kernels over time. One kernel after another: ")


def test_without_times_the_first_number_is_that_of_the_change(write, tmp_path):
    side_by_side = [((0, 0), (2, 0))]
    text = write(study_of([1, 1, 1], side_by_side, cost=[5, 4, 3]), tmp_path).read_text()
    tiles = re.findall(r'"tile"><b>(.*?)</b><span>(.*?)</span><small>(.*?)</small>', text)
    assert tiles[0] == (
        "1.50x", "with a change", "predicted with independent branches side by side"
    )  # fmt: skip
    assert tiles[1][:2] == ("1.50x", "upper bound")


def test_arithmetic_that_a_profile_counted_has_a_column():
    alu = AluUse("sm__throughput", {0: 0.25})
    kernels = {t.key: t for t in study_report(replace(study_of([4, 4], []), alu=alu)).tables}
    column = [c.key for c in kernels["kernels"].columns].index("alu_utilization")
    assert [row[column] for row in kernels["kernels"].rows] == [0.25, None]


def test_what_needs_a_script_is_said_without_one(hostile_page):
    said = re.search(r"<noscript>(.*?)</noscript>", hostile_page.read_text())[1]
    assert "timeline.json.gz" in said


def test_the_timeline_opens_on_the_best_schedule_that_the_bound_holds_for():
    found = study_of([4, 4], [((0, 0), (1, 0))], cost=[1, 9, 1, 1, 1, 1, 1, 1], sms=1)
    serial, best = found.schedules
    assert timeline.timeline_data(found)[0]["opens"] == 1
    cut_up = best._replace(name="stream-k", end=best.end / 10)
    outcomes = study_of([4, 4], [], sms=1, mechanisms=find_mechanisms(["stream-k"])).comparison
    other = replace(found, schedules=(serial, best, cut_up), comparison=outcomes)
    assert timeline.timeline_data(other)[0]["opens"] == 1


def test_two_runs_give_the_same_bytes(tmp_path, write):
    sizes = [3, 3]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (
        write(study_of(sizes, chain_edges(sizes)), tmp_path / name) for name in ("a", "b")
    )
    assert first.read_bytes() == second.read_bytes()


def test_times_and_places_are_packed_exactly_enough():
    found = study_of([4, 4], chain_edges([4, 4]), sms=2)
    data, cuts = timeline.timeline_data(found)
    assert cuts == []
    serial = data["schedules"][0]
    start = np.frombuffer(base64.b64decode(serial["start"]), "<u4") / (2**32 - 1) * data["longest"]
    assert start == pytest.approx(found.schedules[0].start, abs=1e-8)
    sm = np.frombuffer(base64.b64decode(serial["sm"]), "<i4")
    assert sm.tolist() == found.schedules[0].sm.tolist()


def test_cuts_are_made_and_said(monkeypatch, tmp_path, write):
    monkeypatch.setattr(timeline, "MOST_BLOCKS", 5)
    monkeypatch.setattr(timeline, "MOST_NUMBERS", 3)
    monkeypatch.setattr(page, "MOST_ROWS", 1)
    text = write(study_of([4, 4], chain_edges([4, 4])), tmp_path).read_text()
    assert "draws the first 5 of 8 blocks" in text
    assert "Dependences between blocks are not on this page" in text
    assert "1 more row is not on this page." in text
    assert timeline_json(text)["graph"] is None


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


def errors(driver):
    return [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def column(driver, table, index):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])]"
        ".map(row => row.cells[arguments[1]].innerText)",
        f"table[data-table={table}] tbody tr:not([hidden])",
        index,
    )


def click_canvas(driver, x, y):
    """Click at a place of the canvas, from its upper left corner."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    canvas = driver.find_element(By.ID, "timeline-canvas")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    size = canvas.size
    ActionChains(driver).move_to_element_with_offset(
        canvas, x - size["width"] // 2, y - size["height"] // 2
    ).click().perform()


def details(driver):
    return driver.execute_script("return document.getElementById('timeline-details').innerText")


@needs_browser
def test_a_hostile_name_does_not_run_and_the_console_is_silent(browser, hostile_page):
    browser.get(hostile_page.as_uri())
    click_canvas(browser, 60, 5)
    assert browser.execute_script("return window.hacked") is None
    assert errors(browser) == []


@needs_browser
def test_a_click_on_a_head_sorts_and_a_third_click_restores(browser, hostile_page):
    browser.get(hostile_page.as_uri())
    before = column(browser, "kernels", 0)
    head = "document.querySelector('table[data-table=kernels] th button').click()"
    browser.execute_script(head)
    assert column(browser, "kernels", 0) == ["2", "1", "0"]
    browser.execute_script(head)
    assert column(browser, "kernels", 0) == ["0", "1", "2"]
    browser.execute_script(head)
    assert column(browser, "kernels", 0) == before


@needs_browser
def test_a_click_shows_what_a_block_waits_for(browser, tmp_path, write):
    # Kernel 1 runs after kernel 0, two blocks on each of two SMs: its first block is at half time.
    found = study_of([4, 4], [((0, 2), (1, 0)), ((0, 3), (1, 0), "WAR")], sms=2)
    browser.get(write(found, tmp_path).as_uri())
    click_canvas(browser, 900, 5)
    text = details(browser)
    assert "Block 1:0 of kernel_1" in text
    assert "Waits for 2 blocks" in text
    assert "0:2 (RAW)" in text
    assert "0:3 (WAR)" in text
    assert "Waited for by 0 blocks" in text
    browser.execute_script("document.querySelector('#timeline-details button').click()")
    assert "Block 0:2 of kernel_0" in details(browser)
    assert "Waited for by 1 block:" in details(browser)
    assert errors(browser) == []


@needs_browser
def test_a_block_that_waits_in_its_slot_says_until_when(browser, tmp_path, write):
    found = study_of([1, 1], [((0, 0), (1, 0))], sms=1)
    serial = found.schedules[0]
    held = serial._replace(name="held", start=np.zeros_like(serial.start), waiting=1.0)
    browser.get(write(replace(found, schedules=(serial, held)), tmp_path).as_uri())
    block = "document.getElementById('timeline-block')"
    browser.execute_script(f"{block}.value = '1:0'; {block}.dispatchEvent(new Event('change'))")
    assert "waits until 1" in details(browser)
    pick = "document.getElementById('timeline-schedule')"
    browser.execute_script(f"{pick}.value = '0'; {pick}.dispatchEvent(new Event('change'))")
    assert "waits until" not in details(browser)
    assert errors(browser) == []


@needs_browser
def test_the_wheel_zooms_and_the_button_shows_all_again(browser, hostile_page):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.by import By

    browser.get(hostile_page.as_uri())
    canvas = browser.find_element(By.ID, "timeline-canvas")

    def status():
        browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 50))")
        return browser.find_element(By.ID, "timeline-status").text

    whole = status()
    ActionChains(browser).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, -400).perform()
    wait_until(lambda: status() != whole)
    browser.find_element(By.ID, "timeline-all").click()
    wait_until(lambda: status() == whole)


def text_of(driver, element):
    driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 50))")
    return driver.execute_script(f"return document.getElementById('{element}').innerText")


@needs_browser
def test_the_timeline_fits_its_schedule_and_folds_sms_that_stay_empty(browser, tmp_path, write):
    browser.get(write(study_of([2, 4], [((0, 0), (1, 0))], sms=8), tmp_path).as_uri())
    assert text_of(browser, "timeline-status").startswith("0 to 2 instructions, 6 blocks drawn")
    assert text_of(browser, "timeline-status").endswith("3 of 8 SMs stay empty")
    assert text_of(browser, "timeline-legend").split("\n") == ["0 kernel_0", "1 kernel_1"]


@needs_browser
def test_a_shorter_schedule_is_shown_on_the_axis_of_serialized_launches(browser, tmp_path, write):
    found = study_of([2, 4], [], sms=8)
    assert [schedule.makespan for schedule in found.schedules] == [2, 1]
    browser.get(write(found, tmp_path).as_uri())
    assert text_of(browser, "timeline-status").startswith("0 to 2 instructions, 6 blocks drawn")


@needs_browser
def test_a_row_of_a_table_leads_to_its_kernel_or_block_in_the_timeline(browser, tmp_path, write):
    browser.get(write(study_of([2, 4], [((0, 0), (1, 0))]), tmp_path).as_uri())
    link = "document.querySelector('table[data-table={}] a[data-show=\"{}\"]').click()"
    browser.execute_script(link.format("kernels", "1"))
    assert "Kernel 1, kernel_1: 4 blocks" in details(browser)
    browser.execute_script(link.format("functions", "function:kernel_0"))
    assert "kernel_0: 2 blocks, 0 to 1 instructions in dataflow" in details(browser)
    browser.execute_script(link.format("path", "0:0"))
    assert "Block 0:0 of kernel_0" in details(browser)
    assert errors(browser) == []


@needs_browser
def test_the_page_follows_the_readers_choice_of_dark(browser, hostile_page):
    def background(scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    browser.get(hostile_page.as_uri())
    assert background("dark") == "rgb(25, 25, 25)"
    assert background("light") == "rgb(255, 255, 255)"


@needs_browser
def test_a_telephone_scrolls_the_page_in_one_direction(browser, hostile_page):
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(hostile_page.as_uri())
    width = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width <= 390


@needs_browser
def test_the_filter_keeps_rows_with_its_words(browser, tmp_path, write):
    sizes = [2] * 12
    names = [f"gemm_{i}" if i % 3 else f"norm_{i}" for i in range(12)]
    browser.get(write(study_of(sizes, chain_edges(sizes), names), tmp_path).as_uri())
    from selenium.webdriver.common.by import By

    browser.find_element(By.CSS_SELECTOR, "[data-filter=kernels]").send_keys("norm")
    assert sorted(column(browser, "kernels", 1)) == ["norm_0", "norm_3", "norm_6", "norm_9"]
    count = browser.find_element(By.CSS_SELECTOR, "[data-count=kernels]").text
    assert count == "4 of 12 rows"


def colours_on_the_canvas(driver):
    import PIL.Image
    from selenium.webdriver.common.by import By

    picture = driver.find_element(By.ID, "timeline-canvas").screenshot_as_png
    return len(PIL.Image.open(io.BytesIO(picture)).convert("RGB").getcolors(1 << 24))


@needs_browser
def test_the_pictures_are_not_empty(browser, hostile_page):
    browser.get(hostile_page.as_uri())
    wait_until(lambda: colours_on_the_canvas(browser) > 3)
    shown = browser.execute_script(
        "return [...document.images].map(i => i.complete && i.naturalWidth > 100)"
    )
    assert shown == [True] * 9


@needs_browser
@pytest.mark.jit_only
def test_a_hundred_thousand_blocks_are_drawn_and_answer_clicks(browser, tmp_path, write):
    sizes = [10_000] * 10
    found = study_of(sizes, chain_edges(sizes), sms=80)
    browser.get(write(found, tmp_path).as_uri())
    click_canvas(browser, 900, 5)
    assert "Waits for 1 block:" in details(browser)
    wait_until(lambda: colours_on_the_canvas(browser) > 3)
    assert errors(browser) == []
