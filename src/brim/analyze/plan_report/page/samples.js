// What is in an epoch, whatever its order: lengths, padding by bucket or group, batch shapes.

function paintLengths(chart) {
  const { lengths } = data, bins = lengths[state.axis], { box, svg } = chart, log = state.axis === "log";
  const [low, high] = [bins[0][0], bins.at(-1)[1] + 1];
  const x = log ? logarithmic(Math.max(low, 1), high, box.left, box.right) : linear(low, high, box.left, box.right);
  const y = linear(0, Math.max(...bins.map((bin) => bin[2])), box.bottom, box.top + 14);
  const place = ([from, to, samples]) => ({ x: x(from), y: y(samples), w: x(to + 1) - x(from), h: box.bottom - y(samples) });
  chart.axisY(y, "samples");
  for (const bin of bins) {
    const bar = place(bin), gap = bar.w > 4 ? 1 : 0;
    add(svg, "rect", { class: "used", x: bar.x, y: bar.y, width: Math.max(bar.w - gap, 0.5), height: bar.h });
  }
  chart.axisX(x, log ? "length in tokens (log)" : "length in tokens");
  if (data.bucketed) for (const px of labels(chart, x, data.bands.map((band) => [band[1] + 1, count(band[1])]), box.top, "edge-text")) {
    add(svg, "line", { class: "edge", x1: px, x2: px, y1: box.top + 4, y2: box.bottom });
  }
  const percentiles = Object.entries(lengths.percentiles).map(([name, value]) => [value + 0.5, `p${name}`]);
  for (const px of labels(chart, x, percentiles, box.bottom + 39, "strong")) {
    add(svg, "path", { class: "strong", d: `M${px} ${box.bottom + 21}l-4 6h8z` });
  }
  return {
    items: {
      count: bins.length,
      nearest: (px) => (inside(chart, px) ? Math.max(0, bins.findIndex((bin) => px <= x(bin[1] + 1))) : null),
      place: (i) => place(bins[i]),
      text: (i) => `${range(bins[i][0], bins[i][1])} tokens\n${plural(bins[i][2], "sample")}, ${percent(bins[i][2] / lengths.count, 2)}`,
    },
    label: `Histogram of ${plural(lengths.count, "sample")} by length, ${state.axis} axis: from ${count(lengths.shortest)} to `
      + `${count(lengths.longest)} tokens, half are at most ${count(lengths.percentiles[50])}.`,
    table: () => ({
      head: ["length in tokens", "samples", "share"],
      rows: bins.map((bin) => [range(bin[0], bin[1]), count(bin[2]), percent(bin[2] / lengths.count, 2)]),
    }),
  };
}

// Labels along the axis; one that would touch the one before it is left out. Returns where the marks are.
function labels(chart, x, list, y, kind) {
  let free = -Infinity;
  const marks = list.map(([value, text]) => [x(value), text]).filter(([px]) => px <= chart.box.right + 1);
  for (const [px, text] of marks) {
    const wide = text.length * 7 + 6;
    if (px - wide / 2 < free) continue;
    free = px + wide / 2;
    add(chart.svg, "text", { x: px, y, "text-anchor": "middle", class: kind }, text);
  }
  return marks.map(([px]) => px);
}

function barNames() {
  if (state.by === "group") return data.groups.map((name) => name || "(no group)");
  return data.bands.map((band) => range(...band));
}

const BAR = 30;

// The bars that have anything in them: [{name, microbatches, sequences, tokens, slots, padding, fill}].
function bars() {
  const names = barNames();
  return sumsBy(look, state.by, names.length)
    .map((sum, i) => ({ ...sum, name: names[i], padding: sum.slots - sum.tokens, fill: share(sum.tokens, sum.slots) }))
    .filter((bar) => bar.slots);
}

function paintFill(chart) {
  const shown = bars(), { box, svg } = chart, slots = shown.reduce((sum, bar) => sum + bar.slots, 0);
  const x = linear(0, Math.max(1, ...shown.map((bar) => bar.slots)), box.left, box.right - 64);
  const what = state.by === "group" ? "group" : data.bucketed ? "bucket" : "width";
  const hatch = chart.hatch(), top = (at) => box.top + 6 + at * BAR;
  chart.axisX(x, "slots");
  shown.forEach((bar, at) => {
    const used = x(bar.tokens), end = x(bar.slots), padding = { x: used, y: top(at), width: Math.max(end - used, 0), height: BAR - 8 };
    const name = bar.name.length > 14 ? bar.name.slice(0, 13) + "…" : bar.name;
    add(svg, "text", { x: box.left - 8, y: top(at) + 15, "text-anchor": "end", class: "strong" }, name);
    add(svg, "rect", { class: "used", x: box.left, y: top(at), width: Math.max(used - box.left, 0), height: BAR - 8 });
    add(svg, "rect", { class: "waste", ...padding });
    add(svg, "rect", { fill: hatch, ...padding });
    add(svg, "text", { x: end + 7, y: top(at) + 15, class: "strong" }, percent(bar.fill));
  });
  byId("fill-words").textContent = fillWords(shown, what);
  return {
    items: {
      count: shown.length,
      nearest: (_, py) => (py < box.top || py > box.bottom ? null : Math.max(0, Math.floor((py - box.top - 6) / BAR))),
      place: (at) => ({ x: box.left, y: top(at), w: x(shown[at].slots) - box.left, h: BAR - 8 }),
      text: (at) => {
        const bar = shown[at];
        return `${what} ${bar.name}\n${plural(bar.sequences, "sample")} in ${microbatches(bar.microbatches)}\n`
          + `${plural(bar.tokens, "token")}, ${count(bar.padding)} padding\n`
          + `${percent(bar.fill, 2)} full, ${percent(share(bar.slots, slots))} of all slots`;
      },
    },
    label: `Bars of slots by ${what}, padding marked. ${byId("fill-words").textContent}`,
    table: () => ({
      head: [what, "samples", "microbatches", "tokens", "padding", "fill"],
      rows: shown.map((bar) => [bar.name, ...[bar.sequences, bar.microbatches, bar.tokens, bar.padding].map(count), percent(bar.fill, 2)]),
    }),
  };
}

