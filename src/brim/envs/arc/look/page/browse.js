// The page of tasks: small pictures that are drawn when they come into view, filters, and one task opened large.

const view = { search: "", size: "all", pairs: "all", colours: "all", shape: "all", sort: "given" };
const gallery = byId("gallery"), dialog = byId("task");
const cards = data.tasks.map((task, at) => {
  const [train, test, rows, columns, colours, isSame] = task.facts;
  return { at, task, train, test, rows, columns, colours, isSame: Boolean(isSame), size: rows * columns, name: task.id.toLowerCase() };
});
let listed = cards, current = 0, opened = null;

const aboutText = ({ train, test, rows, columns, colours }) => `${plural(train, "demonstration")}, ${plural(test, "test")}, grids up to ${rows}x${columns}, ${plural(colours, "colour")}`;

function createCard(card) {
  const node = document.createElement("button");
  node.type = "button";
  node.className = "card";
  node.tabIndex = -1;
  node.dataset.at = card.at;
  node.title = card.task.id;
  add(node, "span", { class: "picture" });
  add(node, "bdi", { class: "id" }, card.task.id);
  add(node, "span", { class: "about" }, `${card.train} + ${card.test} pairs, ${card.rows}x${card.columns}`);
  card.node = node;
  return node;
}

// The first demonstration, small.
function drawCard(card) {
  const picture = card.node.firstChild, [pair] = readPairs(card.task.train.slice(0, 2));
  if (picture.childElementCount) return;
  for (const [name, grid] of Object.entries(pair)) {
    if (name === "output") add(picture, "span", { class: "arrow", "aria-hidden": "true" }, "→");
    drawGrid(add(picture, "svg"), grid, cellFor(grid, 66, 66, 10), { label: `first demonstration, ${name}` });
  }
}

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) {
    watcher.unobserve(target);
    drawCard(cards[target.dataset.at]);
  }
}, { rootMargin: "400px" });

const SORTS = { given: (a, b) => a.at - b.at, "size-up": (a, b) => a.size - b.size, "size-down": (a, b) => b.size - a.size, id: (a, b) => (a.name < b.name ? -1 : Number(a.name > b.name)) };

function isWanted(card) {
  const { search, size, pairs, colours, shape } = view;
  return card.name.includes(search.toLowerCase().trim()) && (size === "all" || Math.max(card.rows, card.columns) <= Number(size))
    && (pairs === "all" || card.train === Number(pairs)) && (colours === "all" || card.colours === Number(colours)) && (shape === "all" || card.isSame === (shape === "same"));
}

function listCards() {
  listed = cards.filter(isWanted).sort((a, b) => SORTS[view.sort](a, b) || a.at - b.at);
  gallery.replaceChildren(...listed.map((card) => card.node));
  byId("matches").textContent = listed.length ? `${plural(listed.length, "task")} of ${count(cards.length)}` : "No task is like that.";
  makeCurrent(listed.some((card) => card.at === current) ? current : listed[0]?.at ?? 0);
}

// One card at a time can be reached with Tab; the arrows move between them.
function makeCurrent(at, focus = false) {
  cards[current].node.tabIndex = -1;
  current = at;
  cards[at].node.tabIndex = 0;
  if (focus) cards[at].node.focus();
}

// Cards beside each other: those of the first row are at the same height.
function columnsNow() {
  const [first] = listed, next = listed.findIndex((card) => card.node.offsetTop !== first.node.offsetTop);
  return next < 0 ? listed.length : next;
}

function moveBy(many) {
  const place = listed.findIndex((card) => card.at === current), to = place + many;
  if (listed[to]) makeCurrent(listed[to].at, true);
}

function openTask(at) {
  opened = at;
  const { task } = cards[at];
  byId("task-id").textContent = task.id;
  byId("task-facts").textContent = aboutText(cards[at]);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  for (const kind of ["train", "test"]) byId(kind).replaceChildren();
  answers.clear();
  drawTask();
  history.replaceState(null, "", `#task=${at + 1}`);
}

const answers = new Set();  // numbers of the test pairs whose output is shown

function drawTask() {
  if (opened === null) return;
  const { task } = cards[opened], width = byId("train").clientWidth;
  for (const kind of ["train", "test"]) {
    const isTest = kind === "test", pairs = readPairs(task[kind]);
    byId(kind).replaceChildren(...pairs.map((pair, i) => pairNode(pair, `${isTest ? "Test" : "Demonstration"} pair ${i}`, width, isTest ? i : null)));
    if (!pairs.length) byId(kind).textContent = "none";
  }
}

