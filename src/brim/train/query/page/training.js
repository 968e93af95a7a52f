// The page: its charts, and the filters of the pairs.

const roomy = { left: 56, right: 22, top: 30, bottom: 40 }, small = { ...roomy, left: 46 }, rows = { left: 6, right: 22, top: 4, bottom: 40 };
const charts = [
  new Chart("reward-chart", { height: 300, margin: roomy, paint: paintReward }),
  new Chart("return-chart", { height: 220, margin: small, paint: paintReturn }),
  new Chart("solved-chart", { height: 220, margin: small, paint: paintSolved }),
  new Chart("choices-chart", { fit: (width) => layoutOf(width).height, margin: { left: 0, right: 0, top: 0, bottom: 0 }, paint: paintChoices }),
  new Chart("entropy-chart", { height: 200, margin: small, paint: paintEntropy }),
  new Chart("kl-chart", { height: 200, margin: small, paint: paintKl }),
  new Chart("clip-chart", { height: 200, margin: small, paint: paintClip }),
  new Chart("variance-chart", { height: 200, margin: small, paint: paintVariance }),
  new Chart("time-chart", { height: 260, margin: roomy, paint: paintTime }),
  new Chart("totals-chart", { height: 3 * ROW + 44, margin: rows, paint: paintTotals }),
];
if (data.invalid.length) {
  charts.push(new Chart("invalid-chart", { height: 220, margin: small, paint: paintInvalid }));
  charts.push(new Chart("types-chart", { height: data.invalid.length * ROW + 44, margin: rows, paint: paintTypes }));
}

const FEW = 10;  // cards shown at first, and added by the button
const state = { change: "all", kind: "all", shown: FEW };
const cards = [...document.querySelectorAll("#cards .card")];

function filterCards() {
  const matching = cards.filter(({ dataset }) => (state.change === "all" || dataset.change === state.change) && (state.kind === "all" || dataset.kind === state.kind));
  const shown = new Set(matching.slice(0, state.shown)), left = matching.length - shown.size;
  for (const card of cards) card.hidden = !shown.has(card);
  byId("matches").textContent = matching.length ? `${plural(matching.length, "pair")}, ${left ? `the first ${count(shown.size)} shown` : "all shown"}` : "No pair is like that.";
  byId("more").hidden = !left;
  byId("more").textContent = `Show ${count(Math.min(left, FEW))} more`;
  return matching;
}

function wireFilters() {
  if (!byId("more")) return;
  const choose = (changes) => { Object.assign(state, { shown: FEW, ...changes }); filterCards(); };
  for (const input of document.querySelectorAll('input[name="change"]')) input.addEventListener("change", () => choose({ change: input.value }));
  byId("kind")?.addEventListener("change", ({ target }) => choose({ kind: target.value }));
  byId("more").addEventListener("click", () => {
    const from = state.shown;
    state.shown += FEW;
    const first = filterCards()[from];
    first.tabIndex = -1;
    first.focus({ preventScroll: true });
  });
  filterCards();
}

wireFilters();
start(() => { for (const chart of charts) chart.draw(); });
