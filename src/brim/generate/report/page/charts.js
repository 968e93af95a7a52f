// Charts of the responses: stacked histograms, bars, and curves with a band.

const NONE = "–";
const decimal = (x, digits = 3) => (x === null ? NONE : (x < 0 && Number(x.toFixed(digits)) !== 0 ? "−" : "") + Math.abs(x).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const axisNumber = (x) => (x < 0 ? "−" : "") + brief(Math.abs(x));

const DIVIDED = {
  ending: [["eos", "eos"], ["stop", "stop"], ["length", "length: cut off"]],
  score: [["yes", "solved"], ["no", "not solved"], ["none", "no score"]],
};

// The parts of a division that have anything in them: [{kind, name, counts}].
function partsOf(figure, by) {
  const names = figure.counts[by].length > 1 ? DIVIDED[by] : [["yes", "tokens"]];
  return figure.counts[by].map((counts, i) => ({ kind: names[i][0], name: names[i][1], counts })).filter((part) => total(part.counts));
}

function legend(id, parts) {
  const list = byId(id);
  list.replaceChildren();
  for (const { kind, name } of parts) {
    const item = add(list, "li"), svg = add(item, "svg", { viewBox: "0 0 14 14", "aria-hidden": "true" });
    add(svg, "rect", { class: `part ${kind}`, width: 14, height: 14 });
    item.append(name);
  }
}

// about: figure, by, name (of the number), unit, things (what is counted), isWhole, mean.
function paintStack(chart, about) {
  const { figure, by, name, unit, things, isWhole, mean = null } = about, { bins } = figure, { box, svg } = chart, parts = partsOf(figure, by);
  const end = (bin) => bin[1] + (isWhole ? 1 : 0), sums = bins.map((_, i) => total(parts.map((part) => part.counts[i]))), all = total(sums);
  const x = linear(bins[0][0], end(bins.at(-1)), box.left, box.right), y = linear(0, Math.max(...sums), box.bottom, box.top), below = bins.map(() => 0);
  chart.axisY(y, things, whole);
  for (const { kind, counts } of parts) {
    const path = counts.map((value, i) => {
      if (!value) return "";
      const left = x(bins[i][0]), right = x(end(bins[i])), gap = right - left > 4 ? 1 : 0, bottom = y(below[i]);
      below[i] += value;
      return `M${(left + gap / 2).toFixed(1)} ${bottom.toFixed(1)}V${Math.min(y(below[i]), bottom - 0.5).toFixed(1)}H${(right - gap / 2).toFixed(1)}V${bottom.toFixed(1)}Z`;
    }).join("");
    add(svg, "path", { class: `part ${kind}`, d: path });
  }
  chart.axisX(x, unit, isWhole ? whole : axisNumber);
  if (mean !== null) {
    const at = x(mean), isRight = at > (box.left + box.right) / 2;
    add(svg, "line", { class: "edge", x1: at, x2: at, y1: box.top - 8, y2: box.bottom });
    add(svg, "text", { class: "edge-text", x: at + (isRight ? -5 : 5), y: box.top - 4, "text-anchor": isRight ? "end" : "start" }, `mean ${isWhole ? decimal(mean, 1) : decimal(mean)}`);
  }
  const digits = isWhole ? 0 : Math.max(0, Math.min(6, 1 - Math.floor(Math.log10(bins[0][1] - bins[0][0]))));
  const named = (i) => {
    if (isWhole) return range(...bins[i]);
    if (figure.open[0] && i === 0) return `below ${decimal(bins[i][1], digits)}`;
    if (figure.open[1] && i === bins.length - 1) return `${decimal(bins[i][0], digits)} and above`;
    return `${decimal(bins[i][0], digits)} to ${decimal(bins[i][1], digits)}`;
  };
  return {
    items: {
      count: bins.length,
      nearest: (px) => (inside(chart, px) ? Math.max(0, bins.findIndex((bin) => px <= x(end(bin)))) : null),
      place: (i) => ({ x: x(bins[i][0]), y: y(sums[i]), w: x(end(bins[i])) - x(bins[i][0]), h: box.bottom - y(sums[i]) }),
      text: (i) => [`${name} ${named(i)}`, `${count(sums[i])} ${things}, ${percent(share(sums[i], all), 2)}`,
        ...(parts.length > 1 ? parts.filter((part) => part.counts[i]).map((part) => `${part.name} ${count(part.counts[i])}`) : [])].join("\n"),
    },
    label: `Histogram of ${count(all)} ${things} by ${name}, from ${named(0)} to ${named(bins.length - 1)}`
      + `${mean === null ? "" : `, mean ${decimal(mean, isWhole ? 1 : 3)}`}. ${parts.map((part) => `${part.name}: ${count(total(part.counts))}`).join(", ")}.`,
    table: () => ({
      head: [name, ...parts.map((part) => part.name), ...(parts.length > 1 ? ["all"] : []), "share"],
      rows: bins.map((_, i) => [named(i), ...parts.map((part) => count(part.counts[i])), ...(parts.length > 1 ? [count(sums[i])] : []), percent(share(sums[i], all), 2)]),
    }),
  };
}

const ROW = 32;

function paintEndings(chart) {
  const { box, svg } = chart, rows = data.endings, x = linear(0, Math.max(...rows.map((row) => row[1])), box.left, box.right - 92), top = (i) => box.top + i * ROW;
  chart.axisX(x, "responses", whole);
  rows.forEach(([reason, many], i) => {
    add(svg, "text", { class: "strong", x: box.left - 8, y: top(i) + 18, "text-anchor": "end" }, reason);
    add(svg, "rect", { class: `part ${reason}`, x: box.left, y: top(i) + 4, width: Math.max(x(many) - box.left, many ? 1 : 0), height: ROW - 10 });
    add(svg, "text", { class: "strong", x: x(many) + 7, y: top(i) + 18 }, `${count(many)}, ${percent(share(many, data.responses))}`);
  });
  return {
    items: {
      count: rows.length,
      nearest: (_, py) => (py < box.top || py > box.bottom ? null : Math.min(rows.length - 1, Math.floor((py - box.top) / ROW))),
      place: (i) => ({ x: box.left, y: top(i) + 4, w: x(rows[i][1]) - box.left, h: ROW - 10 }),
      text: (i) => `${DIVIDED.ending[i][1]}\n${plural(rows[i][1], "response")}, ${percent(share(rows[i][1], data.responses), 2)}`,
    },
    label: `Bars of responses by what ended them: ${rows.map((row) => `${row[0]} ${count(row[1])}`).join(", ")}.`,
    table: () => ({ head: ["ended by", "responses", "share"], rows: rows.map((row) => [row[0], count(row[1]), percent(share(row[1], data.responses), 2)]) }),
  };
}

// Prompts by how many of their responses are solved; the hatched part has no differences to learn from.
function paintSolved(chart) {
  const { box, svg } = chart, { bars, all } = data.solved, wide = (box.right - box.left) / bars.length, hatch = chart.hatch();
  const y = linear(0, Math.max(...bars.map((bar) => bar[1])), box.bottom, box.top), every = Math.ceil(Math.max(...bars.map((bar) => bar[0].length)) * 7.2 / wide);
  const place = (i) => ({ x: box.left + i * wide + wide * 0.08, y: y(bars[i][1]), w: wide * 0.84, h: box.bottom - y(bars[i][1]) });
  chart.axisY(y, "prompts", whole);
  bars.forEach(([name, prompts, alike], i) => {
    const { x, w } = place(i), top = y(prompts), dead = { x, width: w, y: y(alike), height: box.bottom - y(alike) };
    add(svg, "rect", { class: "used", x, y: top, width: w, height: Math.max(y(alike) - top, 0) });
    if (alike) {
      add(svg, "rect", { class: "waste", ...dead });
      add(svg, "rect", { fill: hatch, ...dead });
    }
    if (prompts && wide > 24) add(svg, "text", { class: "strong", x: x + w / 2, y: top - 5, "text-anchor": "middle" }, count(prompts));
    if (i % every === 0 || i === bars.length - 1 && (bars.length - 1) % every > every / 2) add(svg, "text", { x: x + w / 2, y: box.bottom + 17, "text-anchor": "middle" }, name);
  });
  add(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
  add(svg, "text", { x: box.right, y: chart.height - 6, "text-anchor": "end" }, "solved responses of a prompt");
  return {
    items: {
      count: bars.length,
      nearest: (px) => (inside(chart, px) ? Math.max(0, Math.min(bars.length - 1, Math.floor((px - box.left) / wide))) : null),
      place,
      text: (i) => `${bars[i][0]} solved\n${plural(bars[i][1], "prompt")}, ${percent(share(bars[i][1], all))}`
        + (bars[i][2] ? `\n${bars[i][2] === bars[i][1] ? "all" : count(bars[i][2])} with equal scores: nothing to learn` : ""),
    },
    label: `Prompts by the number of their responses that are solved: ${bars.map((bar) => `${bar[0]}: ${count(bar[1])}`).join(", ")}.`,
    table: () => ({ head: ["solved", "prompts", "share", "with equal scores"], rows: bars.map((bar) => [bar[0], count(bar[1]), percent(share(bar[1], all)), count(bar[2])]) }),
  };
}

// An axis of the numbers 1 to n, as many of them as there is room for.
function axisSteps(chart, scale, n, name) {
  const { left, right, bottom } = chart.box, skip = Math.ceil(n / Math.max(2, Math.floor((right - left) / 36)));
  add(chart.svg, "line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
  for (let k = 1; k <= n; k += skip) add(chart.svg, "text", { x: scale(k), y: bottom + 17, "text-anchor": "middle" }, count(k));
  add(chart.svg, "text", { x: right, y: chart.height - 6, "text-anchor": "end" }, name);
}

// about: first, last (of each point), curve {mean, low?, high?}, name, unit, along, format, span [low, high] of the axis, more(i), what (head of the table).
function paintCurve(chart, about) {
  const { first, last, curve, name, unit, along, format = decimal, span = null, more = () => "" } = about, { box, svg } = chart, { mean, low = null, high = null } = curve;
  const seen = [mean, low, high].flatMap((values) => (values || []).filter((value) => value !== null)), middle = (i) => (first[i] + last[i]) / 2;
  const [least, most] = span || [Math.min(...seen, 0), Math.max(...seen, 0)];
  const scale = linear(first[0] - (last.at(-1) === first[0] ? 0.5 : 0), last.at(-1) + (last.at(-1) === first[0] ? 0.5 : 0), box.left, box.right);
  const x = (i) => scale(middle(i)), y = linear(least, most > least ? most : least + 1, box.bottom, box.top);
  chart.axisY(y, unit, about.tick || axisNumber);
  if (about.steps) axisSteps(chart, scale, last.at(-1), along); else chart.axisX(scale, along, whole);
  if (low) for (let i = 0, from = 0; i <= mean.length; i++) {  // a band over each run of points without a gap
    if (i < mean.length && low[i] !== null) continue;
    const back = Array.from({ length: i - from }, (_, k) => `L${x(i - 1 - k).toFixed(1)} ${y(low[i - 1 - k]).toFixed(1)}`).join("");
    if (i > from) add(svg, "path", { class: "band", d: pathOf(high.slice(from, i), (k) => x(from + k), y) + back + "Z" });
    from = i + 1;
  }
  add(svg, "path", { class: "curve", d: pathOf(mean, x, y) });
  if (mean.length <= 40) mean.forEach((value, i) => { if (value !== null) add(svg, "circle", { class: "spot", cx: x(i), cy: y(value), r: 3 }); });
  const known = mean.filter((value) => value !== null), quartiles = (i) => (low && low[i] !== null ? `\nmiddle half ${format(low[i])} to ${format(high[i])}` : "");
  return {
    items: {
      count: mean.length,
      nearest: (px) => {
        if (!inside(chart, px)) return null;
        const far = mean.map((_, i) => Math.abs(x(i) - px));
        return far.indexOf(Math.min(...far));
      },
      place: (i) => ({ x: x(i), y: y(mean[i] ?? least) }),
      text: (i) => `${about.what} ${range(first[i], last[i])}\n${name} ${format(mean[i])}${quartiles(i)}${more(i)}`,
    },
    label: `${name[0].toUpperCase() + name.slice(1)} by ${along}, from ${format(known[0])} at the beginning to ${format(known.at(-1))} at the end.`,
    table: () => ({
      head: [about.what, name, ...(low ? ["lower quartile", "upper quartile"] : []), ...(about.alive ? ["responses"] : [])],
      rows: mean.map((value, i) => [range(first[i], last[i]), format(value), ...(low ? [format(low[i]), format(high[i])] : []), ...(about.alive ? [count(about.alive[i])] : [])]),
    }),
  };
}

function paintPositions(chart, name, words) {
  const { first, last, alive } = data.positions;
  return paintCurve(chart, { first, last, alive, curve: data.positions[name], name: words, unit: "nats", along: "token", what: "tokens", more: (i) => `\n${plural(alive[i], "response")}` });
}

function paintTries(chart) {
  const tries = data.solved.tries, numbers = tries.map((_, i) => i + 1);
  const format = (value) => (value === null ? NONE : percent(value));
  return paintCurve(chart, { first: numbers, last: numbers, curve: { mean: tries }, name: "solved", unit: "share of prompts", along: "responses, k", what: "k =", steps: true, format, span: [0, 1], tick: (value) => percent(value, 0) });
}
