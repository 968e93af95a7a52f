"""The contrast of text on a page."""

CONTRAST = """(pairs) => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (node) => {
    const colour = rgb(getComputedStyle(node).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
    return node.parentElement ? behind(node.parentElement) : [255, 255, 255];
  };
  const silent = ["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"];
  const written = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  let worst = [99, ""];
  const look = (ink, paper, what) => {
    const [a, b] = [light(ink), light(paper)], contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < worst[0]) worst = [contrast, what];
  };
  for (const node of document.querySelectorAll("body *")) {
    if (!written(node) || !node.getClientRects().length || node.disabled || silent.includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    look(rgb(node.namespaceURI.endsWith("svg") ? style.fill : style.color), behind(node), node.outerHTML.slice(0, 200));
  }
  const filled = (selector) => rgb(getComputedStyle(document.querySelector(selector)).fill);
  for (const [text, paper] of pairs) look(filled(text), filled(paper), text);
  return worst;
}"""


def lowest_contrast(page, *pairs):
    """The lowest contrast of an element with text of its own against what is behind it, and which element that is.

    `pairs` are selectors of text in an SVG and of the shape that it stands on.
    """
    return page.evaluate(CONTRAST, [list(pair) for pair in pairs])
