// The sections of the page: what each chart draws, and its numbers in words.

const byId = (id) => document.getElementById(id);
const state = { epoch: 0, ranks: data.ranks[0], rank: null, axis: "linear", by: "band", metric: "width", sort: "order" };
let look = null;

const signed = (x, digits = 3) => (x < 0 ? "−" : "") + Math.abs(x).toFixed(digits);
const range = (low, high) => (low === high ? count(low) : `${count(low)}–${count(high)}`);
const share = (part, whole) => (whole ? part / whole : 0);
const facts = () => {
  const [microbatches, sequences, tokens, slots, shapes] = look.world.facts[look.seen];
  return { microbatches, sequences, tokens, slots, shapes, waste: 1 - (slots ? tokens / slots : 1) };
};
const who = () => (data.share !== null ? `rank ${data.share} of ${state.ranks}` : state.ranks === 1 ? "one rank" : state.rank === null ? `all ${state.ranks} ranks` : `rank ${state.rank} of ${state.ranks}`);

function paintLengths(chart) {
  const { lengths } = data, bins = lengths[state.axis], { box, svg } = chart, log = state.axis === "log";
  const low = bins[0][0], high = bins.at(-1)[1] + 1;
  const x = (log ? logarithmic : linear)(log ? Math.max(low, 1) : low, high, box.left, box.right);
  const y = linear(0, Math.max(...bins.map((bin) => bin[2])), box.bottom, box.top + 14);
  chart.axisY(y, "samples");
  for (const bin of bins) {
    const left = x(bin[0]), right = x(bin[1] + 1), gap = right - left > 4 ? 1 : 0;
    add(svg, "rect", { class: "used", x: left, y: y(bin[2]), width: Math.max(right - left - gap, 0.5), height: box.bottom - y(bin[2]) });
  }
  chart.axisX(x, log ? "length in tokens (log)" : "length in tokens");
  marks(chart, x, data.bucketed ? data.bands.map((band) => [band[1], String(band[1])]) : [], box.top, "edge", 1);
  marks(chart, x, Object.entries(lengths.percentiles).map(([name, value]) => [value, `p${name}`]), box.bottom + 39, "tick", 0.5);
  return {
    items: {
      count: bins.length,
      nearest: (px) => (px < box.left - 4 || px > box.right + 4 ? null : Math.max(0, bins.findIndex((bin) => px <= x(bin[1] + 1)))),
      place: (i) => ({ x: x(bins[i][0]), y: y(bins[i][2]), w: x(bins[i][1] + 1) - x(bins[i][0]), h: box.bottom - y(bins[i][2]) }),
      text: (i) => `${range(bins[i][0], bins[i][1])} tokens\n${plural(bins[i][2], "sample")}, ${percent(bins[i][2] / lengths.count, 2)}`,
    },
    label: `Histogram of ${plural(lengths.count, "sample")} by length, ${state.axis} axis: from ${count(lengths.shortest)} to ${count(lengths.longest)} tokens, half are at most ${count(lengths.percentiles[50])}.`,
    table: () => ({ head: ["length in tokens", "samples", "share"], rows: bins.map((bin) => [range(bin[0], bin[1]), count(bin[2]), percent(bin[2] / lengths.count, 2)]) }),
  };
}

// Vertical marks with labels; a label that would touch the one before it is left out.
function marks(chart, x, list, at, kind, overlap) {
  const { box, svg } = chart;
  let free = -Infinity;
  for (const [value, text] of list) {
    const px = x(value + overlap);
    if (px > box.right + 1) continue;
    if (kind === "edge") add(svg, "line", { class: "edge", x1: px, x2: px, y1: box.top + 4, y2: box.bottom });
    else add(svg, "path", { class: "strong", d: `M${px} ${box.bottom + 21}l-4 6h8z` });
    const wide = text.length * 7 + 6;
    if (px - wide / 2 < free) continue;
    free = px + wide / 2;
    add(svg, "text", { x: px, y: at, "text-anchor": "middle", class: kind === "edge" ? "edge-text" : "strong" }, text);
  }
}

