// Curves over the updates of a run. A point of training is an update, or a stretch of them if there are many; a point of evaluation is one update.

const { training, evaluated, random } = data, NONE = "–";
const last = Math.max(1, data.updates);
const decimal = (x) => (x === null ? NONE : (x && Math.abs(x) < 0.001 ? x.toExponential(1) : x.toFixed(3)).replace(/-/g, "−"));
const shareOf = (x) => (x === null ? NONE : percent(x));
const known = (values) => values.filter((value) => value !== null);

// The mean of the values around each one; null where there are none.
function runningMean(values) {
  const reach = values.length > 40 ? Math.round(values.length / 40) : 0;
  return values.map((_, i) => {
    const near = known(values.slice(Math.max(0, i - reach), i + reach + 1));
    return near.length ? total(near) / near.length : null;
  });
}

// Peaks of the first updates, far above all others, do not flatten the rest of a curve: they are cut off.
function topOf(values) {
  const sorted = known(values).sort((a, b) => a - b), common = sorted[Math.floor((sorted.length - 1) * 0.95)] ?? 0, most = sorted.at(-1) ?? 0;
  return common > 0 && most > 4 * common ? 1.5 * common : most;
}

// about: name, unit, format, top (of the axis), series [{name, at, values, dots}], level {value, text}.
function paintCurves(chart, about) {
  const { name, series, format = decimal, level = null } = about, { box, svg } = chart;
  const everything = series.flatMap((one) => one.values), low = Math.min(0, ...known(everything));
  const high = Math.max(about.top ?? topOf(everything), level ? level.value : 0, low + 1e-9);
  const x = linear(0.5, last + 0.5, box.left, box.right), y = linear(low, high, box.bottom, box.top);
  const cut = (value) => (value === null ? null : Math.min(value, high));
  chart.axisY(y, about.unit || name, format === shareOf ? (value) => percent(value, high < 0.05 ? 1 : 0) : brief);
  chart.axisX(x, "update", whole);
  if (level) {
    add(svg, "line", { class: "edge", x1: box.left, x2: box.right, y1: y(level.value), y2: y(level.value) });
    add(svg, "text", { class: "edge-text", x: box.right, y: y(level.value) - 5, "text-anchor": "end" }, level.text);
  }
  series.forEach((one, at) => {
    const values = one.values.map(cut), place = (i) => x(one.at[i]), lonely = known(values).length === 1;
    if (!one.dots && values.length > 40) values.forEach((value, i) => { if (value !== null) add(svg, "circle", { class: "spot", cx: place(i).toFixed(1), cy: y(value).toFixed(1), r: 1.8 }); });
    add(svg, "path", { class: `curve ${at ? "second" : "first"}`, d: pathOf(one.dots ? values : runningMean(values), place, y) });
    if (one.dots || lonely) values.forEach((value, i) => { if (value !== null) add(svg, "circle", { class: at ? "dot" : "spot", cx: place(i).toFixed(1), cy: y(value).toFixed(1), r: 3 }); });
  });
  if (!known(everything).length) add(svg, "text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" }, "nothing was recorded");
  const columns = [...new Set(series.flatMap((one) => one.at))].sort((a, b) => a - b);
  const cell = (one, at) => { const i = one.at.indexOf(at); return i < 0 ? null : one.values[i]; };
  return {
    items: {
      count: columns.length,
      nearest: (px) => {
        if (!inside(chart, px)) return null;
        const far = columns.map((at) => Math.abs(x(at) - px));
        return far.indexOf(Math.min(...far));
      },
      place: (i) => ({ x: x(columns[i]) - 0.5, y: box.top, w: 1, h: box.bottom - box.top }),
      text: (i) => [`update ${count(columns[i])}`, ...series.filter((one) => cell(one, columns[i]) !== null).map((one) => `${one.name} ${format(cell(one, columns[i]))}`)].join("\n"),
    },
    label: `${name[0].toUpperCase() + name.slice(1)} over ${plural(data.updates, "update")}: ${series.map((one) => told(one, format)).join("; ")}${level ? `; ${level.text}` : ""}.`,
    table: () => ({ head: ["update", ...series.map((one) => one.name)], rows: columns.map((at) => [count(at), ...series.map((one) => (cell(one, at) === null ? "" : format(cell(one, at))))]) }),
  };
}

function told(one, format) {
  const values = known(one.values);
  return values.length ? `${one.name} from ${format(values[0])} to ${format(values.at(-1))}` : `${one.name} was not recorded`;
}

function paintSolved(chart) {
  const series = [{ name: "training", at: training.update, values: training.solved }, { name: "held out", at: evaluated.update, values: evaluated.solved, dots: true }];
  return paintCurves(chart, { name: "solved", unit: "share solved", format: shareOf, top: 1, series, level: random });
}

const one = (key, name, more = {}) => (chart) => paintCurves(chart, { name, series: [{ name, at: training.update, values: training[key] }], ...more });
const roomy = { left: 56, right: 22, top: 30, bottom: 40 }, small = { ...roomy, left: 46 };
const charts = [
  new Chart("solved-chart", { height: 320, margin: roomy, paint: paintSolved }),
  new Chart("loss-chart", { height: 200, margin: small, paint: one("loss", "loss") }),
  new Chart("entropy-chart", { height: 200, margin: small, paint: one("entropy", "entropy") }),
  new Chart("reward-chart", { height: 200, margin: small, paint: one("reward", "mean reward") }),
  new Chart("value-chart", { height: 200, margin: small, paint: one("value_loss", "value loss") }),
  new Chart("kl-chart", { height: 200, margin: small, paint: one("kl", "KL divergence", { unit: "nats" }) }),
  new Chart("clipped-chart", { height: 200, margin: small, paint: one("clipped", "clip fraction", { unit: "share of samples", format: shareOf }) }),
];
start(() => { for (const chart of charts) chart.draw(); });
