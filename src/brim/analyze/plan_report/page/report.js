// The page: what is chosen, what that means in words and numbers, and the controls that choose.

const state = { epoch: 0, ranks: data.ranks[0], rank: null, axis: "linear", by: "band", metric: "width", sort: "order" };
let look = null;

const microbatches = (n) => plural(n, "microbatch", "microbatches");
const forAllRanks = () => (look.world.merged && state.rank !== null ? " Shown for all ranks together." : "");

function facts() {
  const [microbatches, sequences, tokens, slots, shapes] = look.world.facts[look.seen];
  return { microbatches, sequences, tokens, slots, shapes, waste: slots ? 1 - tokens / slots : 0 };
}

function who() {
  if (data.share !== null) return `rank ${data.share} of ${state.ranks}`;
  if (state.ranks === 1) return "one rank";
  return state.rank === null ? `all ${state.ranks} ranks` : `rank ${state.rank} of ${state.ranks}`;
}

const HINT = "Dots are microbatches, or runs of them; the line is their running mean. Drag over a range to zoom in; with the chart "
  + "focused, the wheel, + and − zoom and 0 resets.";
const roomy = { left: 56, right: 14, top: 30, bottom: 40 };
const charts = {
  lengths: new Chart("lengths-chart", { height: 300, paint: paintLengths, margin: { ...roomy, right: 22, bottom: 68 } }),
  fill: new Chart("fill-chart", { height: 240, paint: paintFill, margin: { ...roomy, left: 104, top: 4 } }),
  shapes: new Chart("shapes-chart", { height: 320, paint: paintShapes, margin: roomy }),
  order: new Chart("order-chart", { height: 300, paint: paintOrder, margin: roomy, canvas: true, zooms: true, hint: HINT }),
  cost: new Chart("cost-chart", { height: 260, paint: paintCost, margin: roomy, canvas: true }),
  ranks: new Chart("ranks-chart", { height: 260, paint: paintRanks, margin: roomy }),
  waste: new Chart("waste-chart", { height: 270, paint: paintWaste, margin: roomy }),
};

function render() {
  look = lookAt(state.epoch, state.ranks, state.rank);
  byId("scope").textContent = `Epoch ${look.epoch.epoch}, ${who()}`;
  writeFacts();
  charts.fill.height = Math.max(1, bars().length) * BAR + 56;
  for (const chart of Object.values(charts)) chart.draw();
  zoomed(charts.order.view);
}

function writeFacts() {
  const now = facts(), { world } = look;
  const write = (name, value, beside) => {
    if (value !== null) document.querySelector(`[data-fact="${name}"]`).textContent = value;
    if (beside !== null) document.querySelector(`[data-beside="${name}"]`).textContent = beside;
  };
  write("samples", null, `${plural(now.sequences, "sequence")} dealt`);
  write("tokens", brief(now.tokens), `${count(now.tokens)} of ${count(now.slots)} slots`);
  write("fill", percent(1 - now.waste), `${percent(now.waste, 2)} padding`);
  write("microbatches", count(now.microbatches), world.nulls ? `and ${count(world.nulls)} empty, over all ranks` : "none empty");
  write("steps", count(world.steps), `${microbatches(world.step_size)} each`);
  write("shapes", count(now.shapes), null);
}

// Another epoch or another rank is another sequence: what was zoomed into is gone.
function lookElsewhere(changes) {
  for (const chart of Object.values(charts)) Object.assign(chart, { view: null, at: null });
  Object.assign(state, changes);
  render();
}

function zoomed(view) {
  document.querySelector('[data-zoom="reset"]').disabled = !view;
}

function option(select, value, text) {
  add(select, "option", { value: String(value) }, text);
}

function offerRanks() {
  byId("rank").replaceChildren();
  option(byId("rank"), "all", data.share === null ? "all" : String(data.share));
  if (data.share === null && state.ranks > 1) for (let rank = 0; rank < state.ranks; rank++) option(byId("rank"), rank, String(rank));
  byId("rank").disabled = byId("rank").options.length === 1;
}

function wireChoices() {
  data.epochs.forEach((epoch, i) => option(byId("epoch"), i, String(epoch.epoch)));
  data.ranks.forEach((ranks) => option(byId("world"), ranks, String(ranks)));
  for (const id of ["epoch", "world"]) byId(id).disabled = byId(id).options.length === 1;
  offerRanks();
  byId("epoch").addEventListener("change", ({ target }) => lookElsewhere({ epoch: Number(target.value) }));
  byId("rank").addEventListener("change", ({ target }) => lookElsewhere({ rank: target.value === "all" ? null : Number(target.value) }));
  byId("world").addEventListener("change", ({ target }) => {
    state.ranks = Number(target.value);
    offerRanks();
    lookElsewhere({ rank: null });
  });
  byId("fill-tools").hidden = data.groups.length === 0;
  for (const input of document.querySelectorAll(".switch input")) {
    input.addEventListener("change", () => { state[input.name] = input.value; render(); });
  }
}

function wireZoom() {
  const { order } = charts, zooms = { in: () => order.zoomBy(0.5), out: () => order.zoomBy(2), reset: () => order.zoomTo(null) };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", zooms[button.dataset.zoom]);
  order.onzoom = zoomed;
}

wireChoices();
wireZoom();
start(render);