function bandNames() {
  if (state.by === "group") return data.groups.map((name) => name || "(no group)");
  return data.bands.map((band) => range(...band));
}

function paintFill(chart) {
  const names = bandNames(), sums = sumsBy(look, state.by, names.length), shown = names.map((_, i) => i).filter((i) => sums[i].slots);
  const total = shown.reduce((sum, i) => sum + sums[i].slots, 0), padding = (i) => sums[i].slots - sums[i].tokens;
  const all = shown.reduce((sum, i) => sum + padding(i), 0), { box, svg } = chart, tall = 30;
  const x = linear(0, Math.max(1, ...shown.map((i) => sums[i].slots)), box.left, box.right - 64);
  const hatch = chart.hatch(), top = (at) => box.top + 6 + at * tall;
  chart.axisX(x, "slots");
  shown.forEach((i, at) => {
    const used = x(sums[i].tokens), end = x(sums[i].slots), name = names[i].length > 14 ? names[i].slice(0, 13) + "…" : names[i];
    add(svg, "text", { x: box.left - 8, y: top(at) + 15, "text-anchor": "end", class: "strong" }, name);
    add(svg, "rect", { class: "used", x: box.left, y: top(at), width: Math.max(used - box.left, 0), height: tall - 8 });
    add(svg, "rect", { class: "waste", x: used, y: top(at), width: Math.max(end - used, 0), height: tall - 8 });
    add(svg, "rect", { fill: hatch, x: used, y: top(at), width: Math.max(end - used, 0), height: tall - 8 });
    add(svg, "text", { x: end + 7, y: top(at) + 15, class: "strong" }, percent(share(sums[i].tokens, sums[i].slots)));
  });
  const what = state.by === "group" ? "group" : data.bucketed ? "bucket" : "width";
  const worst = shown.length ? shown.reduce((a, b) => (padding(b) > padding(a) ? b : a)) : null;
  byId("fill-words").textContent = worst === null ? "This epoch has no microbatches." : all === 0 ? "There is no padding at all." :
    `Bars are as long as the slots paid for; the hatched end is padding. ${what[0].toUpperCase() + what.slice(1)} ${names[worst]} holds ${percent(share(padding(worst), all))} of all padding; it is ${percent(share(sums[worst].tokens, sums[worst].slots))} full.`
    + (look.world.merged && state.rank !== null ? " Shown for all ranks together." : "");
  const row = (i) => [names[i], count(sums[i].sequences), count(sums[i].microbatches), count(sums[i].tokens), count(padding(i)), percent(share(sums[i].tokens, sums[i].slots), 2)];
  return {
    items: {
      count: shown.length,
      nearest: (_, py) => (py < box.top || py > box.bottom ? null : Math.min(shown.length - 1, Math.max(0, Math.floor((py - box.top - 6) / tall)))),
      place: (at) => ({ x: box.left, y: top(at), w: x(sums[shown[at]].slots) - box.left, h: tall - 8 }),
      text: (at) => { const i = shown[at], sum = sums[i]; return `${what} ${names[i]}\n${plural(sum.sequences, "sample")} in ${plural(sum.microbatches, "microbatch", "microbatches")}\n${plural(sum.tokens, "token")}, ${count(padding(i))} padding\n${percent(share(sum.tokens, sum.slots), 2)} full, ${percent(share(sum.slots, total))} of all slots`; },
    },
    label: `Bars of slots by ${what}, padding marked. ${byId("fill-words").textContent}`,
    table: () => ({ head: [what, "samples", "microbatches", "tokens", "padding", "fill"], rows: shown.map(row) }),
  };
}

