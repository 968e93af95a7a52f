// Bars: the time of each update in its parts, and sums side by side.

const PARTS = ["waiting", "policy", "learning", "other"];
const PART_NAMES = { waiting: "waiting for calls", policy: "policy", learning: "learning", other: "other" };
const seconds = (value) => `${decimal(value)} s`;

function paintTime(chart) {
  const { box, svg } = chart, { x, nearest } = alongUpdates(chart), sums = curves.first.map((_, i) => total(PARTS.map((part) => curves[part][i])));
  const y = linear(0, Math.max(...sums, 0) || 1, box.bottom, box.top), below = sums.map(() => 0);
  chart.axisY(y, "seconds of an update");
  chart.axisX(x, "update", whole);
  for (const part of PARTS) {
    const path = curves[part].map((value, i) => {
      const left = x(curves.first[i] - 0.5), right = x(curves.last[i] + 0.5), gap = right - left > 5 ? 1 : 0;
      const top = y(below[i] + value), bottom = y(below[i]);
      below[i] += value;
      return `M${(left + gap / 2).toFixed(1)} ${bottom.toFixed(1)}V${top.toFixed(1)}H${(right - gap / 2).toFixed(1)}V${bottom.toFixed(1)}Z`;
    }).join("");
    add(svg, "path", { class: part, d: path });
  }
  if (!points) emptyNote(chart);
  return {
    items: {
      count: points,
      nearest,
      place: (i) => ({ x: x(curves.first[i] - 0.5), y: y(sums[i]), w: x(curves.last[i] + 0.5) - x(curves.first[i] - 0.5), h: box.bottom - y(sums[i]) }),
      text: (i) => [
        `${named(i)}: ${seconds(sums[i])}${curves.first[i] === curves.last[i] ? "" : " each"}`,
        ...PARTS.map((part) => `${PART_NAMES[part]} ${seconds(curves[part][i])}`),
        `all calls: ${seconds(curves.server[i])} with servers, ${seconds(curves.queue[i])} queueing`,
      ].join("\n"),
    },
    label: `Wall-clock time of ${plural(data.updates, "update")} in its parts. ${byId("time-words").textContent}`,
    table: () => ({
      head: ["updates", ...PARTS.map((part) => `${PART_NAMES[part]}, s`), "in all, s", "servers' time of all calls, s", "queueing of all calls, s"],
      rows: curves.first.map((first, i) => [range(first, curves.last[i]), ...PARTS.map((part) => decimal(curves[part][i])), decimal(sums[i]),
        decimal(curves.server[i]), decimal(curves.queue[i])]),
    }),
  };
}

const ROW = 52;

// Horizontal bars with their names above them. rows: [{name, parts: [[class, value]], said, tip}].
function paintRows(chart, rows, { unit, label, head, cells }) {
  const { box, svg } = chart, sums = rows.map((row) => total(row.parts.map((part) => part[1])));
  const x = linear(0, Math.max(...sums, 0) || 1, box.left, box.right), top = (i) => box.top + i * ROW;
  chart.axisX(x, unit);
  rows.forEach((row, i) => {
    let from = 0;
    add(svg, "text", { class: "strong", x: box.left, y: top(i) + 14 }, clipped(row.name, box.right - box.left - row.said.length * 7 - 14));
    add(svg, "text", { x: box.right, y: top(i) + 14, "text-anchor": "end" }, row.said);
    for (const [kind, value] of row.parts) {
      add(svg, "rect", { class: kind, x: x(from), y: top(i) + 20, width: Math.max(x(from + value) - x(from), 0), height: 20 });
      from += value;
    }
  });
  return {
    items: {
      count: rows.length,
      nearest: (_, py) => (py < box.top || py > box.bottom ? null : Math.min(rows.length - 1, Math.floor((py - box.top) / ROW))),
      place: (i) => ({ x: box.left, y: top(i) + 19, w: x(sums[i]) - box.left, h: 22 }),
      text: (i) => rows[i].tip,
    },
    label,
    table: () => ({ head, rows: cells }),
  };
}

// As much of a name as fits into so many pixels.
function clipped(text, room) {
  const most = Math.max(3, Math.floor(room / 7)), letters = [...text];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text;
}

function paintTotals(chart) {
  const { totals } = data, wall = total(PARTS.map((part) => totals[part]));
  const parts = PARTS.map((part) => `${PART_NAMES[part]} ${seconds(totals[part])}`);
  const rows = [
    { name: "Wall-clock time", parts: PARTS.map((part) => [part, totals[part]]), said: seconds(wall), tip: ["wall-clock time " + seconds(wall), ...parts].join("\n") },
    { name: "Servers, all calls added up", parts: [["calls", totals.server]], said: seconds(totals.server), tip: `all calls together were with the servers for ${seconds(totals.server)}` },
    { name: "Queue, all calls added up", parts: [["calls", totals.queue]], said: seconds(totals.queue), tip: `all calls together waited ${seconds(totals.queue)} for a free slot` },
  ];
  return paintRows(chart, rows, {
    unit: "seconds",
    label: `Times of the whole run: wall-clock time ${seconds(wall)}, ${parts.join(", ")}; all calls added up, ${seconds(totals.server)} with servers and `
      + `${seconds(totals.queue)} in the queue.`,
    head: ["time", "seconds", "of the wall-clock time"],
    cells: [
      ...PARTS.map((part) => [PART_NAMES[part], decimal(totals[part]), percent(share(totals[part], wall))]),
      ["wall-clock time", decimal(wall), percent(1)],
      ["servers' time of all calls", decimal(totals.server), percent(share(totals.server, wall))],
      ["queueing of all calls", decimal(totals.queue), percent(share(totals.queue, wall))],
    ],
  });
}

function paintTypes(chart) {
  const all = total(data.invalid.map((type) => type.count)), when = (type) => `updates ${range(type.first, type.last)}`;
  const rows = data.invalid.map((type) => ({
    name: type.name, parts: [["bad", type.count]], said: count(type.count), tip: `${type.name}\n${plural(type.count, "step")}, ${percent(share(type.count, all))}\n${when(type)}`,
  }));
  return paintRows(chart, rows, {
    unit: "steps",
    label: `Invalid steps by type of failure: ${data.invalid.map((type) => `${type.name} ${count(type.count)}`).join(", ")}.`,
    head: ["failure", "steps", "share", "first update", "last update"],
    cells: data.invalid.map((type) => [type.name, count(type.count), percent(share(type.count, all)), count(type.first), count(type.last)]),
  });
}