function fillWords(shown, what) {
  if (!shown.length) return "This epoch has no microbatches.";
  const padding = shown.reduce((sum, bar) => sum + bar.padding, 0), worst = shown.reduce((a, b) => (b.padding > a.padding ? b : a));
  if (!padding) return "There is no padding at all.";
  return `Bars are as long as the slots paid for; the hatched end is padding. ${what[0].toUpperCase() + what.slice(1)} ${worst.name} holds `
    + `${percent(share(worst.padding, padding))} of all padding; it is ${percent(worst.fill)} full.${forAllRanks()}`;
}

const FEW_SHAPES = 360;

function paintShapes(chart) {
  const shapes = shapesOf(look), { box, svg } = chart, few = shapes.length <= FEW_SHAPES, { microbatches: all } = facts();
  const x = shapeScale(shapes.map((shape) => shape.width), box.left + 16, box.right - 18);
  const y = shapeScale(shapes.map((shape) => shape.rows), box.bottom - 14, box.top + 14);
  chart.axisY(y, "rows", whole);
  chart.axisX(x, "width in tokens" + (x.log ? " (log)" : ""), whole);
  const cells = gathered(shapes, x, y, few ? 0 : 10), most = Math.max(1, ...cells.map((cell) => cell.times));
  for (const cell of cells) {
    const weight = Math.sqrt(cell.times / most);
    cell.r = few ? Math.max(2.5, 17 * weight) : 5;
    if (few) add(svg, "circle", { class: "dot", cx: cell.px, cy: cell.py, r: cell.r });
    else add(svg, "rect", { class: "cell", x: cell.px - 4.5, y: cell.py - 4.5, width: 9, height: 9, "fill-opacity": 0.15 + 0.85 * weight });
  }
  byId("shapes-words").textContent = shapeWords(shapes, all, few);
  const span = (list, name) => range(Math.min(...list.map((s) => s[name])), Math.max(...list.map((s) => s[name])));
  return {
    items: {
      count: cells.length,
      nearest: (px, py) => {
        const far = cells.map((cell) => (cell.px - px) ** 2 + (cell.py - py) ** 2), best = far.indexOf(Math.min(...far));
        return far[best] < 24 * 24 ? best : null;
      },
      place: (i) => ({ x: cells[i].px, y: cells[i].py, r: cells[i].r + 2 }),
      text: (i) => `${span(cells[i].list, "rows")} rows × ${span(cells[i].list, "width")} wide\n`
        + `${microbatches(cells[i].times)}, ${percent(share(cells[i].times, all), 2)}`
        + (cells[i].list.length > 1 ? `\n${count(cells[i].list.length)} shapes` : ""),
    },
    label: `Map of batch shapes, rows by width. ${byId("shapes-words").textContent}`,
    table: () => shapeTable(shapes),
  };
}

function shapeScale(values, from, to) {
  const low = values.length ? Math.min(...values) : 0, high = values.length ? Math.max(...values) : 1;
  return high > 8 * low && low > 0 ? logarithmic(low, high, from, to) : linear(low - (low === high), high + (low === high), from, to);
}

// Shapes that fall into one square of `size` pixels, together; each by itself if size is 0.
function gathered(shapes, x, y, size) {
  const cells = new Map(), snap = (value) => (size ? Math.round(value / size) * size : value);
  for (const shape of shapes) {
    const px = snap(x(shape.width)), py = snap(y(shape.rows)), key = `${px},${py}`;
    const cell = cells.get(key) || { px, py, times: 0, list: [] };
    cell.times += shape.times;
    cell.list.push(shape);
    cells.set(key, cell);
  }
  return [...cells.values()].sort((a, b) => a.px - b.px || a.py - b.py);
}

function shapeWords(shapes, all, few) {
  if (!shapes.length) return "There are no microbatches.";
  const common = shapes.reduce((a, b) => (b.times > a.times ? b : a));
  return `${plural(shapes.length, "distinct shape")} in ${microbatches(all)}: so many programs for a model that compiles one for each. `
    + `The most frequent, ${count(common.rows)} × ${count(common.width)}, comes ${plural(common.times, "time")}. `
    + (few ? "A larger circle is a more frequent shape." : "Neighbouring shapes share a square; a stronger colour holds more microbatches.")
    + forAllRanks();
}

function shapeTable(shapes) {
  const sorted = [...shapes].sort((a, b) => b.times - a.times), rest = sorted.slice(40);
  const rows = sorted.slice(0, 40).map((s) => [`${count(s.rows)} × ${count(s.width)}`, count(s.rows), count(s.width), count(s.times)]);
  if (rest.length) rows.push([`${plural(rest.length, "more shape")}`, "", "", count(rest.reduce((sum, s) => sum + s.times, 0))]);
  return { head: ["shape", "rows", "width", "microbatches"], rows };
}
