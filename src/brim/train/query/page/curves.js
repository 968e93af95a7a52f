// Curves over the updates of a run. A point is an update, or a stretch of them if there are many.

const { curves } = data;
const points = curves.first.length;
const NONE = "–";

const decimal = (x) => {
  if (x === null) return NONE;
  const digits = Math.abs(x) < 100 ? 3 : 1, text = Math.abs(x).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return (x < 0 && /[1-9]/.test(text) ? "−" : "") + text;
};
const shareOf = (x) => (x === null ? NONE : percent(x));
const named = (i) => `${curves.first[i] === curves.last[i] ? "update" : "updates"} ${range(curves.first[i], curves.last[i])}`;
const middle = (i) => (curves.first[i] + curves.last[i]) / 2;

// Where updates are along the axis, and which point is under the pointer.
function alongUpdates(chart) {
  const { box } = chart, x = linear(points ? curves.first[0] - 0.5 : 0, points ? curves.last[points - 1] + 0.5 : 1, box.left, box.right);
  const nearest = (px) => {
    if (!points || !inside(chart, px)) return null;
    let i = 0;
    while (i < points - 1 && px > x(curves.last[i] + 0.5)) i++;
    return i;
  };
  return { x, nearest };
}

// The mean of the values around each one; null where there are none.
function runningMean(values) {
  const reach = values.length > 40 ? Math.round(values.length / 40) : 0;
  return values.map((_, i) => {
    const near = values.slice(Math.max(0, i - reach), i + reach + 1).filter((value) => value !== null);
    return near.length ? total(near) / near.length : null;
  });
}

function emptyNote(chart) {
  const { left, right, top, bottom } = chart.box;
  add(chart.svg, "text", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, "nothing was recorded");
}

// about: name, values, unit on the axis, format, floor (what is below it is drawn at it), top of the axis, level {value, text}, more(i) for the tooltip.
function paintCurve(chart, about) {
  const { name, values, format = decimal, floor = null, top = 0, level = null, more = () => "" } = about, { box, svg } = chart;
  const known = values.filter((value) => value !== null), high = Math.max(...known, level ? level.value : -Infinity, top);
  const low = Math.min(...known, 0), bottom = floor === null ? low : Math.max(low, floor), { x, nearest } = alongUpdates(chart);
  const y = linear(bottom, high > bottom ? high : bottom + 1, box.bottom, box.top), drawn = values.map((value) => (value === null ? null : Math.max(value, bottom)));
  chart.axisY(y, about.unit || name, format === shareOf ? (value) => percent(value, high < 0.05 ? 1 : 0) : brief);
  chart.axisX(x, "update", whole);
  if (level) {
    add(svg, "line", { class: "edge", x1: box.left, x2: box.right, y1: y(level.value), y2: y(level.value) });
    add(svg, "text", { class: "edge-text", x: box.right, y: y(level.value) - 5, "text-anchor": "end" }, level.text);
  }
  const radius = points > 150 ? 1.6 : points > 40 ? 2.2 : 3;
  drawn.forEach((value, i) => { if (value !== null) add(svg, "circle", { class: "spot", cx: x(middle(i)).toFixed(1), cy: y(value).toFixed(1), r: radius }); });
  add(svg, "path", { class: "curve", d: pathOf(runningMean(drawn), (i) => x(middle(i)), y) });
  if (!known.length) emptyNote(chart);
  const ends = known.length ? `from ${format(known[0])} to ${format(known[known.length - 1])}, between ${format(low < 0 ? low : Math.min(...known))} and ${format(Math.max(...known))}` : "nothing was recorded";
  return {
    items: {
      count: points,
      nearest,
      place: (i) => ({ x: x(middle(i)), y: y(drawn[i] ?? bottom) }),
      text: (i) => `${named(i)}\n${name} ${values[i] === null ? "not recorded" : format(values[i])}${more(i)}`,
    },
    label: `${name[0].toUpperCase() + name.slice(1)} over ${plural(data.updates, "update")}: ${ends}.`,
    table: () => ({ head: ["updates", name], rows: values.map((value, i) => [range(curves.first[i], curves.last[i]), format(value)]) }),
  };
}

const lift = (i, what) => `\n${plural(curves[what][i], what === "steps" ? "valid step" : "episode")}`;

function paintReward(chart) {
  const level = data.best === null ? null : { value: data.best, text: `best possible ${decimal(data.best)}` };
  return paintCurve(chart, { name: "mean reward", values: curves.reward, level, more: (i) => lift(i, "steps") });
}

function paintReturn(chart) {
  return paintCurve(chart, { name: "mean return", values: curves.return, more: (i) => lift(i, "episodes") });
}

function paintSolved(chart) {
  return paintCurve(chart, { name: "solved", values: curves.solved, format: shareOf, unit: "share of episodes", more: (i) => lift(i, "episodes") });
}

function paintEntropy(chart) {
  const many = data.choices.mutators.length;
  const level = many > 1 ? { value: Math.log(many), text: `equal chances of ${many} mutators` } : null;
  return paintCurve(chart, { name: "entropy", values: curves.entropy, unit: "nats", level });
}

function paintKl(chart) {
  return paintCurve(chart, { name: "KL divergence", values: curves.kl, unit: "nats" });
}

function paintClip(chart) {
  return paintCurve(chart, { name: "clip fraction", values: curves.clip_fraction, format: shareOf, unit: "share of samples" });
}

function paintVariance(chart) {
  const values = curves.explained_variance, below = values.some((value) => value !== null && value < -1);
  return paintCurve(chart, { name: "explained variance", values, floor: -1, top: 1, unit: below ? "1 is perfect; below −1 is drawn at −1" : "1 is perfect" });
}

function paintInvalid(chart) {
  return paintCurve(chart, { name: "invalid steps", values: curves.invalid, format: shareOf, unit: "share of steps" });
}
