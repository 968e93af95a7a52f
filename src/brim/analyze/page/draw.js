// Drawing: one frame for all charts. Axes and small charts are SVG; a canvas behind it takes what has tens of thousands of points.
// A chart is an image with words: it has a label, a table of what it shows, and a cursor that the pointer and the arrow keys move.

const SVG = "http://www.w3.org/2000/svg";
const tip = document.getElementById("tip"), said = document.getElementById("said");

const count = (n) => Math.round(n).toLocaleString("en-US");
const percent = (x, digits = 1) => (x * 100).toFixed(digits) + "%";
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || one + "s"}`;
function brief(n) {
  if (Math.abs(n) < 10000) return (Math.round(n * 1000) / 1000).toLocaleString("en-US");
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(n) >= size) return Number((n / size).toPrecision(3)) + unit;
  }
}

function add(parent, name, attributes = {}, text = null) {
  const node = parent.namespaceURI === SVG || name === "svg" ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return parent.appendChild(node);
}

const linear = (low, high, from, to) => Object.assign((x) => from + ((x - low) / (high - low || 1)) * (to - from), { low, high });
function logarithmic(low, high, from, to) {
  const [a, b] = [Math.log2(Math.max(low, 1)), Math.log2(Math.max(high, 2))];
  return Object.assign((x) => from + ((Math.log2(Math.max(x, 1)) - a) / (b - a || 1)) * (to - from), { low, high, log: true });
}

function ticks(scale, wanted) {
  const { low, high, log } = scale;
  const found = [];
  if (log) {
    const all = [];
    for (let power = 1; power <= high; power *= 2) if (power >= low) all.push(power);
    const skip = Math.ceil(all.length / wanted);
    return all.filter((_, i) => (all.length - 1 - i) % skip === 0);
  }
  const raw = (high - low || 1) / wanted, base = 10 ** Math.floor(Math.log10(raw));
  const step = base * [1, 2, 2.5, 5, 10].find((factor) => factor * base >= raw - 1e-12);
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// A path through the points that are known; one that is missing leaves a gap. x takes the number of a point.
function pathOf(values, x, y) {
  let pen = "M";
  return values.map((value, i) => {
    if (value === null) { pen = "M"; return ""; }
    const part = `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
    return part;
  }).join("");
}

class Chart {
  // options: height, or fit(width) -> height, margin, canvas, zooms, hint; paint(chart) draws and returns {items, label, table}.
  constructor(id, options) {
    Object.assign(this, options);
    this.root = document.getElementById(id);
    this.plot = add(this.root, "div", { class: this.zooms ? "plot zooms" : "plot", role: "img", tabindex: "0" });
    if (this.canvas) this.surface = add(this.plot, "canvas");
    this.svg = add(this.plot, "svg", { "aria-hidden": "true" });
    if (this.hint) add(this.root, "p", { class: "hint" }, this.hint);
    this.details = add(this.root, "details");
    add(this.details, "summary", {}, "Show as table");
    this.body = add(this.details, "div", { class: "scroll" });
    this.details.addEventListener("toggle", () => this.fillTable());
    this.at = null;
    this.view = null;
    this.listen();
    new ResizeObserver(() => {  // a chart that is hidden for a while, and 0 wide, is drawn again when it is seen
      const width = this.root.clientWidth;
      if (this.drawn !== undefined && width && width !== this.drawn) this.draw();
    }).observe(this.root);
  }

  draw() {
    this.drawn = this.root.clientWidth;
    const width = Math.max(this.root.clientWidth, 240), { margin } = this;
    this.width = width;
    if (this.fit) this.height = this.fit(width);
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.box = { left: margin.left, right: width - margin.right, top: margin.top, bottom: this.height - margin.bottom };
    const style = getComputedStyle(document.documentElement);
    this.colour = (name) => style.getPropertyValue("--" + name).trim();
    if (this.surface) {
      const dots = window.devicePixelRatio || 1;
      this.surface.width = Math.round(width * dots);
      this.surface.height = Math.round(this.height * dots);
      this.pen = this.surface.getContext("2d");
      this.pen.scale(dots, dots);
    }
    const { items, label, table } = this.paint(this);
    Object.assign(this, { items, table });
    this.plot.setAttribute("aria-label", label);
    this.hide();
    this.fillTable();
  }