const fewEnough = 360;
function paintShapes(chart) {
  const shapes = shapesOf(look), { box, svg } = chart, { microbatches } = facts();
  const spread = (name) => [Math.min(...shapes.map((s) => s[name])), Math.max(...shapes.map((s) => s[name]))];
  const scale = ([low, high], from, to) => (high > 8 * low ? logarithmic(low, high, from, to) : linear(low - (low === high), high + (low === high), from, to));
  const x = scale(shapes.length ? spread("width") : [0, 1], box.left + 16, box.right - 18), y = scale(shapes.length ? spread("rows") : [0, 1], box.bottom - 14, box.top + 14);
  const whole = (value) => (Number.isInteger(value) ? brief(value) : "");
  chart.axisY(y, "rows", whole);
  chart.axisX(x, "width in tokens" + (x.log ? " (log)" : ""), whole);
  const cells = shapes.length <= fewEnough ? shapes.map((s) => ({ px: x(s.width), py: y(s.rows), times: s.times, list: [s] })) : gathered(shapes, x, y);
  const most = Math.max(1, ...cells.map((cell) => cell.times));
  for (const cell of cells) {
    if (shapes.length <= fewEnough) {
      cell.r = Math.max(2.5, 17 * Math.sqrt(cell.times / most));
      add(svg, "circle", { class: "dot", cx: cell.px, cy: cell.py, r: cell.r });
    } else {
      add(svg, "rect", { class: "cell", x: cell.px - 4.5, y: cell.py - 4.5, width: 9, height: 9, "fill-opacity": (0.15 + 0.85 * Math.sqrt(cell.times / most)).toFixed(3) });
    }
  }
  const common = shapes.reduce((a, b) => (a === null || b.times > a.times ? b : a), null);
  byId("shapes-words").textContent = common === null ? "There are no microbatches." :
    `${plural(shapes.length, "distinct shape")} in ${plural(microbatches, "microbatch", "microbatches")}: so many programs for a model that compiles one for each. `
    + `The most frequent, ${count(common.rows)} × ${count(common.width)}, comes ${plural(common.times, "time")}. `
    + (shapes.length <= fewEnough ? "A larger circle is a more frequent shape." : "Neighbouring shapes share a square; a darker one holds more microbatches.")
    + (look.world.merged && state.rank !== null ? " Shown for all ranks together." : "");
  const span = (list, name) => range(Math.min(...list.map((s) => s[name])), Math.max(...list.map((s) => s[name])));
  const sorted = () => [...shapes].sort((a, b) => b.times - a.times);
  return {
    items: {
      count: cells.length,
      nearest: (px, py) => {
        let best = null, near = 24 * 24;
        cells.forEach((cell, i) => { const d = (cell.px - px) ** 2 + (cell.py - py) ** 2; if (d < near) { near = d; best = i; } });
        return best;
      },
      place: (i) => ({ x: cells[i].px, y: cells[i].py, r: (cells[i].r || 5) + 2 }),
      text: (i) => `${span(cells[i].list, "rows")} rows × ${span(cells[i].list, "width")} wide\n${plural(cells[i].times, "microbatch", "microbatches")}, ${percent(share(cells[i].times, microbatches), 2)}` + (cells[i].list.length > 1 ? `\n${count(cells[i].list.length)} shapes` : ""),
    },
    label: `Map of batch shapes, rows by width. ${byId("shapes-words").textContent}`,
    table: () => ({ head: ["shape", "rows", "width", "microbatches"], rows: sorted().slice(0, 40).map((s) => [`${count(s.rows)} × ${count(s.width)}`, count(s.rows), count(s.width), count(s.times)]).concat(shapes.length > 40 ? [[`${count(shapes.length - 40)} more shapes`, "", "", count(sorted().slice(40).reduce((sum, s) => sum + s.times, 0))]] : []) }),
  };
}

function gathered(shapes, x, y) {
  const cells = new Map();
  for (const shape of shapes) {
    const px = Math.round(x(shape.width) / 10) * 10, py = Math.round(y(shape.rows) / 10) * 10, key = `${px},${py}`;
    const cell = cells.get(key) || { px, py, times: 0, list: [] };
    cell.times += shape.times;
    cell.list.push(shape);
    cells.set(key, cell);
  }
  return [...cells.values()].sort((a, b) => a.px - b.px || a.py - b.py);
}

