// A map of shares: kinds of questions down, each early and late; mutators across.

const { choices } = data;
const CELL = 25, GAP = 12, WIDE = 620, LONG = 18;
const periodNames = choices.periods.length > 1 ? ["early", "late"] : ["all"];
const longest = (names) => Math.max(0, ...names.map((name) => Math.min([...name].length, LONG)));

// Where everything is in so many pixels. Names of mutators that do not fit above their column are slanted; on a narrow screen a
// kind's name stands above its rows.
function layoutOf(width) {
  const narrow = width < WIDE, left = narrow ? 44 : Math.min(width * 0.32, Math.max(...choices.kinds.map((name) => name.length), 0) * 7.5 + 66);
  const columns = Math.max(1, choices.mutators.length), names = longest(choices.mutators) * 7.4;
  const level = (width - left - 8) / columns > names + 8, right = width - (level ? 4 : Math.min(70, names / 2));
  const above = narrow ? 22 : 0, block = above + periodNames.length * CELL + GAP, head = level ? 26 : names * 0.87 + 16;
  return { narrow, left, level, wide: (right - left) / columns, above, block, head, height: Math.ceil(head + Math.max(1, choices.kinds.length) * block) };
}

// Every cell: {kind, period, mutator, steps, of, share, reward}.
const cells = choices.kinds.flatMap((_, kind) => choices.periods.flatMap((period, at) => {
  const row = period.cells[kind], of = total(row.map((cell) => cell[0]));
  return row.map(([steps, sum], mutator) => ({ kind, period: at, mutator, steps, of, share: share(steps, of), reward: steps && sum !== null ? sum / steps : null }));
}));

function paintChoices(chart) {
  const { svg, width } = chart, { narrow, left, level, wide, above, block, head } = layoutOf(width), mutators = choices.mutators.length;
  const place = (cell) => ({ x: left + cell.mutator * wide + 1, y: head + cell.kind * block + above + cell.period * CELL + 1, w: wide - 2, h: CELL - 2 });
  choices.mutators.forEach((name, i) => {
    const x = left + (i + 0.5) * wide, y = head - 8;
    const way = level ? { x, y, "text-anchor": "middle" } : { transform: `translate(${x + 3} ${y}) rotate(-60)` };
    add(svg, "text", { class: "strong", ...way }, clipped(name, LONG * 7));
  });
  choices.kinds.forEach((name, kind) => {
    const y = head + kind * block;
    const way = narrow ? { x: 0, y: y + 15 } : { x: left - 54, y: y + (periodNames.length * CELL) / 2 + 4, "text-anchor": "end" };
    add(svg, "text", { class: "strong", ...way }, clipped(name, narrow ? width - 8 : left - 54));
    periodNames.forEach((period, i) => add(svg, "text", { x: left - 8, y: y + above + i * CELL + 17, "text-anchor": "end" }, period));
  });
  for (const cell of cells) {
    const { x, y, w, h } = place(cell);
    add(svg, "rect", { class: "back", x, y, width: Math.max(w, 1), height: h, rx: 3 });
    add(svg, "rect", { class: "heat", x, y, width: Math.max(w, 1), height: h, rx: 3, "fill-opacity": cell.share.toFixed(3) });
    if (cell.mutator === choices.best[cell.kind]) add(svg, "rect", { class: "ring", x: x + 1, y: y + 1, width: Math.max(w - 2, 1), height: h - 2, rx: 2 });
    if (w > 30 && cell.of) add(svg, "text", { class: "strong", x: x + w / 2, y: y + 16, "text-anchor": "middle" }, percent(cell.share, 0));
  }
  if (!cells.length) emptyNote(chart);
  return {
    items: {
      count: cells.length,
      nearest: (px, py) => {
        const found = cells.findIndex((cell) => { const { x, y, w, h } = place(cell); return px >= x - 1 && px <= x + w + 1 && py >= y - 1 && py <= y + h + 1; });
        return found < 0 ? null : found;
      },
      place: (i) => place(cells[i]),
      text: (i) => choiceTip(cells[i]),
    },
    label: `Map of the shares of ${plural(mutators, "mutator")} for ${plural(choices.kinds.length, "kind")} of questions, ${periodNames.join(" and ")}. `
      + byId("choices-words").textContent,
    table: choiceTable,
  };
}

function choiceTip(cell) {
  const period = choices.periods[cell.period];
  return [
    `${choices.kinds[cell.kind]}, ${choices.mutators[cell.mutator]}`,
    `${periodNames[cell.period]}, ${period.first === period.last ? "update" : "updates"} ${range(period.first, period.last)}`,
    `${count(cell.steps)} of ${plural(cell.of, "step")}, ${percent(cell.share)}`,
    cell.reward === null ? "no reward" : `mean reward ${decimal(cell.reward)}`,
    ...(cell.mutator === choices.best[cell.kind] ? ["highest mean reward of the run for this kind"] : []),
  ].join("\n");
}

function choiceTable() {
  const head = ["kind", "mutator", ...periodNames.flatMap((name) => [`${name}: share`, "steps", "mean reward"])];
  const rows = choices.kinds.flatMap((kind, k) => choices.mutators.map((mutator, m) => [kind, mutator, ...periodNames.flatMap((_, period) => {
    const cell = cells.find((one) => one.kind === k && one.mutator === m && one.period === period);
    return [cell.of ? percent(cell.share) : NONE, count(cell.steps), decimal(cell.reward)];
  })]));
  return { head, rows };
}