  axisX(scale, name, format = brief) {
    const { bottom, left, right } = this.box;
    add(this.svg, "line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
    for (const value of ticks(scale, Math.max(2, Math.floor((right - left) / 70)))) {
      const x = scale(value);
      add(this.svg, "line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 });
      add(this.svg, "text", { x, y: bottom + 17, "text-anchor": "middle" }, format(value));
    }
    add(this.svg, "text", { x: right, y: this.height - 6, "text-anchor": "end" }, name);
  }

  axisY(scale, name, format = brief) {
    const { left, right, top } = this.box;
    for (const value of ticks(scale, 5)) {
      const y = scale(value);
      add(this.svg, "line", { class: "grid", x1: left, x2: right, y1: y, y2: y });
      add(this.svg, "text", { x: left - 8, y: y + 4, "text-anchor": "end" }, format(value));
    }
    add(this.svg, "text", { x: 0, y: top - 13 }, name);
  }

  hatch() {
    const id = `${this.root.id}-hatch`, turned = { patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
    const pattern = add(add(this.svg, "defs"), "pattern", { id, width: 6, height: 6, ...turned });
    add(pattern, "line", { class: "hatch", x1: 0, x2: 0, y1: 0, y2: 6 });
    return `url(#${id})`;
  }

  fillTable() {
    if (!this.details.open || !this.table) return;
    const { head, rows } = this.table();
    const table = document.createElement("table");
    const line = add(add(table, "thead"), "tr");
    for (const name of head) add(line, "th", { scope: "col" }, name);
    const body = add(table, "tbody");
    for (const row of rows) {
      const tr = add(body, "tr");
      row.forEach((value, i) => add(tr, i ? "td" : "th", i ? {} : { scope: "row" }, value));
    }
    this.body.replaceChildren(table);
    this.body.tabIndex = 0;
  }

  // items: {count, nearest(x, y), place(i) -> {x, y, w?, h?}, text(i)}
  show(i, spoken = false) {
    if (!this.items || !this.items.count) return;
    this.at = Math.max(0, Math.min(this.items.count - 1, i));
    const spot = this.items.place(this.at), text = this.items.text(this.at);
    this.cursor?.remove();
    this.cursor = spot.w === undefined
      ? add(this.svg, "circle", { class: "cursor", cx: spot.x, cy: spot.y, r: spot.r || 5 })
      : add(this.svg, "rect", { class: "cursor", x: spot.x, y: spot.y, width: Math.max(spot.w, 1), height: Math.max(spot.h, 1) });
    tip.textContent = text;
    tip.hidden = false;
    if (spoken) said.textContent = text;
    const frame = this.svg.getBoundingClientRect(), scale = frame.width / this.width;
    const x = frame.left + (spot.x + (spot.w || 0) / 2) * scale, y = frame.top + spot.y * scale, size = tip.getBoundingClientRect();
    const above = y - size.height - 12;
    tip.style.left = `${Math.max(6, Math.min(document.documentElement.clientWidth - size.width - 6, x - size.width / 2))}px`;
    tip.style.top = `${above > 6 ? above : y + (spot.h || 0) * scale + 14}px`;
  }

  hide() {
    tip.hidden = true;
    this.cursor?.remove();
    this.cursor = null;
  }

  where(event) {
    const frame = this.svg.getBoundingClientRect(), scale = this.width / frame.width;
    return { x: (event.clientX - frame.left) * scale, y: (event.clientY - frame.top) * scale };
  }

  listen() {
    const { plot } = this;
    plot.addEventListener("pointermove", (event) => {
      const { x, y } = this.where(event);
      if (this.drag) return this.stretch(x);
      const i = this.items && this.items.count ? this.items.nearest(x, y) : null;
      if (i === null) this.hide(); else this.show(i);
    });
    plot.addEventListener("pointerleave", () => { if (!this.drag) this.hide(); });
    plot.addEventListener("focus", () => { if (plot.matches(":focus-visible")) this.show(this.at ?? 0, true); });
    plot.addEventListener("blur", () => this.hide());
    plot.addEventListener("keydown", (event) => this.key(event));
    if (!this.zooms) return;
    plot.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch") return;
      this.drag = { from: this.where(event).x, to: null };
      plot.setPointerCapture(event.pointerId);
      this.hide();
    });
    plot.addEventListener("pointerup", () => this.release());
    plot.addEventListener("pointercancel", () => { this.drag = null; this.range?.remove(); });
    plot.addEventListener("wheel", (event) => {
      if (document.activeElement !== plot && !event.ctrlKey && !event.metaKey) return;  // a page that is scrolled past stays as it is
      event.preventDefault();
      this.zoomBy(event.deltaY > 0 ? 1.5 : 1 / 1.5, this.where(event).x);
    }, { passive: false });
    plot.addEventListener("dblclick", () => this.zoomTo(null));
  }

  key(event) {
    const items = this.items, far = items ? Math.max(1, Math.round(items.count / 20)) : 1, from = this.at ?? -1;
    const [next, before] = [from + 1, from - 1];
    const moves = { ArrowRight: next, ArrowUp: next, ArrowLeft: before, ArrowDown: before };
    Object.assign(moves, { PageDown: from + far, PageUp: from - far, Home: 0, End: Infinity });
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) this.show(moves[event.key], true);
    else if (event.key === "Escape") this.hide();
    else if (this.zooms && (event.key === "+" || event.key === "=")) this.zoomBy(0.5);
    else if (this.zooms && event.key === "-") this.zoomBy(2);
    else if (this.zooms && event.key === "0") this.zoomTo(null);
    else return;
    event.preventDefault();
  }