function paintOrder(chart) {
  const value = metricOf(look, state.metric), values = Float64Array.from(look.at, value), n = values.length, { box, svg } = chart;
  chart.extent = n;
  if (chart.view && chart.view[1] > n) chart.view = null;
  const shown = chart.shown(), x = linear(shown[0], Math.max(shown[1], shown[0] + 1), box.left, box.right);
  const high = values.reduce((a, b) => Math.max(a, b), 1), y = linear(0, high, box.bottom, box.top);
  const unit = { width: "width in tokens", tokens: "tokens", cost: "cost in slots" }[state.metric];
  chart.axisY(y, unit);
  chart.axisX(x, look.world.merged ? `runs of ${plural(look.world.merged, "step")}, in order` : "microbatch, in order", (v) => (Number.isInteger(v) ? brief(v) : ""));
  scatter(chart, values, x, y, shown);
  const short = look.world.last_step < look.world.step_size, tail = n ? n - look.world.last_step / (state.rank === null ? 1 : look.world.ranks) : 0;
  if (short && !look.world.merged && tail >= shown[0] && tail <= shown[1]) {
    add(svg, "line", { class: "edge", x1: x(tail), x2: x(tail), y1: box.top, y2: box.bottom });
    add(svg, "text", { class: "edge-text", x: x(tail) - 5, y: box.top + 10, "text-anchor": "end" }, "short last step");
  }
  const words = orderWords(n);
  byId("order-words").replaceChildren(...words.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
  const { columns } = look;
  const text = (i) => {
    const at = look.at[i], used = columns.slots[at] - columns.padding[at];
    const shape = look.world.merged ? `${plural(columns.count[at], "microbatch", "microbatches")}, ${count(columns.width[at])} wide on average` : `${count(columns.rows[at])} rows × ${count(columns.width[at])} wide`;
    const group = columns.group ? `\ngroup ${data.groups[columns.group[at]] || "(none)"}` : "";
    return `${look.world.merged ? "run" : "microbatch"} ${count(i)} of ${count(n)}\nstep ${count(stepOf(look, i))}, rank ${rankOf(look, i)}\n${shape}\n${plural(used, "token")}, ${percent(share(columns.padding[at], columns.slots[at]))} padding\ncost ${count(columns.cost[at])} slots${group}`;
  };
  return {
    items: {
      count: n,
      nearest: (px) => (px < box.left || px > box.right || !n ? null : Math.max(0, Math.min(n - 1, Math.floor(chart.valueAt(px))))),
      place: (i) => {
        if (i + 1 < shown[0] || i > shown[1]) { const size = shown[1] - shown[0]; chart.zoomTo([i - size / 2, i + size / 2]); return chart.items.place(i); }
        return { x: x(i + 0.5), y: y(values[i]) };
      },
      text,
    },
    label: `${state.metric} of ${plural(n, "microbatch", "microbatches")} in the order of epoch ${look.epoch.epoch}. ${words.join(" ")}`,
    table: () => ({ head: ["part of the epoch", `mean ${state.metric}`, "lowest", "highest"], rows: parts(n, 20).map(([a, b]) => { const part = values.subarray(a, b); return [range(a, b - 1), count(part.reduce((p, q) => p + q, 0) / part.length), count(Math.min(...part)), count(Math.max(...part))]; }) }),
  };
}

const parts = (n, wanted) => Array.from({ length: Math.min(n, wanted) }, (_, i) => [Math.floor((i * n) / Math.min(n, wanted)), Math.floor(((i + 1) * n) / Math.min(n, wanted))]);

function orderWords(n) {
  const { world } = look, [lag, stepLag, trend, tail] = world.stats[state.metric][look.seen], metric = state.metric;
  if (!n) return ["There are no microbatches."];
  const chance = (m) => 1.96 / Math.sqrt(Math.max(m, 1)), words = [];
  const grouped = world.step_size > 1, r = grouped ? stepLag : lag, many = grouped ? world.steps : facts().microbatches;
  if (trend === null) words.push(n < 3 ? "So few microbatches have no order to speak of." : `All microbatches have the same ${metric}: in this respect any order is like another.`);
  else if (r === null) words.push(`Too few steps to say whether their order is random; position and ${metric} have a rank correlation of ${signed(trend)}.`);
  else {
    const odd = Math.abs(r) > 1.7 * chance(many) || Math.abs(trend) > 1.7 * chance(many);
    const what = grouped ? "steps" : "microbatches";
    words.push(`${odd ? "The order is not quite random" : "The order looks random"}: neighbouring ${what} have a lag-1 correlation of ${signed(r)}, position and ${metric} a rank correlation of ${signed(trend)}; chance alone gives up to ±${chance(many).toFixed(3)}.`);
  }
  if (grouped && lag !== null) words.push(`Inside a step microbatches are alike on purpose, so that ranks finish together: counted one by one, the lag-1 correlation is ${signed(lag)}.`);
  const full = world.last_step === world.step_size, last1 = Math.max(1, Math.floor(facts().microbatches / 100));
  const left = [world.nulls ? plural(world.nulls, "empty microbatch", "empty microbatches") : "", world.dropped ? `${count(world.dropped)} dropped` : "", world.repeated ? `${count(world.repeated)} repeated` : ""].filter(Boolean).join(", ");
  const last = full ? "The last step is full" : `The last step is short, with ${count(world.last_step)} of ${plural(world.step_size, "microbatch", "microbatches")}`;
  words.push(`${last}${left ? ` (${left} over all ranks)` : ""}. ` + (tail === null ? "" : `${last1 === 1 ? "The last microbatch has" : `The last ${count(last1)} microbatches (1%) have`} ${percent(tail)} of the mean ${metric}.`));
  return words;
}

function paintCost(chart) {
  const costs = costsOf(look), { box } = chart, alone = look.world.ranks === 1, n = costs.steps, run = look.world.merged || 1;
  const values = alone ? costs.own : Float64Array.from(costs.own, (own, i) => (costs.mean[i] ? own / costs.mean[i] : 1));
  chart.extent = n;
  if (chart.view && chart.view[1] > n) chart.view = null;
  const shown = chart.shown(), x = linear(shown[0], Math.max(shown[1], shown[0] + 1), box.left, box.right);
  // Empty microbatches make the mean of a short last step small; it is cut off at the top rather than flattening all others.
  const cut = !alone && look.world.last_step < look.world.step_size && n > 1, whole = cut ? values.subarray(0, n - 1) : values;
  const high = whole.reduce((a, b) => Math.max(a, b), alone ? 1 : 1.01), low = alone ? 0 : Math.min(1, whole.reduce((a, b) => Math.min(a, b), 1));
  const drawn = values.map((value) => Math.min(value, high));
  const y = linear(low, high, box.bottom, box.top), format = alone ? brief : (v) => Math.round((v - 1) * 1000) / 10 + "%";
  const name = alone ? "cost of the step in slots" : state.rank === null ? "slowest rank above the mean" : `rank ${state.rank} against the mean`;
  chart.axisY(y, name, format);
  chart.axisX(x, run > 1 ? `runs of ${plural(run, "step")}` : "optimizer step", (v) => (Number.isInteger(v) ? brief(v * run) : ""));
  scatter(chart, drawn, x, y, shown, alone ? null : 1);
  if (cut && values[n - 1] > high) add(chart.svg, "text", { class: "edge-text", x: box.right, y: box.top - 4, "text-anchor": "end" }, `short last step: ${format(values[n - 1])}`);
  byId("cost-words").textContent = costWords(costs);
  return {
    items: {
      count: n,
      nearest: (px) => (px < box.left || px > box.right || !n ? null : Math.max(0, Math.min(n - 1, Math.floor(chart.valueAt(px))))),
      place: (i) => ({ x: Math.max(box.left, Math.min(box.right, x(i + 0.5))), y: y(drawn[i]) }),
      text: (i) => `step ${run > 1 ? range(i * run, Math.min((i + 1) * run, look.world.steps) - 1) : count(i)}\n` + (alone ? `cost ${count(costs.own[i])} slots` : `mean of the ranks ${count(costs.mean[i])} slots\nslowest ${count(costs.slowest[i])}` + (state.rank === null ? "" : `\nrank ${state.rank} ${count(costs.own[i])}`)),
    },
    label: `Cost of ${plural(n, "step")} in order. ${byId("cost-words").textContent}`,
    table: () => ({ head: ["steps", "mean cost of a rank", "slowest rank", "above the mean"], rows: parts(n, 20).map(([a, b]) => { const sum = (list) => list.subarray(a, b).reduce((p, q) => p + q, 0); return [range(a * run, b * run - 1), count(sum(costs.mean) / (b - a)), count(sum(costs.slowest) / (b - a)), percent(share(sum(costs.slowest), sum(costs.mean)) - 1, 2)]; }) }),
  };
}

function costWords(costs) {
  const { imbalance, ranks } = look.world;
  if (data.share !== null) return `This is the share of rank ${data.share} of ${state.ranks}; what the other ranks cost is not in it. Cost is slots plus what attention adds to them.`;
  if (ranks === 1) return "One rank waits for no other. Cost is slots plus what attention adds to them.";
  if (imbalance === null) return "There are no microbatches.";
  const total = costs.totals.reduce((a, b) => a + b, 0) / ranks, own = state.rank === null ? null : share(costs.totals[state.rank], total) - 1;
  return `The slowest rank costs ${percent(imbalance, 2)} more than the mean of its step, so ranks wait ${percent(imbalance / (1 + imbalance), 2)} of the time for the slowest. `
    + (own === null ? "" : `Over the epoch rank ${state.rank} costs ${percent(Math.abs(own), 2)} ${own < 0 ? "less" : "more"} than the mean. `)
    + "Cost is slots plus what attention adds to them.";
}

function paintRanks(chart) {
  const { totals } = costsOf(look), { box, svg } = chart, n = totals.length, mean = totals.reduce((a, b) => a + b, 0) / n;
  const y = linear(0, Math.max(...totals, 1), box.bottom, box.top + 16), wide = (box.right - box.left) / n, gap = Math.max(wide / 5, wide - 64);
  const rank = (i) => (data.share === null ? i : data.share), off = (i) => (share(totals[i], mean) - 1 >= 0 ? "+" : "−") + percent(Math.abs(share(totals[i], mean) - 1), 2);
  chart.axisY(y, "cost of the epoch in slots");
  totals.forEach((total, i) => {
    const left = box.left + i * wide + gap / 2;
    add(svg, "rect", { class: i === state.rank ? "used chosen" : "used", x: left, y: y(total), width: Math.max(wide - gap, 0.5), height: box.bottom - y(total) });
    if (wide > 22) add(svg, "text", { x: left + (wide - gap) / 2, y: box.bottom + 17, "text-anchor": "middle" }, String(rank(i)));
    if (wide > 52 && n > 1) add(svg, "text", { x: left + (wide - gap) / 2, y: y(total) - 5, "text-anchor": "middle", class: "strong" }, off(i));
  });
  add(svg, "text", { x: box.right, y: chart.height - 6, "text-anchor": "end" }, "rank");
  const most = Math.max(...totals), least = Math.min(...totals);
  return {
    items: {
      count: n,
      nearest: (px) => (px < box.left || px > box.right ? null : Math.min(n - 1, Math.floor((px - box.left) / wide))),
      place: (i) => ({ x: box.left + i * wide + gap / 2, y: y(totals[i]), w: wide - gap, h: box.bottom - y(totals[i]) }),
      text: (i) => `rank ${rank(i)}\ncost ${count(totals[i])} slots` + (n > 1 ? `\n${off(i)} from the mean` : ""),
    },
    label: `Cost of the epoch for ${plural(n, "rank")}: from ${count(least)} to ${count(most)} slots.`,
    table: () => ({ head: ["rank", "cost in slots", "from the mean"], rows: Array.from(totals, (total, i) => [String(rank(i)), count(total), off(i)]) }),
  };
}

function paintWaste(chart) {
  const padding = Float64Array.from(look.at, (at) => look.columns.padding[at]), sorted = state.sort === "worst", n = padding.length, { box, svg } = chart;
  if (sorted) padding.sort().reverse();
  const below = new Float64Array(n + 1);
  padding.forEach((value, i) => { below[i + 1] = below[i] + value; });
  const total = below[n], x = linear(0, Math.max(n, 1), box.left, box.right), y = linear(0, Math.max(total, 1), box.bottom, box.top + 4);
  chart.axisY(y, "padding so far");
  const step = Math.max(1, Math.ceil(n / 400)), spots = [];
  for (let i = 0; i < n; i += step) spots.push(i);
  spots.push(n);
  const path = spots.map((i, at) => `${at ? "L" : "M"}${x(i).toFixed(1)} ${y(below[i]).toFixed(1)}`).join("");
  add(svg, "path", { class: "area", d: `${path}L${x(n)} ${box.bottom}L${box.left} ${box.bottom}Z` });
  add(svg, "path", { class: "straight", d: `M${x(0)} ${y(0)}L${x(n)} ${y(total)}` });
  add(svg, "path", { class: "line", d: path });
  const unit = look.world.merged ? "runs of microbatches" : "microbatches";
  chart.axisX(x, sorted ? `${unit}, worst first` : `${unit}, in order`, (v) => (Number.isInteger(v) ? brief(v) : ""));
  const [tenth, half] = look.world.waste[look.seen];
  byId("waste-words").textContent = tenth === null ? "There is no padding." :
    `${plural(total, "slot")} of padding in the epoch, ${percent(facts().waste, 2)} of what is paid for. The worst tenth of the microbatches causes ${percent(tenth)} of it; half of it is in ${percent(half)} of them. The dashed line is padding spread evenly.`;
  return {
    items: {
      count: spots.length,
      nearest: (px) => (px < box.left - 4 || px > box.right + 4 ? null : Math.max(0, Math.min(spots.length - 1, Math.round(((px - box.left) / (box.right - box.left)) * (spots.length - 1))))),
      place: (i) => ({ x: x(spots[i]), y: y(below[spots[i]]) }),
      text: (i) => `${sorted ? "the worst" : "the first"} ${count(spots[i])} (${percent(share(spots[i], n))})\n${plural(below[spots[i]], "slot")} of padding, ${percent(share(below[spots[i]], total))} of all`,
    },
    label: `Padding added up over the epoch, ${sorted ? "worst microbatches first" : "in order"}. ${byId("waste-words").textContent}`,
    table: () => ({ head: [sorted ? "worst microbatches" : "first microbatches", "share of microbatches", "padding", "share of padding"], rows: parts(n, 20).map(([, b]) => [count(b), percent(share(b, n)), count(below[b]), percent(share(below[b], total))]) }),
  };
}

const charts = {
  lengths: new Chart("lengths-chart", { height: 300, paint: paintLengths, margin: { left: 56, right: 22, top: 28, bottom: 68 } }),
  fill: new Chart("fill-chart", { height: 240, paint: paintFill, margin: { left: 104, right: 14, top: 4, bottom: 40 } }),
  shapes: new Chart("shapes-chart", { height: 320, paint: paintShapes, margin: { left: 56, right: 14, top: 30, bottom: 40 } }),
  order: new Chart("order-chart", { height: 300, canvas: true, zooms: true, paint: paintOrder, margin: { left: 56, right: 14, top: 30, bottom: 40 } }),
  cost: new Chart("cost-chart", { height: 260, canvas: true, paint: paintCost, margin: { left: 56, right: 14, top: 30, bottom: 40 } }),
  ranks: new Chart("ranks-chart", { height: 260, paint: paintRanks, margin: { left: 56, right: 14, top: 30, bottom: 40 } }),
  waste: new Chart("waste-chart", { height: 270, paint: paintWaste, margin: { left: 56, right: 14, top: 30, bottom: 40 } }),
};

function render() {
  look = lookAt(state.epoch, state.ranks, state.rank);
  const now = facts();
  const shown = { tokens: brief(now.tokens), fill: percent(1 - now.waste), microbatches: count(now.microbatches), steps: count(look.world.steps), shapes: count(now.shapes) };
  const beside = { samples: plural(now.sequences, "sequence") + " dealt", tokens: `${count(now.tokens)} of ${count(now.slots)} slots`, fill: percent(now.waste, 2) + " padding", microbatches: look.world.nulls ? `and ${count(look.world.nulls)} empty, over all ranks` : "none empty", steps: `${plural(look.world.step_size, "microbatch", "microbatches")} each` };
  for (const [name, text] of Object.entries(shown)) document.querySelector(`[data-fact="${name}"]`).textContent = text;
  for (const [name, text] of Object.entries(beside)) document.querySelector(`[data-beside="${name}"]`).textContent = text;
  byId("scope").textContent = `Epoch ${look.epoch.epoch}, ${who()}`;
  const names = bandNames(), bars = sumsBy(look, state.by, names.length).filter((sum) => sum.slots).length;
  charts.fill.resized(Math.max(1, bars) * 30 + 56);
  for (const chart of Object.values(charts)) chart.draw();
}

function option(select, value, text) { add(select, "option", { value: String(value) }, text); }

function fillRanks() {
  byId("rank").replaceChildren();
  const fixed = data.share !== null || state.ranks === 1;
  if (data.share !== null) option(byId("rank"), "all", String(data.share));
  else option(byId("rank"), "all", "all");
  if (!fixed) for (let rank = 0; rank < state.ranks; rank++) option(byId("rank"), rank, String(rank));
  byId("rank").disabled = fixed;
}

function choose(changes) {
  if ("epoch" in changes || "ranks" in changes || "rank" in changes) for (const chart of Object.values(charts)) Object.assign(chart, { view: null, at: null });
  Object.assign(state, changes);
  render();
  zoomButtons(charts.order.view);
}

function zoomButtons(view) {
  document.querySelector('[data-zoom="reset"]').disabled = !view;
}

function wire() {
  data.epochs.forEach((epoch, i) => option(byId("epoch"), i, String(epoch.epoch)));
  data.ranks.forEach((ranks) => option(byId("world"), ranks, String(ranks)));
  byId("epoch").disabled = data.epochs.length === 1;
  byId("world").disabled = data.ranks.length === 1;
  fillRanks();
  byId("epoch").addEventListener("change", (event) => choose({ epoch: Number(event.target.value) }));
  byId("world").addEventListener("change", (event) => { state.ranks = Number(event.target.value); fillRanks(); choose({ rank: null }); });
  byId("rank").addEventListener("change", (event) => choose({ rank: event.target.value === "all" ? null : Number(event.target.value) }));
  for (const name of ["axis", "by", "metric", "sort"]) {
    for (const input of document.querySelectorAll(`input[name="${name}"]`)) input.addEventListener("change", () => choose({ [name]: input.value }));
  }
  byId("fill-tools").hidden = data.groups.length === 0;
  const zooms = { in: () => charts.order.zoomBy(0.5), out: () => charts.order.zoomBy(2), reset: () => charts.order.zoomTo(null) };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", zooms[button.dataset.zoom]);
  charts.order.onzoom = zoomButtons;
  const dark = matchMedia("(prefers-color-scheme: dark)"), isDark = () => (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const themed = () => { byId("theme").textContent = isDark() ? "Light" : "Dark"; byId("theme").setAttribute("aria-pressed", String(isDark())); render(); };
  byId("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; themed(); });
  dark.addEventListener("change", themed);
  matchMedia("print").addEventListener("change", render);
  document.documentElement.classList.add("js");
  themed();
}

wire();
