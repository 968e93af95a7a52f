// Lines over optimizer steps: one for each run and, where runs repeat the same experiment, their mean with its standard error.

const { runs } = data;
const several = runs.length > 1, COLOURS = 8, NONE = "–";
const lastStep = Math.max(1, ...runs.flatMap((run) => [...run.curves.step, ...run.evaluations.step]).filter((step) => step !== null));

const minus = (text) => text.replace(/-/g, "−");
const decimal = (x) => {
  if (x === null) return NONE;
  if (x && Math.abs(x) < 0.001) return minus(x.toExponential(1));
  const digits = Math.abs(x) < 100 ? 3 : 1;
  return minus(x.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
};
const shareOf = (x) => (x === null ? NONE : percent(x));
const lengthOf = (x) => (x === null ? NONE : x.toLocaleString("en-US", { maximumFractionDigits: x < 1000 ? 1 : 0 }));
const tick = (x) => minus(x && Math.abs(x) < 0.001 ? String(Number(x.toPrecision(2)).toExponential()) : brief(x));
const average = (list) => total(list) / list.length;
const errorOf = (list) => (list.length < 2 ? null : Math.sqrt(total(list.map((x) => (x - average(list)) ** 2)) / (list.length - 1) / list.length));

// The mean of the values around each one; null where there are none.
function runningMean(values) {
  const reach = values.length > 40 ? Math.round(values.length / 40) : 0;
  return values.map((_, i) => {
    const near = values.slice(Math.max(0, i - reach), i + reach + 1).filter((value) => value !== null);
    return near.length ? average(near) : null;
  });
}

// A series: {name, at: "version" or "step", values(curves), low?(curves), high?(curves)}, or {name, evaluated: true, values(evaluations), error?(evaluations)}.
// A line: {x, y, low, high, drawn}: places, values, the band, and what is drawn.
function lineOf(series, run) {
  const from = series.evaluated ? run.evaluations : run.curves, y = series.values(from);
  const x = series.evaluated ? from.step : from[series.at], error = series.error?.(from);
  const low = error ? y.map((value, i) => (value === null || error[i] === null ? null : value - error[i])) : series.low?.(from);
  const high = error ? y.map((value, i) => (value === null || error[i] === null ? null : value + error[i])) : series.high?.(from);
  return { x, y, error, raw: { low, high }, low, high, drawn: y };
}

// The same line as it is drawn: cut off at the top of the axis and, where there are many points, a running mean.
function drawnLine(line, high, evaluated) {
  const made = (values) => {
    const cut = values?.map((value) => (value === null ? null : Math.min(value, high)));
    return evaluated || !cut ? cut : runningMean(cut);
  };
  return { ...line, low: made(line.low), high: made(line.high), drawn: made(line.y) };
}

// The mean of a series over all runs, at the points that all of them have.
function meanOf(series, lines) {
  const begun = lines.filter((line) => line.x.length);
  if (!data.averaged || begun.length < 2) return null;
  const rows = series.evaluated
    ? begun[0].x.map((step) => begun.map((line) => line.x.indexOf(step))).filter((row) => !row.includes(-1))
    : Array.from({ length: Math.min(...begun.map((line) => line.x.length)) }, (_, i) => begun.map(() => i));
  const at = (row, values) => row.map((i, run) => begun[run][values][i]);
  const whole = (found) => !found.includes(null);
  const summary = (values) => rows.map((row) => { const found = at(row, values); return whole(found) ? [average(found), errorOf(found)] : [null, null]; });
  const drawn = summary("drawn"), raw = summary("y");
  return {
    rows,
    x: rows.map((row) => average(at(row, "x"))),
    y: raw.map((one) => one[0]),
    error: raw.map((one) => one[1]),
    drawn: drawn.map((one) => one[0]),
    low: drawn.map(([mean, error]) => (mean === null ? null : mean - error)),
    high: drawn.map(([mean, error]) => (mean === null ? null : mean + error)),
  };
}

// A band over each run of points without a gap.
function bandOf(low, high, x, y) {
  let path = "";
  for (let i = 0, from = 0; i <= low.length; i++) {
    if (i < low.length && low[i] !== null && high[i] !== null) continue;
    const back = Array.from({ length: i - from }, (_, k) => `L${x(i - 1 - k).toFixed(1)} ${y(low[i - 1 - k]).toFixed(1)}`).join("");
    if (i - from > 1) path += pathOf(high.slice(from, i), (k) => x(from + k), y) + back + "Z";
    from = i + 1;
  }
  return path;
}

function emptyNote(chart) {
  const { left, right, top, bottom } = chart.box;
  add(chart.svg, "text", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, "nothing was recorded");
}

// The ends of the axis. Where `caps`, single peaks far above all other values do not flatten the rest: they are cut off.
function spanOf(values, { caps = false, top = 0, level = null }) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b), low = Math.min(0, known[0] ?? 0);
  const common = known[Math.floor((known.length - 1) * 0.95)] ?? 0, most = known.at(-1) ?? 0;
  const capped = caps && common > 0 && most > 4 * common;
  const high = Math.max(capped ? 1.5 * common : most, top, level ?? 0);
  return { low, high: high > low ? high : low + 1, capped };
}

