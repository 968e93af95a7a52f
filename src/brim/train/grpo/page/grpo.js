// The page: its charts, the names of the runs, and the choice of one of them.

const roomy = { left: 56, right: 22, top: 30, bottom: 40 }, small = { ...roomy, left: 50, right: 18 };
const charts = [];
const draws = (id, height, paint, margin = small) => { if (byId(`${id}-chart`)) charts.push(new Chart(`${id}-chart`, { height, margin, paint })); };
const of = (name) => (curves) => curves[name];
const pick = (list, k) => (curves, i) => curves[list][k][i];

// A chart of lines and its legend, which names the series if there are several.
function lines(id, about, height = 210, margin = small) {
  if (!byId(`${id}-chart`)) return;
  const series = about.series.filter((one) => runs.some((run) => one.values(one.evaluated ? run.evaluations : run.curves).some((value) => value !== null)));
  draws(id, height, (chart) => paintLines(chart, { ...about, series: series.length ? series : about.series }), margin);
  if (series.length > 1) legend(`${id}-legend`, series.map((one, at) => ({ name: one.name, kind: several ? (at ? "plain second" : "plain") : `s${at}`, shape: one.evaluated ? "spots" : "line" })));
}

function areas(id, about) {
  draws(id, 210, (chart) => paintAreas(chart, about));
  legend(`${id}-legend`, about.parts.map(({ name, kind }) => ({ name, kind, shape: "rect" })));
}

const training = (name) => ({ name: "training", at: "version", values: of(name) });
const one = (name, key, more = {}) => ({ name, series: [{ name, at: "step", values: of(key) }], ...more });

// The lines of one run share a chart; those of several runs have one for training, and one for held-out tasks.
const heldOut = { reward: { name: "held out", evaluated: true, values: of("reward"), error: of("error") }, passed: { name: "held out", evaluated: true, values: of("pass_rate") } };
const rewards = { name: "mean reward" }, passes = { name: "pass rate", unit: "share of attempts", format: shareOf, top: 1 };
lines("reward", { ...rewards, series: [training("reward"), ...(several ? [] : [heldOut.reward])] }, 300, roomy);
lines("held", { ...rewards, series: [heldOut.reward] }, 300, roomy);
lines("pass", { ...passes, series: [training("pass_rate"), ...(several ? [] : [heldOut.passed])] }, several ? 240 : 300);
lines("held-pass", { ...passes, series: [heldOut.passed] }, 240);
data.parts.forEach((name, k) => lines(`part-${k}`, { name, unit: "mean", series: [{ name, at: "version", values: (curves) => curves.parts[k] }] }, 190));

lines("length", { name: "length", unit: "tokens", format: lengthOf, series: [{ name: "median", at: "version", values: of("median"), low: of("lower"), high: of("upper") }] });
lines("turns", { name: "turns", series: [{ name: "turns", at: "version", values: of("turns") }] });
const REASONS = { eos: "eos", stop: "stop", length: "cut" };
areas("ended", { name: "How attempts end", unit: "share of attempts", format: shareOf, top: 1, smooth: true, whole: (curves, i) => total(curves.ended.map((counts) => counts[i])),
  parts: data.reasons.map((name, k) => ({ name, kind: REASONS[name] || `kind-${k % 4}`, value: pick("ended", k) })) });
areas("dead", { name: "Dead groups", unit: "share of groups", format: shareOf, top: 0.1, smooth: true, whole: (curves, i) => curves.groups[i],
  parts: [{ name: "no attempt passed", kind: "low", value: (curves, i) => curves.dead_low[i] }, { name: "some or all passed", kind: "high", value: (curves, i) => curves.dead_high[i] }] });

lines("entropy", one("entropy", "entropy", { unit: "nats" }));
lines("kl", one("KL to the reference", "kl", { unit: "nats for a token", caps: true }));
lines("policy-kl", one("KL of an update", "policy_kl", { unit: "nats for a token", caps: true }));
lines("clipped", { name: "clipped tokens", unit: "share of drawn tokens", format: shareOf, series: [{ name: "ratio too small", at: "step", values: of("clipped_low") }, { name: "ratio too large", at: "step", values: of("clipped_high") }] });
lines("norm", one("gradient norm", "grad_norm", { caps: true }));
lines("mismatch", one("mismatch", "mismatch", { unit: "nats for a token", caps: true, level: { value: 0.02, text: "0.02" } }));
lines("correction", one("correction weight", "correction", { top: 1 }));

areas("time", { name: "Time of a rollout", unit: "seconds", format: decimal, whole: (curves, i) => curves.last[i] - curves.first[i] + 1,
  parts: [["rollout", "rollout"], ["rewards", "rewards"], ["training", "learning"], ["rest", "rest"]].map(([name, kind], k) => ({ name, kind, value: pick("seconds", k) })) });
lines("rate", { name: "tokens per second", format: lengthOf, series: [{ name: "rollout", at: "step", values: of("rollout_rate") }, { name: "training", at: "step", values: of("train_rate") }] });
lines("fill", { name: "fill", unit: "share of slots", format: shareOf, top: 1, series: [{ name: "rollout", at: "step", values: of("rollout_fill") }, { name: "training", at: "step", values: of("fill") }] });

// The names of the runs: one that is pressed stands out in all charts.
function nameRuns() {
  const list = byId("runs-legend");
  if (!several) return;
  const main = byId("main"), buttons = runs.map((run, at) => {
    const button = add(add(list, "li"), "button", { type: "button", "aria-pressed": "false" }), svg = add(button, "svg", { viewBox: "0 0 22 14", "aria-hidden": "true" });
    add(svg, "path", { class: `curve run run-${at % COLOURS}`, d: "M0 7H22" });
    button.append(run.name);
    button.addEventListener("click", () => light(button.getAttribute("aria-pressed") === "true" ? null : at));
    return button;
  });
  if (data.averaged) {
    const item = add(list, "li"), svg = add(item, "svg", { viewBox: "0 0 22 14", "aria-hidden": "true" });
    add(svg, "rect", { class: "band mean", width: 22, height: 14 });
    add(svg, "path", { class: "curve mean", d: "M0 7H22" });
    item.append(`mean of the ${runs.length} runs, with its standard error`);
  }
  const light = (chosen) => {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(at === chosen)));
    main.classList.toggle("lit", chosen !== null);
    mark(chosen);
    if (chosen !== null) choose(chosen);
  };
  const mark = (chosen) => {
    for (const line of document.querySelectorAll("figure .run")) line.classList.toggle("chosen", chosen !== null && line.classList.contains(`one-${chosen}`));
  };
  return () => mark(buttons.findIndex((button) => button.getAttribute("aria-pressed") === "true"));
}

// Shows the responses and the options of one run.
function choose(chosen) {
  for (const section of document.querySelectorAll("main > section")) {
    const blocks = [...section.querySelectorAll(".of-run")], select = section.querySelector(".chosen-run");
    if (!blocks.some((block) => block.dataset.run === String(chosen))) continue;  // not all sections are about all runs
    select.value = String(chosen);
    for (const block of blocks) block.hidden = block.dataset.run !== String(chosen);
  }
}

const relight = nameRuns();
for (const select of document.querySelectorAll(".chosen-run")) select.addEventListener("change", () => choose(select.value));
choose(0);
start(() => { for (const chart of charts) chart.draw(); relight?.(); });
