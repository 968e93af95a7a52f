// The page: its charts, and how their bars are divided.

const roomy = { left: 56, right: 22, top: 30, bottom: 40 }, small = { ...roomy, left: 50 }, rows = { left: 56, right: 4, top: 4, bottom: 40 };
const by = { lengths: "ending", certainty: "ending" };
const charts = [];
const draws = (id, options) => { if (byId(id)) charts.push(new Chart(id, options)); };

const stack = (name, of, about) => (chart) => paintStack(chart, { figure: data[name], by: by[of] || "ending", things: "responses", mean: data.means[name] ?? null, ...about });
draws("solved-chart", { height: 280, margin: roomy, paint: paintSolved });
draws("tries-chart", { height: 280, margin: small, paint: paintTries });
draws("lengths-chart", { height: 300, margin: roomy, paint: stack("lengths", "lengths", { name: "length", unit: `length in ${data.unit}`, isWhole: true }) });
draws("endings-chart", { height: 3 * ROW + 44, margin: rows, paint: paintEndings });
draws("entropy-chart", { height: 240, margin: small, paint: stack("entropy", "certainty", { name: "mean entropy", unit: "nats" }) });
draws("logprob-chart", { height: 240, margin: small, paint: stack("logprob", "certainty", { name: "log-prob per token", unit: "nats" }) });
draws("entropy-positions-chart", { height: 240, margin: small, paint: (chart) => paintPositions(chart, "entropy", "entropy") });
draws("logprob-positions-chart", { height: 240, margin: small, paint: (chart) => paintPositions(chart, "logprob", "log-prob") });
draws("gap-positions-chart", { height: 240, margin: small, paint: (chart) => paintPositions(chart, "gap", "difference") });
draws("gap-chart", { height: 240, margin: small, paint: stack("gap", "", { name: "difference", unit: "nats", things: "tokens" }) });

function render() {
  for (const [id, name] of [["lengths", "lengths"], ["certainty", data.entropy ? "entropy" : "logprob"]]) {
    if (byId(`${id}-legend`)) legend(`${id}-legend`, partsOf(data[name], by[id]));
  }
  for (const chart of charts) chart.draw();
}

for (const input of document.querySelectorAll(".switch input")) {
  input.addEventListener("change", () => { by[input.name] = input.value; render(); });
}
wireCards();
start(render);