// about: name, unit, series, format, caps, top (of the axis), level {value, text} (a line across, if values come near it).
function paintLines(chart, about) {
  const { name, series, format = decimal } = about, { box, svg } = chart;
  const given = series.map((one) => ({ ...one, lines: runs.map((run) => lineOf(one, run)) }));
  const everything = given.flatMap((one) => one.lines.flatMap((line) => [line.y, ...(several ? [] : [line.low || [], line.high || []])])).flat();
  const most = Math.max(0, ...everything.filter((value) => value !== null)), level = about.level && most > about.level.value / 4 ? about.level : null;
  const { low, high, capped } = spanOf(everything, { ...about, level: level?.value }), y = linear(low, high, box.bottom, box.top);
  const found = given.map((one) => ({ ...one, lines: one.lines.map((line) => drawnLine(line, high, one.evaluated)) })).map((one) => ({ ...one, mean: meanOf(one, one.lines) }));
  const x = linear(0, lastStep, box.left, box.right);
  chart.axisY(y, `${about.unit || name}${capped ? `; peaks above ${tick(Number(high.toPrecision(2)))} are cut off` : ""}`, format === shareOf ? (value) => percent(value, high < 0.05 ? 1 : 0) : tick);
  chart.axisX(x, "optimizer steps", whole);
  if (level) {
    add(svg, "line", { class: "edge", x1: box.left, x2: box.right, y1: y(level.value), y2: y(level.value) });
    add(svg, "text", { class: "edge-text", x: box.right, y: y(level.value) - 5, "text-anchor": "end" }, level.text);
  }
  const draw = (line, kind, evaluated, banded) => {
    const place = (i) => x(line.x[i]);
    if (banded && line.low) add(svg, "path", { class: `band ${kind}`, d: bandOf(line.low, line.high, place, y) });
    add(svg, "path", { class: `curve ${kind}`, d: pathOf(line.drawn, place, y) });
    const lonely = line.drawn.filter((value) => value !== null).length === 1;
    if ((evaluated && line.x.length <= 60) || lonely) line.drawn.forEach((value, i) => { if (value !== null) add(svg, "circle", { class: `spot ${kind}`, cx: place(i).toFixed(1), cy: y(value).toFixed(1), r: 3 }); });
  };
  found.forEach((one, at) => { if (one.mean) draw(one.mean, at ? "mean second" : "mean", one.evaluated, true); });
  found.forEach((one, at) => one.lines.forEach((line, run) => {
    const kind = several ? `run run-${run % COLOURS} one-${run}${one.mean ? " thin" : ""}${at ? " second" : ""}` : `s${at}`;
    const smoothed = !several && !one.evaluated && line.x.length > 40;
    if (smoothed) line.y.forEach((value, i) => { if (value !== null) add(svg, "circle", { class: `faint ${kind}`, cx: x(line.x[i]).toFixed(1), cy: y(Math.min(value, high)).toFixed(1), r: line.x.length > 150 ? 1.6 : 2.2 }); });
    draw(line, kind, one.evaluated, !several);
  }));
  const columns = columnsOf(found);
  if (!columns.length) emptyNote(chart);
  return {
    items: {
      count: columns.length,
      nearest: (px) => {
        if (!inside(chart, px)) return null;
        const far = columns.map((column) => Math.abs(x(column.x) - px));
        return far.indexOf(Math.min(...far));
      },
      place: (i) => ({ x: x(columns[i].x) - 0.5, y: box.top, w: 1, h: box.bottom - box.top }),
      text: (i) => [columns[i].title, ...columns[i].cells.flatMap(({ series: one, cells, mean }) => told(one, cells, mean, found.length > 1, format))].join("\n"),
    },
    label: labelOf(name, found, format),
    table: () => tableOf(columns, found, format),
  };
}

