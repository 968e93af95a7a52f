// The page of episodes: the list with its filters, the controls of the player, and the keyboard.

const view = { search: "", outcome: "all", sort: "recorded" };
const rows = [...document.querySelectorAll("#list tbody tr")].map((node, at) => ({ node, at, ...data.episodes[at] }));
for (const row of rows) row.name = row.id.toLowerCase();
const ORDERS = { recorded: ["at", 1], "reward-down": ["reward", -1], "reward-up": ["reward", 1], "steps-down": ["steps", -1], "steps-up": ["steps", 1], "similarity-down": ["alike", -1], "similarity-up": ["alike", 1] };
let listed = rows;

function listRows() {
  const search = view.search.toLowerCase().trim(), [key, way] = ORDERS[view.sort];
  listed = rows.filter((row) => (view.outcome === "all" || row.outcome === view.outcome) && row.name.includes(search));
  listed.sort((a, b) => way * (a[key] - b[key]) || a.at - b.at);
  const body = document.createDocumentFragment(), found = new Set(listed);
  for (const row of rows) row.node.hidden = !found.has(row);
  body.append(...listed.map((row) => row.node));
  document.querySelector("#list tbody").append(body);
  byId("matches").textContent = listed.length ? `${plural(listed.length, "episode")} of ${count(rows.length)}` : "No episode is like that.";
}

function markRows() {
  for (const { node, at } of rows) {
    if (shown().includes(at)) node.setAttribute("aria-current", "true"); else node.removeAttribute("aria-current");
    node.querySelector("button").disabled = at === state.first;
    node.querySelector("button").setAttribute("aria-pressed", String(at === state.second));
  }
}

// The next or previous episode of the list as it is filtered and sorted; it begins at its first step.
function neighbour(from, way, without = null) {
  const order = listed.map((row) => row.at).filter((at) => at !== without);
  if (!order.length) return from;
  const place = order.indexOf(from);
  return place < 0 ? order[0] : order[(place + way + order.length) % order.length];
}

function goEpisode(way) {
  pause();
  show({ first: neighbour(state.first, way, state.second), position: 0 });
  said.textContent = `Episode ${data.episodes[state.first].id}, ${OUTCOMES[data.episodes[state.first].outcome]}`;
}

function toggleCompare() {
  pause();
  if (state.second !== null) return show({ second: null });
  if (rows.length < 2) return said.textContent = "There is no other episode to compare with.";
  const same = rows.find((row) => row.at !== state.first && row.task === data.episodes[state.first].task && listed.includes(row));
  const next = neighbour(state.first, 1);
  show({ second: same ? same.at : next !== state.first ? next : rows.find((row) => row.at !== state.first).at });
}

function wireList() {
  const choose = (changes) => { Object.assign(view, changes); listRows(); };
  byId("search").addEventListener("input", ({ target }) => choose({ search: target.value }));
  for (const id of ["outcome", "sort"]) byId(id).addEventListener("change", ({ target }) => choose({ [id]: target.value }));
  document.querySelector("#list tbody").addEventListener("click", (event) => {
    const row = rows.find(({ node }) => node.contains(event.target));
    if (!row || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    pause();
    if (event.target.closest("button")) show({ second: state.second === row.at ? null : row.at });
    else show({ first: row.at, second: state.second === row.at ? null : state.second, position: 0 });
    byId("player").scrollIntoView({ block: "start" });
  });
  listRows();
}

function wirePlayer() {
  const clicks = {
    play: togglePlay,
    back: () => stepTo(state.position - 1),
    forth: () => stepTo(state.position + 1),
    "to-start": () => stepTo(0),
    "to-end": () => stepTo(last()),
    previous: () => goEpisode(-1),
    next: () => goEpisode(1),
    compare: toggleCompare,
    "previous-second": () => { pause(); show({ second: neighbour(state.second, -1, state.first) }); },
    "next-second": () => { pause(); show({ second: neighbour(state.second, 1, state.first) }); },
  };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
  byId("scrub").addEventListener("input", ({ target }) => stepTo(Number(target.value)));
  const speed = byId("speed"), setSpeed = (at) => { speed.selectedIndex = Math.max(0, Math.min(speed.length - 1, at)); state.speed = Number(speed.value); };
  speed.addEventListener("change", () => setSpeed(speed.selectedIndex));
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) setSpeed(0);
  for (const input of document.querySelectorAll('input[name="by"]')) input.addEventListener("change", () => { pause(); show({ by: input.value }); });
  const keys = { " ": togglePlay, ArrowRight: clicks.forth, ArrowLeft: clicks.back, Home: clicks["to-start"], End: clicks["to-end"], n: clicks.next, p: clicks.previous, c: toggleCompare };
  for (const [key, way] of [["+", 1], ["=", 1], ["-", -1]]) keys[key] = () => setSpeed(speed.selectedIndex + way);
  wireKeys(() => keys);
}

wireLook(() => { for (const pane of openPanes()) pane.draw(); });
wireList();
wirePlayer();
window.addEventListener("hashchange", followAddress);
document.documentElement.classList.add("js");  // the player has its size before it is drawn
if (!followAddress()) show();
start(() => { for (const pane of openPanes()) pane.chart.draw(); });