// A pair, large; the output of a test stays hidden behind a button until it is asked for.
function pairNode(pair, name, width, test) {
  const node = document.createElement("div"), { input, output } = pair, room = (width < 900 ? Math.min(width, 640) : (width - 40) / 2) - 56;  // two beside each other, if they can be large
  const both = { rows: Math.max(input.rows, output.rows), columns: input.columns + output.columns }, cell = Math.max(3, cellFor(both, room, 400, 26));
  const isHidden = test !== null && !answers.has(test);
  node.className = "couple";
  add(node, "p", { class: "label" }, `${name}: ${sizeText(input)} to ${isHidden ? "a hidden size" : sizeText(output)}`);
  const row = add(node, "div", { class: "both" });
  drawGrid(add(row, "svg"), input, cell, { label: `${name}, input, ${sizeText(input)}`, digits: look.digits });
  add(row, "span", { class: "arrow", "aria-hidden": "true" }, "→");
  if (!isHidden) drawGrid(add(row, "svg"), output, cell, { label: `${name}, output, ${sizeText(output)}`, digits: look.digits });
  if (test !== null) {
    const button = add(isHidden ? row : node, "button", { type: "button", class: "answer", "data-test": test }, isHidden ? "Show the answer" : "Hide the answer");
    button.addEventListener("click", () => {
      if (isHidden) answers.add(test); else answers.delete(test);
      drawTask();
      byId("test").querySelector(`[data-test="${test}"]`).focus();
    });
  }
  return node;
}

function toggleAnswers() {
  const tests = cards[opened].test;
  if (answers.size === tests) answers.clear(); else for (let i = 0; i < tests; i++) answers.add(i);
  drawTask();
}

function goTask(way) {
  const place = listed.findIndex((card) => card.at === opened);
  const next = listed[(place + way + listed.length) % listed.length];
  if (next) openTask(next.at);
}

function followAddress() {
  const number = Number(new URLSearchParams(location.hash.slice(1)).get("task") || NaN) - 1;
  if (number in cards) openTask(number); else if (dialog.open) dialog.close();
}

function wire() {
  const choose = (changes) => { Object.assign(view, changes); listCards(); };
  byId("search").addEventListener("input", ({ target }) => choose({ search: target.value }));
  for (const id of ["size", "pairs", "colours", "shape", "sort"]) byId(id).addEventListener("change", ({ target }) => choose({ [id]: target.value }));
  gallery.addEventListener("click", (event) => {
    const node = event.target.closest(".card");
    if (!node) return;
    makeCurrent(Number(node.dataset.at));
    openTask(current);
  });
  byId("previous").addEventListener("click", () => goTask(-1));
  byId("next").addEventListener("click", () => goTask(1));
  dialog.addEventListener("close", () => {
    const at = opened;
    opened = null;
    history.replaceState(null, "", location.pathname + location.search);
    if (at !== null && listed.some((card) => card.at === at)) makeCurrent(at, true);
  });
  wireLook(drawTask);
  const within = { ArrowLeft: () => goTask(-1), ArrowRight: () => goTask(1), a: toggleAnswers };
  const among = { ArrowLeft: () => moveBy(-1), ArrowRight: () => moveBy(1), ArrowUp: () => moveBy(-columnsNow()), ArrowDown: () => moveBy(columnsNow()), "/": () => byId("search").focus() };
  const jumps = { ...among, Home: () => moveBy(-listed.findIndex((card) => card.at === current)), End: () => moveBy(listed.length - 1 - listed.findIndex((card) => card.at === current)) };
  wireKeys((event) => (dialog.open ? within : gallery.contains(event.target) ? jumps : { "/": among["/"], ArrowRight: () => makeCurrent(current, true) }));
  window.addEventListener("hashchange", followAddress);
  window.addEventListener("beforeprint", () => listed.forEach(drawCard));
  new ResizeObserver(() => { if (byId("train").clientWidth !== dialog.drawn) { dialog.drawn = byId("train").clientWidth; drawTask(); } }).observe(byId("train"));
}

for (const card of cards) watcher.observe(createCard(card));
wire();
document.documentElement.classList.add("js");
listCards();
followAddress();
start(() => {});
