// The player: one or two episodes at a position that play, step and scrub move.

const state = { first: 0, second: null, position: 0, by: "step", playing: null, speed: 4, address: null };
const OUTCOMES = { solved: "solved", failed: "failed", cut: "cut off", unfinished: "unfinished" };
const KINDS = { train: "demonstration pair", test: "test pair" };
const decimal = (x, digits = 3) => (x < 0 && Number(x.toFixed(digits)) !== 0 ? "−" : "") + Math.abs(x).toFixed(digits);
const alike = (x) => (x >= 1 ? "100%" : percent(Math.min(x, 0.999)));

const shown = () => (state.second === null ? [state.first] : [state.first, state.second]);
const last = () => Math.max(...shown().map((number) => data.episodes[number].steps));

// The step of an episode at the present position: the same step as the other one, or the same share of the way.
function stepOf(number) {
  const { steps } = data.episodes[number];
  return state.by === "share" && last() ? Math.round((state.position * steps) / last()) : Math.min(state.position, steps);
}

class Pane {
  constructor(name) {
    this.root = byId(`pane-${name}`);
    this.root.append(byId("pane").content.cloneNode(true));
    this.parts = Object.fromEntries([...this.root.querySelectorAll("[data-part]")].map((node) => [node.dataset.part, node]));
    this.parts.chart.id = `chart-${name}`;
    this.chart = new Chart(this.parts.chart.id, { height: 168, margin: { left: 46, right: 12, top: 28, bottom: 38 }, paint: (chart) => this.paint(chart) });
    this.chart.plot.addEventListener("click", () => { if (this.chart.at !== null) moveTo(this.positionOf(this.chart.at)); });
    this.parts.text.addEventListener("toggle", () => this.draw());
    new ResizeObserver(() => { if (this.root.clientWidth && this.root.clientWidth !== this.drawn) this.draw(); }).observe(this.root);
  }

  positionOf(step) {
    const { steps } = data.episodes[this.number];
    return state.by === "share" && steps ? Math.round((step * last()) / steps) : step;
  }

  open(number) {
    const { parts } = this, episode = data.episodes[number], task = tasks[episode.task];
    Object.assign(this, { number, task, frames: framesOf(number), step: -1 });
    parts.number.textContent = `Episode ${count(number + 1)} of ${count(data.episodes.length)}`;
    parts.name.textContent = episode.id;
    parts.outcome.textContent = OUTCOMES[episode.outcome];
    parts.outcome.className = `outcome ${episode.outcome}`;
    this.drawDemonstrations();
    this.chart.at = null;
    this.chart.draw();
    this.draw();
  }

  // Draws the frame of the present step. The grids have the same scale in all frames of an episode.
  draw() {
    if (this.number === undefined) return;
    const { parts, frames, task } = this, step = stepOf(this.number), frame = frames[step], { grid, selection, kind, pair } = frame, words = actionText(frame);
    this.drawn = this.root.clientWidth;
    const largest = { rows: Math.max(...frames.map((one) => one.grid.rows)), columns: Math.max(...frames.map((one) => one.grid.columns)) };
    const width = parts.stage.clientWidth, cell = cellFor(largest, width, Math.min(width, 440), 56), { digits } = look;
    parts.stage.style.height = `${largest.rows * cell + 1}px`;
    drawGrid(parts.grid, grid, cell, { label: `Working grid of ${sizeText(grid)} after step ${step}: ${words}`, selected: selection && selection.has, digits });
    const present = pairsOf(task, kind)[pair], which = `${KINDS[kind]} ${pair}`;
    parts.pair.textContent = which;
    for (const [name, one, label] of [["input", present.input, `Input of ${which}`], ["target", present.output, `Target of ${which}`], ["clipboard", frame.clipboard, "Clipboard"]]) {
      const isThere = Boolean(one && one.rows);
      parts[name].toggleAttribute("hidden", !isThere);
      if (isThere) drawGrid(parts[name], one, cellFor(one, 116, 116, 22), { label: `${label}, ${sizeText(one)}`, digits });
    }
    parts.empty.hidden = Boolean(frame.clipboard && frame.clipboard.rows);
    parts.action.textContent = words[0].toUpperCase() + words.slice(1);
    parts.operation.textContent = step ? operationText(frame) : "";
    parts.action.classList.toggle("invalid", frame.invalid !== "");
    parts.step.textContent = `${count(step)} of ${count(frames.length - 1)}`;
    parts.alike.textContent = alike(frame.similarity);
    parts.reward.textContent = step ? decimal(frame.reward) : "–";
    parts.sum.textContent = decimal(frame.sum);
    this.parts.demos.querySelectorAll("[data-pair]").forEach((node) => node.classList.toggle("present", kind === "train" && Number(node.dataset.pair) === pair));
    if (parts.text.open) parts.lines.textContent = linesOf(grid);
    this.step = step;
    this.mark();
  }

  drawDemonstrations() {
    const { demos } = this.parts;
    demos.replaceChildren();
    pairsOf(this.task, "train").forEach((pair, i) => demos.append(pairNode(pair, `Demonstration pair ${i}`, i, (grid) => cellFor(grid, 108, 108, 14))));
  }

