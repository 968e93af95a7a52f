// Areas on top of each other over optimizer steps: shares of a whole, or seconds by what they went to. Runs are added up.

// The points that any run has: {from, to, step (in the middle), title, of: [[curves, i]]} for each, of the runs that have it.
function stackPoints() {
  const longest = Math.max(0, ...runs.map((run) => run.curves.first.length));
  return Array.from({ length: longest }, (_, i) => {
    const of = runs.filter((run) => i < run.curves.first.length).map((run) => [run.curves, i]), [{ first, last }] = of[0];
    const from = average(of.map(([curves]) => curves.version[i])), to = average(of.map(([curves]) => curves.step[i]));
    return { from, to, step: (from + to) / 2, title: `${first[i] === last[i] ? "rollout" : "rollouts"} ${range(first[i], last[i])}`, of };
  });
}

const sumOf = (point, value) => total(point.of.map(([curves, i]) => value(curves, i)));

// about: name, unit, parts [{name, kind, value(curves, i)}], whole(curves, i) that sums are divided by, format, top (of the axis), smooth (draw running means).
function paintAreas(chart, about) {
  const { name, parts, format, top = 0 } = about, { box, svg } = chart, points = stackPoints().filter((point) => sumOf(point, about.whole));
  const values = parts.map((part) => points.map((point) => sumOf(point, part.value) / sumOf(point, about.whole)));
  const drawn = about.smooth ? values.map(runningMean) : values, places = points.length ? [points[0].from, ...points.map((point) => point.step), Math.max(points.at(-1).to, points[0].from + lastStep / 100)] : [];
  const sums = points.map((_, i) => total(values.map((of) => of[i]))), x = linear(0, lastStep, box.left, box.right), below = points.map(() => 0);
  const y = linear(0, Math.max(top, ...points.map((_, i) => total(drawn.map((of) => of[i])))) || 1, box.bottom, box.top);
  chart.axisY(y, about.unit, format === shareOf ? (value) => percent(value, 0) : tick);
  parts.forEach((part, k) => {
    const upper = drawn[k].map((value, i) => below[i] + value);
    const line = (heights) => places.map((place, i) => `L${x(place).toFixed(1)} ${y(heights[Math.max(0, Math.min(points.length - 1, i - 1))]).toFixed(1)}`);
    if (points.length) add(svg, "path", { class: `area ${part.kind}`, d: `M${[...line(below), ...line(upper).reverse()].join("").slice(1)}Z` });
    upper.forEach((height, i) => { below[i] = height; });
  });
  chart.axisX(x, "optimizer steps", whole);
  if (!points.length) emptyNote(chart);
  const text = (i) => parts.map((part, k) => `${part.name} ${format(values[k][i])}`), isShare = format === shareOf;
  const ends = !points.length ? [] : parts.map((part, k) => `${part.name} ${format(values[k][0])} to ${format(values[k].at(-1))}`);
  return {
    items: {
      count: points.length,
      nearest: (px) => {
        if (!points.length || !inside(chart, px)) return null;
        const far = points.map((point) => Math.abs(x(point.step) - px));
        return far.indexOf(Math.min(...far));
      },
      place: (i) => ({ x: x(points[i].step) - 0.5, y: box.top, w: 1, h: box.bottom - box.top }),
      text: (i) => [`step ${count(points[i].step)}, ${points[i].title}${several ? `, ${plural(points[i].of.length, "run")}` : ""}`, ...text(i), ...(isShare ? [] : [`in all ${format(sums[i])}`])].join("\n"),
    },
    label: `${name} over optimizer steps, from the first to the last: ${points.length ? ends.join("; ") : "nothing was recorded"}.`,
    table: () => ({
      head: ["optimizer step", ...parts.map((part) => part.name), ...(isShare ? [] : ["in all"])],
      rows: points.map((point, i) => [`${count(point.step)}, ${point.title}`, ...values.map((of) => format(of[i])), ...(isShare ? [] : [format(sums[i])])]),
    }),
  };
}

// Squares or lines with names. entries: [{kind, name, shape: "rect" or "line"}].
function legend(id, entries) {
  const list = byId(id);
  list.replaceChildren();
  for (const { kind, name, shape } of entries) {
    const item = add(list, "li"), svg = add(item, "svg", { viewBox: "0 0 22 14", "aria-hidden": "true" });
    if (shape === "rect") add(svg, "rect", { class: `area ${kind}`, x: 4, width: 14, height: 14 });
    else add(svg, "path", { class: `curve ${kind}`, d: "M0 7H22" });
    if (shape === "spots") add(svg, "circle", { class: `spot ${kind}`, cx: 11, cy: 7, r: 3.5 });
    item.append(name);
  }
}