// What is at one place of the axis: [{x, title, cells: [{series, cells: [[run, i]], mean: i or -1}]}], in order.
function columnsOf(found) {
  const columns = new Map();
  const put = (x, title, cell) => {
    const key = x.toFixed(3), column = columns.get(key);
    if (!column) columns.set(key, { x, title, cells: [cell] });
    else { column.cells.push(cell); if (title.length > column.title.length) column.title = title; }
  };
  for (const one of found) {
    if (one.evaluated) {
      for (const step of new Set(one.lines.flatMap((line) => line.x))) {
        const cells = one.lines.map((line, run) => [run, line.x.indexOf(step)]).filter(([run, i]) => i >= 0 && one.lines[run].y[i] !== null);
        if (cells.length) put(step, `step ${count(step)}`, { series: one, cells, mean: one.mean ? one.mean.x.indexOf(step) : -1 });
      }
      continue;
    }
    for (let i = 0; i < Math.max(...one.lines.map((line) => line.x.length)); i++) {
      const cells = one.lines.map((line, run) => [run, i]).filter(([run]) => i < one.lines[run].x.length && one.lines[run].y[i] !== null);
      if (!cells.length) continue;
      const x = average(cells.map(([run]) => one.lines[run].x[i])), { first, last } = runs[cells[0][0]].curves, at = cells[0][1];
      put(x, `step ${count(x)}, ${first[at] === last[at] ? "rollout" : "rollouts"} ${range(first[at], last[at])}`, { series: one, cells, mean: one.mean && i < one.mean.x.length && one.mean.y[i] !== null ? i : -1 });
    }
  }
  return [...columns.values()].sort((a, b) => a.x - b.x);
}

const within = (line, i, format) => (line.error?.[i] ?? null) !== null ? ` ± ${format(line.error[i])}` : line.raw?.low && (line.raw.low[i] ?? null) !== null ? ` (${format(line.raw.low[i])} to ${format(line.raw.high[i])})` : "";

// The lines of a tooltip about one series.
function told(one, cells, mean, isOneOfSeveral, format) {
  const value = (line, i) => format(line.y[i]) + within(line, i, format);
  if (!several) return [`${one.name} ${value(one.lines[0], cells[0][1])}`];
  const lines = cells.map(([run, i]) => `${runs[run].name} ${value(one.lines[run], i)}`);
  return [...(isOneOfSeveral ? [`${one.name}:`] : []), ...lines, ...(mean >= 0 ? [`mean ${value(one.mean, mean)}`] : [])];
}

function labelOf(name, found, format) {
  const ends = found.flatMap((one) => [...one.lines.map((line, run) => [line, several ? `${runs[run].name} ` : ""]), ...(one.mean ? [[one.mean, "mean of the runs "]] : [])].map(([line, who]) => {
    const known = line.y.filter((value) => value !== null);
    return known.length ? `${who}${found.length > 1 ? `${one.name} ` : ""}from ${format(known[0])} to ${format(known.at(-1))}` : null;
  })).filter(Boolean);
  return `${name[0].toUpperCase() + name.slice(1)} over optimizer steps: ${ends.slice(0, 8).join("; ") || "nothing was recorded"}.`;
}

function tableOf(columns, found, format) {
  const heads = found.flatMap((one) => [...runs.map((run) => [one.name, several ? run.name : ""]), ...(one.mean ? [[one.name, "mean"]] : [])]);
  const cell = (column, one, run) => {
    const here = column.cells.find(({ series: of }) => of === one), at = here?.cells.find(([who]) => who === run);
    return at ? format(one.lines[run].y[at[1]]) + within(one.lines[run], at[1], format) : "";
  };
  const mean = (column, one) => {
    const here = column.cells.find(({ series: of }) => of === one);
    return here && here.mean >= 0 ? format(one.mean.y[here.mean]) + within(one.mean, here.mean, format) : "";
  };
  return {
    head: ["optimizer step", ...heads.map(([one, run]) => (several ? (found.length > 1 ? `${one}, ${run}` : run) : one))],
    rows: columns.map((column) => [column.title.replace("step ", ""), ...found.flatMap((one) => [...runs.map((_, run) => cell(column, one, run)), ...(one.mean ? [mean(column, one)] : [])])]),
  };
}