  paint(chart) {
    const { frames } = this, { box, svg } = chart, steps = frames.length - 1, values = frames.map((frame) => frame.similarity);
    this.x = linear(0, Math.max(steps, 1), box.left, box.right);
    this.y = linear(0, 1, box.bottom, box.top);
    chart.axisY(this.y, "similarity", (value) => percent(value, 0));
    chart.axisX(this.x, "step", whole);
    add(svg, "path", { class: "curve", d: pathOf(values, this.x, this.y) });
    if (!steps) add(svg, "circle", { class: "spot", cx: this.x(0), cy: this.y(values[0]), r: 3 });
    this.marker = add(svg, "g", { class: "marker" });
    this.mark();
    const text = (i) => `step ${count(i)}: ${actionText(frames[i])}\nsimilarity ${alike(values[i])}${i ? `, reward ${decimal(frames[i].reward)}` : ""}`;
    return {
      items: {
        count: frames.length,
        nearest: (px) => (inside(chart, px) ? Math.max(0, Math.min(steps, Math.round(((px - box.left) / (box.right - box.left)) * Math.max(steps, 1)))) : null),
        place: (i) => ({ x: this.x(i), y: this.y(values[i]) }),
        text,
      },
      label: `Similarity over ${plural(steps, "step")}: from ${alike(values[0])} to ${alike(values.at(-1))}.`,
      table: () => ({
        head: ["step", "action", "similarity", "reward"],
        rows: frames.map((frame, i) => [count(i), actionText(frame), alike(frame.similarity), i ? decimal(frame.reward) : "–"]),
      }),
    };
  }

  mark() {
    if (!this.marker || this.step < 0) return;
    const x = this.x(this.step), y = this.y(this.frames[this.step].similarity), { top, bottom } = this.chart.box;
    this.marker.replaceChildren();
    add(this.marker, "line", { x1: x, x2: x, y1: top - 6, y2: bottom });
    add(this.marker, "circle", { cx: x, cy: y, r: 4.5 });
  }
}

// Input, arrow and output of a pair, with its name below.
function pairNode(pair, name, number, cellOf) {
  const node = document.createElement("div"), row = add(node, "div", { class: "both" });
  node.className = "couple";
  node.dataset.pair = number;
  drawGrid(add(row, "svg"), pair.input, cellOf(pair.input), { label: `${name}, input, ${sizeText(pair.input)}` });
  add(row, "span", { class: "arrow", "aria-hidden": "true" }, "→");
  drawGrid(add(row, "svg"), pair.output, cellOf(pair.output), { label: `${name}, output, ${sizeText(pair.output)}` });
  add(node, "p", { class: "label" }, name);
  return node;
}

const panes = { a: new Pane("a"), b: null };
const openPanes = () => (state.second === null ? [panes.a] : [panes.a, panes.b]);

// Opens episodes and draws everything. A change that keeps the episodes keeps the position, as far as it exists.
function show(changes = {}) {
  Object.assign(state, changes);
  const isPair = state.second !== null;
  state.position = Math.max(0, Math.min(state.position, last()));
  byId("panes").classList.toggle("two", isPair);
  byId("pane-b").hidden = byId("together").hidden = !isPair;
  byId("compare").setAttribute("aria-pressed", String(isPair));
  if (isPair) panes.b ??= new Pane("b");
  openPanes().forEach((pane, i) => pane.open(shown()[i]));
  byId("scrub").max = String(last());
  markRows();
  settle();
}

// Draws the present position and, unless it plays, tells it to the address.
function settle() {
  const { position, playing } = state;
  for (const pane of openPanes()) pane.draw();
  byId("scrub").value = String(position);
  byId("scrub").setAttribute("aria-valuetext", `step ${position} of ${last()}`);
  byId("at").textContent = `${count(position)} / ${count(last())}`;
  for (const id of ["to-start", "back"]) byId(id).disabled = position === 0;
  for (const id of ["forth", "to-end"]) byId(id).disabled = position === last();
  byId("play").classList.toggle("playing", playing !== null);
  byId("play-name").textContent = playing === null ? "Play" : "Pause";
  clearTimeout(state.address);  // browsers refuse an address that changes many times in a second
  if (playing === null) state.address = setTimeout(() => history.replaceState(null, "", addressOf()), 200);
}

function moveTo(position) {
  state.position = Math.max(0, Math.min(last(), position));
  settle();
  if (state.playing === null) said.textContent = openPanes().map((pane) => `Step ${pane.step}: ${actionText(pane.frames[pane.step])}`).join(". ");
}

function pause() {
  clearTimeout(state.playing);
  state.playing = null;
}

function advance() {
  if (state.position >= last()) { pause(); return settle(); }
  state.playing = setTimeout(advance, 1000 / state.speed);
  moveTo(state.position + 1);
}

function togglePlay() {
  if (state.playing !== null) { pause(); return settle(); }
  if (state.position === last()) state.position = 0;
  state.playing = setTimeout(advance, 1000 / state.speed);
  settle();
}

const stepTo = (position) => { pause(); moveTo(position); };

function addressOf() {
  const parts = [`episode=${state.first + 1}`, `step=${state.position}`];
  if (state.second !== null) parts.push(`with=${state.second + 1}`, `by=${state.by}`);
  return `#${parts.join("&")}`;
}

// Reads an address. What it does not say, or says of episodes that are not here, stays as it is.
function followAddress() {
  const asked = new URLSearchParams(location.hash.slice(1)), numbered = (key) => { const number = Number(asked.get(key) || NaN) - 1; return number in data.episodes ? number : null; };
  const first = numbered("episode");
  if (first === null) return false;
  const second = numbered("with");
  pause();
  show({ first, second: second === first ? null : second, position: Math.round(Number(asked.get("step"))) || 0, by: asked.get("by") === "share" ? "share" : "step" });
  for (const input of document.querySelectorAll('input[name="by"]')) input.checked = input.value === state.by;
  return true;
}