  stretch(x) {
    const { left, right, top, bottom } = this.box, clamp = (value) => Math.max(left, Math.min(right, value));
    this.drag.to = x;
    const [a, b] = [clamp(this.drag.from), clamp(x)].sort((p, q) => p - q);
    this.range?.remove();
    this.range = add(this.svg, "rect", { class: "range", x: a, y: top, width: b - a, height: bottom - top });
  }

  release() {
    const { drag } = this;
    this.drag = null;
    this.range?.remove();
    if (!drag || drag.to === null || Math.abs(drag.to - drag.from) < 5) return;
    const [a, b] = [drag.from, drag.to].sort((p, q) => p - q).map((x) => this.valueAt(x));
    this.zoomTo([a, b]);
  }

  // Along the zoomed axis positions run from 0 to `this.extent`.
  shown() { return this.view || [0, this.extent]; }
  valueAt(x) { const [a, b] = this.shown(), { left, right } = this.box; return a + ((x - left) / (right - left)) * (b - a); }

  zoomBy(factor, x = null) {
    const [a, b] = this.shown(), atCursor = this.at !== null && this.at >= a && this.at <= b;
    const middle = x !== null ? this.valueAt(x) : atCursor ? this.at : (a + b) / 2;
    this.zoomTo([middle - (middle - a) * factor, middle + (b - middle) * factor]);
  }

  zoomTo(range) {
    if (range) {
      const size = Math.max(Math.min(4, this.extent), Math.min(this.extent, range[1] - range[0]));
      const start = Math.max(0, Math.min(this.extent - size, range[0]));
      range = size >= this.extent ? null : [start, start + size];
    }
    this.view = range;
    this.draw();
    this.onzoom?.(range);
  }
}
