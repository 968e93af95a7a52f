"""Read pages as text, without a browser; check in a browser that charts tell the same to the pointer and the keyboard,
and that pages fit into any width.
"""

from collections import Counter
from html.parser import HTMLParser


class Tags(HTMLParser):
    """The elements of a page with the names of their attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.seen, self.words = Counter(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen[tag, tuple(name for name, _ in attrs)] += 1

    def handle_data(self, data):
        self.words.append(data)


EXERCISE = """async () => {
  const all = (selector) => [...document.querySelectorAll(selector)], labels = [];
  for (const plot of all(".plot")) {
    plot.focus();
    for (const key of ["ArrowRight", "End", "PageUp", "Home", "Escape"])
      plot.dispatchEvent(new KeyboardEvent("keydown", { key }));
    labels.push(plot.getAttribute("aria-label"));
  }
  for (const details of all("details")) details.open = true;
  for (const control of all("input, #runs-legend button")) control.click();
  for (const select of all("select")) for (const option of [...select.options].reverse()) {
    select.value = option.value;
    select.dispatchEvent(new Event("change"));
  }
  const more = document.getElementById("more");
  while (more && !more.hidden) more.click();
  document.getElementById("theme").click();
  await new Promise((done) => setTimeout(done, 50));
  return labels;
}"""
"""Focuses and moves over every chart, makes every choice, unfolds everything, and returns the labels of the charts."""


def check_tooltips(page, charts, plot, *, across, down):
    """The tooltips of charts are told to the keyboard too, and the pointer finds one at a share of their size."""
    for chart in charts:
        plot(page, chart).focus()
        page.keyboard.press("Home")
        first = page.inner_text("#tip")
        assert page.text_content("#said") == page.text_content("#tip")
        page.keyboard.press("End")
        assert page.inner_text("#tip") != first
        page.keyboard.press("Escape")
        assert page.is_hidden("#tip")
        box = plot(page, chart).bounding_box()
        plot(page, chart).hover(position={"x": box["width"] * across, "y": box["height"] * down})
        assert page.is_visible("#tip"), chart
        page.mouse.move(2, 2)


def check_widths(page, widths, *, may_be_wider):
    """At none of these widths does the page scroll sideways, or anything but `may_be_wider` reach beyond it."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(
            """() => [...document.querySelectorAll("figure")].every((chart) =>
                 chart.querySelector("svg").viewBox.baseVal.width === Math.max(240, chart.clientWidth))"""
        )
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        cut = page.evaluate(
            """(wider) => [...document.querySelectorAll("main *")].filter((node) => !node.closest(wider)
                 && node.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length""",
            may_be_wider,
        )
        assert cut == 0
