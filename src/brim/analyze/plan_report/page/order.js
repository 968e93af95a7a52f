// What happens along an epoch: its order, what ranks cost step by step, how padding adds up.

// Where [0, n) is shown, and which of the n is under the pointer.
function along(chart, n) {
  const { box } = chart;
  chart.extent = n;
  if (chart.view && chart.view[1] > n) chart.view = null;
  const shown = chart.shown(), x = linear(shown[0], Math.max(shown[1], shown[0] + 1), box.left, box.right);
  const nearest = (px) => (n && inside(chart, px) ? Math.max(0, Math.min(n - 1, Math.floor(chart.valueAt(px)))) : null);
  return { shown, x, nearest };
}

// [0, n) in at most so many parts of nearly equal size.
function parts(n, most = 20) {
  const many = Math.min(n, most), edge = (i) => Math.floor((i * n) / many);
  return Array.from({ length: many }, (_, i) => [edge(i), edge(i + 1)]);
}

// Points of a series at the positions a to b, or stems that rise from `base`; and the mean of each stretch of them as a line.
function scatter(chart, values, x, y, [a, b], base = null) {
  const { pen } = chart, first = Math.max(0, Math.floor(a)), last = Math.min(values.length, Math.ceil(b));
  const many = last - first, room = chart.box.right - chart.box.left, size = many > room ? 1.8 : many > room / 8 ? 2.4 : 4;
  pen.save();
  pen.beginPath();
  pen.rect(chart.box.left - 2, chart.box.top - 4, room + 4, chart.box.bottom - chart.box.top + 6);
  pen.clip();
  pen.fillStyle = chart.colour("used");
  pen.globalAlpha = base === null ? Math.max(0.22, Math.min(0.85, (room * 3) / (many || 1))) : 0.75;
  for (let i = first; i < last; i++) {
    const height = base === null ? size : y(base) - y(values[i]);
    pen.fillRect(x(i + 0.5) - size / 2, base === null ? y(values[i]) - size / 2 : y(values[i]), size, height);
  }
  pen.globalAlpha = 1;
  if (many > 40 && base === null) {
    const stretches = Math.max(3, Math.min(60, Math.floor(many / 20))), edge = (k) => first + Math.floor((k * many) / stretches);
    pen.strokeStyle = chart.colour("waste");
    pen.lineWidth = 2;
    pen.beginPath();
    for (let k = 0; k < stretches; k++) {
      const start = edge(k), end = edge(k + 1);
      let sum = 0;
      for (let i = start; i < end; i++) sum += values[i];
      const [px, py] = [x((start + end) / 2), y(sum / (end - start))];
      if (k === 0) pen.moveTo(px, py); else pen.lineTo(px, py);
    }
    pen.stroke();
  }
  pen.restore();
}

