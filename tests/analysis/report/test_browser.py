"""The page in a real browser: it runs under its own policy, sorts, switches, fits a phone, turns dark and prints."""

import shutil

import pytest
from report_pages import EVIL, png
from report_runs import write_finding, write_run

from headway.analysis.report.gather import gather
from headway.analysis.report.page import page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; `apt-get install chromium`"),
]


@pytest.fixture(scope="module")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; `make dev`")
    with api.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root has no sandbox
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Four recipes with all that a page can hold: three seeds, a failure, diagnostics, hostile names."""
    root = tmp_path_factory.mktemp("page")
    clients = [[3 + k, k % 4, (7 * k) % 5] for k in range(12)]
    for seed in range(3):
        shape = {"counts": clients, "personal": [0.5 + k / 30 for k in range(12)]}
        for i, name in enumerate(("fedavg", "scaffold", "local")):
            accs = [None] * 12 if name == "local" else [0.2 + t / 20 + i / 20 + seed / 50 for t in range(12)]
            write_run(root / name / f"seed-{seed}", name, seed, accs=accs, **shape)
    long = EVIL + "a_recipe_with_a_very_long_name" * 3
    write_run(root / "odd", "moon", accs=[0.1] * 12, label=long, failed=EVIL, **shape)
    write_finding(root / "fedavg" / "seed-0", png=png(), title=EVIL)
    file = root / "report.html"
    file.write_text(page(gather([root])))
    return file.as_uri()


@pytest.fixture
def open_page(chromium, address):
    """Opens the page; whatever the console or the policy complains of fails the test."""
    complaints, contexts = [], []

    def opened(**how):
        context = chromium.new_context(**how)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda m: complaints.append(m.text))
        tab.on("pageerror", lambda e: complaints.append(str(e)))
        tab.on("dialog", lambda d: (complaints.append(f"dialog {d.message}"), d.dismiss()))
        tab.add_init_script("document.addEventListener('securitypolicyviolation', e => console.error(e.blockedURI))")
        tab.goto(address)
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def column(tab, n):
    cells = tab.locator(f"#leaderboard tbody tr > :nth-child({n})").all_inner_texts()
    return [" ".join(text.split()) for text in cells]


def test_the_table_sorts_by_click_and_by_keyboard(open_page):
    tab = open_page()
    head = tab.locator("#leaderboard thead th")
    assert head.nth(1).get_attribute("aria-sort") == "descending"
    best_first = column(tab, 1)
    assert best_first[0].startswith("scaffold")
    head.nth(1).get_by_role("button").click()
    assert head.nth(1).get_attribute("aria-sort") == "ascending"
    assert column(tab, 1)[-1].startswith("scaffold")
    head.nth(0).get_by_role("button").focus()
    tab.keyboard.press("Enter")
    assert (head.nth(0).get_attribute("aria-sort"), head.nth(1).get_attribute("aria-sort")) == ("ascending", None)
    names = column(tab, 1)
    assert names == sorted(names, key=str.lower)
    tab.keyboard.press("Space")
    assert column(tab, 1) == names[::-1]


def test_a_recipe_disappears_from_every_chart_when_switched_off(open_page):
    tab = open_page()
    box = tab.get_by_role("checkbox", name="scaffold")
    key = box.get_attribute("data-switch")
    parts = tab.locator(f"[data-recipe={key}]")
    curves = tab.locator(f"svg.chart g[data-recipe={key}]")
    assert curves.count() >= 5
    assert all(c.is_visible() for c in curves.all())
    box.focus()
    tab.keyboard.press("Space")
    assert not any(p.is_visible() for p in parts.all())
    assert tab.locator("#curve-global-title + desc + * ~ g[data-recipe]").first.is_visible()  # the others stay
    box.click()
    assert all(c.is_visible() for c in curves.all())
    tab.get_by_role("button", name="none").click()
    assert not any(c.is_visible() for c in tab.locator("svg.chart g[data-recipe]").all())


def test_the_reading_line_tells_the_values_under_the_arrow_keys(open_page):
    tab = open_page()
    chart = tab.locator("#curves svg.chart").first
    chart.focus()
    tab.keyboard.press("ArrowLeft")  # from the right: the last round
    told = tab.locator("#curves output").first.inner_text()
    # scaffold's seeds end at 0.2 + 11/20 + 1/20 + (0, 1, 2)/50: mean 0.82; fedavg's 0.05 below
    assert told.startswith("at 12: ")
    assert "scaffold 82.0 %" in told
    assert "fedavg 77.0 %" in told


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_never_scrolls_sideways(open_page, width):
    tab = open_page(viewport={"width": width, "height": 844})
    for detail in tab.locator("summary").all():
        detail.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_recipes_leave_room_for_the_leaderboard_on_a_phone(open_page):
    tab = open_page(viewport={"width": 390, "height": 844})
    table = tab.locator("#recipes .scroll").first
    assert table.evaluate("box => box.scrollWidth - box.clientWidth") == 0  # read without pushing it sideways
    box = tab.locator("#recipes").bounding_box()
    assert box["height"] < 844
    assert box["y"] < tab.locator("#leaderboard").bounding_box()["y"]


def test_dark_mode_changes_the_colours_and_print_keeps_light_ones(open_page):
    def paper(tab):
        return tab.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")

    light, dark = (paper(open_page(color_scheme=mode)) for mode in ("light", "dark"))
    assert light != dark
    tab = open_page(color_scheme="dark")
    tab.emulate_media(media="print")
    assert paper(tab) == ["rgb(255, 255, 255)", light[1]]
    assert not tab.locator("nav").is_visible()
    assert not tab.locator(".switches").is_visible()
    assert tab.pdf(format="A4")[:5] == b"%PDF-"


def test_everything_is_there_without_script(open_page):
    tab = open_page(java_script_enabled=False)
    assert tab.locator("#curves svg.chart g[data-recipe]").first.is_visible()
    assert not tab.locator(".switches").is_visible()
    assert tab.locator("#leaderboard button").count() == 0
    assert tab.locator("section").count() == 8


def test_the_keyboard_reaches_the_content_first(open_page):
    tab = open_page()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert tab.locator(".skip").bounding_box()["x"] >= 0
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"
    tab.keyboard.press("Tab")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_pictures_are_shown(open_page):
    tab = open_page()
    assert tab.locator("img").first.evaluate("image => image.complete && image.naturalWidth") == 8


@pytest.fixture
def long_names(chromium, tmp_path):
    """Two recipes with long names, reached targets and three seeds, on a desktop of 1280."""
    for seed in range(3):
        for i, more in enumerate(({"lr": 0.05}, {"lr": 0.1, "partition": "dir(0.1)", "momentum": 0.5})):
            accs = [0.2 + t / 16 + i / 50 + seed / 100 for t in range(12)]
            write_run(
                tmp_path / f"{i}-{seed}", "fedavg", seed, accs=accs, label="fedavg+ccvr(transform=virtual)", **more
            )
    (tmp_path / "page.html").write_text(page(gather([tmp_path])))
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.goto((tmp_path / "page.html").as_uri())
    yield tab
    context.close()


def test_a_long_name_and_its_badge_stay_in_their_column(long_names):
    cells = long_names.locator("#leaderboard tbody th")
    assert cells.count() == 2
    for cell in cells.all():
        box = cell.bounding_box()
        for part in cell.locator("bdi, .tag").all():
            inner = part.bounding_box()
            assert box["x"] <= inner["x"]
            assert inner["x"] + inner["width"] <= box["x"] + box["width"]
    assert long_names.locator("#leaderboard .tag").count() == 1
    lines = "[...document.querySelectorAll('#leaderboard tbody tr:last-child > *')].map(c => getComputedStyle(c)"
    assert set(long_names.evaluate(lines + ".borderTopWidth)")) == {"1px"}
    assert long_names.evaluate("getComputedStyle(document.querySelector('table')).borderCollapse") == "separate"


def test_the_tables_of_targets_fit_a_desktop(long_names):
    wide = "[...document.querySelectorAll('.three .scroll')].map(b => b.scrollWidth - b.clientWidth)"
    assert long_names.evaluate(wide) == [0, 0, 0]