function paintOrder(chart) {
  const values = Float64Array.from(look.at, metricOf(look, state.metric)), n = values.length, { box, svg } = chart, { world } = look;
  const { shown, x, nearest } = along(chart, n), y = linear(0, values.reduce((a, b) => Math.max(a, b), 1), box.bottom, box.top);
  chart.axisY(y, { width: "width in tokens", tokens: "tokens", cost: "cost in slots" }[state.metric]);
  chart.axisX(x, world.merged ? `runs of ${plural(world.merged, "step")}, in order` : "microbatch, in order", whole);
  scatter(chart, values, x, y, shown);
  const tail = n - look.at.filter((_, i) => stepOf(look, i) === world.steps - 1).length;
  if (world.last_step < world.step_size && !world.merged && n && tail >= shown[0] && tail <= shown[1]) {
    add(svg, "line", { class: "edge", x1: x(tail), x2: x(tail), y1: box.top, y2: box.bottom });
    add(svg, "text", { class: "edge-text", x: Math.max(x(tail), box.left + 90), y: box.top - 5, "text-anchor": "end" }, "short last step");
  }
  const words = orderWords(n);
  byId("order-words").replaceChildren(...words.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
  const place = (i) => {
    if (i + 1 >= shown[0] && i <= shown[1]) return { x: x(i + 0.5), y: y(values[i]) };
    const size = shown[1] - shown[0];  // the cursor left what is shown: it is followed
    chart.zoomTo([i - size / 2, i + size / 2]);
    return chart.items.place(i);
  };
  return {
    items: { count: n, nearest, place, text: (i) => orderTip(i, n) },
    label: `${state.metric} of ${microbatches(n)} in the order of epoch ${look.epoch.epoch}. ${words.join(" ")}`,
    table: () => ({
      head: ["part of the epoch", `mean ${state.metric}`, "lowest", "highest"],
      rows: parts(n).map(([a, b]) => {
        const part = values.subarray(a, b);
        const [low, high] = [part.reduce((p, q) => Math.min(p, q)), part.reduce((p, q) => Math.max(p, q))];
        return [range(a, b - 1), count(total(part) / part.length), count(low), count(high)];
      }),
    }),
  };
}

function orderTip(i, n) {
  const { columns, world } = look, at = look.at[i], used = columns.slots[at] - columns.padding[at];
  const shape = world.merged
    ? `${microbatches(columns.count[at])}, ${count(columns.width[at])} wide on average`
    : `${count(columns.rows[at])} rows × ${count(columns.width[at])} wide`;
  const lines = [
    `${world.merged ? "run" : "microbatch"} ${count(i)} of ${count(n)}`,
    `step ${count(stepOf(look, i))}, rank ${rankOf(look, i)}`,
    shape,
    `${plural(used, "token")}, ${percent(share(columns.padding[at], columns.slots[at]))} padding`,
    `cost ${count(columns.cost[at])} slots`,
  ];
  if (columns.group) lines.push(`group ${data.groups[columns.group[at]] || "(no group)"}`);
  return lines.join("\n");
}

function orderWords(n) {
  const { world } = look, [lag, stepLag, trend, tail] = world.stats[state.metric][look.seen], { metric } = state;
  if (!n) return ["There are no microbatches."];
  const words = [], all = facts().microbatches, grouped = world.step_size > 1;
  // Inside a step microbatches are alike on purpose, so it is the steps whose order can be random.
  const near = grouped ? stepLag : lag, chance = 3.3 / Math.sqrt(grouped ? world.steps : all);  // exceeded once in a thousand orders
  if (all < 3) {
    words.push("So few microbatches have no order to speak of.");
  } else if (trend === null) {
    words.push(`All microbatches have the same ${metric}: in this respect any order is like another.`);
  } else if (near === null) {
    words.push(`Too few steps to say whether their order is random; position and ${metric} have a rank correlation of ${signed(trend)}.`);
  } else {
    const odd = Math.max(Math.abs(near), Math.abs(trend)) > chance, what = grouped ? "steps" : "microbatches";
    words.push(`${odd ? "The order is not quite random" : "The order looks random"}: neighbouring ${what} have a lag-1 correlation of `
      + `${signed(near)}, position and ${metric} a rank correlation of ${signed(trend)}; chance alone stays within ±${chance.toFixed(3)}.`);
  }
  if (grouped && lag !== null) {
    words.push("Inside a step microbatches are alike on purpose, so that ranks finish together: counted one by one, the lag-1 "
      + `correlation is ${signed(lag)}.`);
  }
  words.push(tailWords(world, tail, Math.max(1, Math.floor(all / 100))));
  return words;
}

function tailWords(world, tail, last) {
  const full = world.last_step === world.step_size;
  const size = `${count(world.last_step)} of ${microbatches(world.step_size)}`;
  const step = full ? "The last step is full" : `The last step is short, with ${size}`;
  const more = [
    world.nulls ? plural(world.nulls, "empty microbatch", "empty microbatches") : "",
    world.dropped ? `${count(world.dropped)} dropped` : "",
    world.repeated ? `${count(world.repeated)} repeated` : "",
  ].filter(Boolean).join(", ");
  const end = last === 1 ? "The last microbatch has" : `The last ${count(last)} microbatches (1%) have`;
  const mean = tail === null ? "" : ` ${end} ${percent(tail)} of the mean ${state.metric}.`;
  return `${step}${more ? ` (${more}, over all ranks)` : ""}.${mean}`;
}

function paintCost(chart) {
  const costs = costsOf(look), { box } = chart, { world } = look, alone = world.ranks === 1, n = costs.steps, run = world.merged || 1;
  const values = alone ? costs.own : Float64Array.from(costs.own, (own, i) => (costs.mean[i] ? own / costs.mean[i] : 1));
  // Empty microbatches make the mean of a short last step small; it is cut off at the top rather than flattening all others.
  const short = !alone && world.last_step < world.step_size && n > 1, others = short ? values.subarray(0, n - 1) : values;
  const high = others.reduce((a, b) => Math.max(a, b), alone ? 1 : 1.01), low = alone ? 0 : others.reduce((a, b) => Math.min(a, b), 1);
  const drawn = values.map((value) => Math.min(value, high));
  const { shown, x, nearest } = along(chart, n), y = linear(low, high, box.bottom, box.top);
  const above = (value) => Math.round((value - 1) * 10000) / 100 + "%";
  const against = state.rank === null ? "slowest rank above the mean" : `rank ${state.rank} against the mean`;
  chart.axisY(y, alone ? "cost of the step in slots" : against, alone ? brief : above);
  chart.axisX(x, run > 1 ? `runs of ${plural(run, "step")}` : "optimizer step", (value) => whole(value * run));
  scatter(chart, drawn, x, y, shown, alone ? null : 1);
  if (short && values[n - 1] > high) {
    const text = `short last step: ${above(values[n - 1])}`;
    add(chart.svg, "text", { class: "edge-text", x: box.right, y: box.top - 4, "text-anchor": "end" }, text);
  }
  byId("cost-words").textContent = costWords(costs);
  return {
    items: { count: n, nearest, place: (i) => ({ x: x(i + 0.5), y: y(drawn[i]) }), text: (i) => costTip(costs, i, run, alone) },
    label: `Cost of ${plural(world.steps, "step")} in order. ${byId("cost-words").textContent}`,
    table: () => ({
      head: ["steps", "mean cost of a rank", "slowest rank", "above the mean"],
      rows: parts(n).map(([a, b]) => {
        const mean = total(costs.mean.subarray(a, b)), slowest = total(costs.slowest.subarray(a, b));
        const steps = Math.min(b * run, world.steps) - a * run;
        return [range(a * run, a * run + steps - 1), count(mean / steps), count(slowest / steps), percent(share(slowest, mean) - 1, 2)];
      }),
    }),
  };
}

function costTip(costs, i, run, alone) {
  const step = run > 1 ? `steps ${range(i * run, Math.min((i + 1) * run, look.world.steps) - 1)}` : `step ${count(i)}`;
  if (alone) return `${step}\ncost ${count(costs.own[i])} slots`;
  const own = state.rank === null ? "" : `\nrank ${state.rank} ${count(costs.own[i])}`;
  return `${step}\nmean of the ranks ${count(costs.mean[i])} slots\nslowest ${count(costs.slowest[i])}${own}`;
}

function costWords(costs) {
  const { imbalance, ranks } = look.world, measure = "Cost is slots plus what attention adds to them.";
  if (data.share !== null) return `This is the share of ${who()}; what the other ranks cost is not in it. ${measure}`;
  if (ranks === 1) return `One rank waits for no other. ${measure}`;
  if (imbalance === null) return "There are no microbatches.";
  const off = state.rank === null ? 0 : share(costs.totals[state.rank] * ranks, total(costs.totals)) - 1;
  const away = `${percent(Math.abs(off), 2)} ${off < 0 ? "less" : "more"}`;
  const own = state.rank === null ? "" : `Over the epoch rank ${state.rank} costs ${away} than the mean. `;
  const digits = imbalance < 0.001 ? 3 : 2;
  return `The slowest rank costs ${percent(imbalance, digits)} more than the mean of its step, so ranks wait `
    + `${percent(imbalance / (1 + imbalance), digits)} of the time for the slowest. ${own}${measure}`;
}

function paintRanks(chart) {
  const { totals } = costsOf(look), { box, svg } = chart, n = totals.length, mean = total(totals) / n;
  const y = linear(0, totals.reduce((a, b) => Math.max(a, b), 1), box.bottom, box.top + 16);
  const wide = (box.right - box.left) / n, gap = Math.max(wide / 5, wide - 64), rank = (i) => (data.share === null ? i : data.share);
  const off = (i) => { const away = share(totals[i], mean) - 1; return (away < 0 ? "−" : "+") + percent(Math.abs(away), 2); };
  const place = (i) => ({ x: box.left + i * wide + gap / 2, y: y(totals[i]), w: wide - gap, h: box.bottom - y(totals[i]) });
  chart.axisY(y, "cost of the epoch in slots");
  totals.forEach((_, i) => {
    const bar = place(i), middle = bar.x + bar.w / 2;
    add(svg, "rect", { class: i === state.rank ? "used chosen" : "used", x: bar.x, y: bar.y, width: Math.max(bar.w, 0.5), height: bar.h });
    if (wide > 22) add(svg, "text", { x: middle, y: box.bottom + 17, "text-anchor": "middle" }, String(rank(i)));
    if (wide > 52 && n > 1) add(svg, "text", { x: middle, y: bar.y - 5, "text-anchor": "middle", class: "strong" }, off(i));
  });
  add(svg, "text", { x: box.right, y: chart.height - 6, "text-anchor": "end" }, "rank");
  return {
    items: {
      count: n,
      nearest: (px) => (inside(chart, px) ? Math.max(0, Math.floor((px - box.left) / wide)) : null),
      place,
      text: (i) => `rank ${rank(i)}\ncost ${count(totals[i])} slots` + (n > 1 ? `\n${off(i)} from the mean` : ""),
    },
    label: `Cost of the epoch for ${plural(n, "rank")}: from ${count(Math.min(...totals))} to ${count(Math.max(...totals))} slots.`,
    table: () => ({
      head: ["rank", "cost in slots", "from the mean"],
      rows: Array.from(totals, (cost, i) => [String(rank(i)), count(cost), off(i)]),
    }),
  };
}

function paintWaste(chart) {
  const padding = Float64Array.from(look.at, (at) => look.columns.padding[at]), sorted = state.sort === "worst", n = padding.length;
  if (sorted) padding.sort().reverse();
  const below = new Float64Array(n + 1), { box, svg } = chart;
  padding.forEach((value, i) => { below[i + 1] = below[i] + value; });
  const x = linear(0, Math.max(n, 1), box.left, box.right), y = linear(0, Math.max(below[n], 1), box.bottom, box.top + 4);
  const spots = [...parts(n, 400).map(([a]) => a), n];
  const path = spots.map((i, at) => `${at ? "L" : "M"}${x(i).toFixed(1)} ${y(below[i]).toFixed(1)}`).join("");
  chart.axisY(y, "padding so far");
  add(svg, "path", { class: "area", d: `${path}L${x(n)} ${box.bottom}L${box.left} ${box.bottom}Z` });
  add(svg, "path", { class: "straight", d: `M${x(0)} ${y(0)}L${x(n)} ${y(below[n])}` });
  add(svg, "path", { class: "line", d: path });
  chart.axisX(x, `${look.world.merged ? "runs of microbatches" : "microbatches"}, ${sorted ? "worst first" : "in order"}`, whole);
  byId("waste-words").textContent = wasteWords();
  const row = (i) => [count(i), percent(share(i, n)), count(below[i]), percent(share(below[i], below[n]))];
  const spotAt = (px) => Math.round(((px - box.left) / (box.right - box.left)) * (spots.length - 1));
  return {
    items: {
      count: spots.length,
      nearest: (px) => (inside(chart, px) ? spotAt(px) : null),
      place: (i) => ({ x: x(spots[i]), y: y(below[spots[i]]) }),
      text: (i) => {
        const [many, part, slots, waste] = row(spots[i]);
        return `the ${sorted ? "worst" : "first"} ${many} (${part})\n${slots} slots of padding, ${waste} of all`;
      },
    },
    label: `Padding added up over the epoch, ${sorted ? "worst microbatches first" : "in order"}. ${byId("waste-words").textContent}`,
    table: () => ({
      head: [sorted ? "worst microbatches" : "first microbatches", "share of microbatches", "padding", "share of padding"],
      rows: parts(n).map(([, end]) => row(end)),
    }),
  };
}

function wasteWords() {
  const [tenth, half] = look.world.waste[look.seen], { tokens, slots, waste } = facts();
  if (tenth === null) return "There is no padding.";
  return `${plural(slots - tokens, "slot")} of padding in the epoch, ${percent(waste, 2)} of what is paid for. The worst tenth of the `
    + `microbatches causes ${percent(tenth)} of it; half of it is in ${percent(half)} of them. The dashed line is padding spread evenly.`;
}
