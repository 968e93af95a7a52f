// The prompts: searched, filtered, sorted, unfolded. What is found is marked without changing the text.

const FEW = 10;  // prompts shown at first, and added by the button
const view = { search: "", kind: "all", ending: "all", sort: "file", shown: FEW };
const cards = [...document.querySelectorAll("#cards .prompt")].map((node) => ({
  node,
  at: Number(node.dataset.at),
  solved: node.dataset.solved,
  rate: Number(node.dataset.rate ?? NaN),
  length: Number(node.dataset.length ?? NaN),
  responses: [...node.querySelectorAll(".response")],
  get text() {  // lower case, put together when it is first searched
    const text = [...node.querySelectorAll(".text, .id")].map((part) => part.textContent).join("\n").toLowerCase();
    Object.defineProperty(this, "text", { value: text });
    return text;
  },
}));

const ORDERS = { file: ["at", 1], "rate-up": ["rate", 1], "rate-down": ["rate", -1], "length-down": ["length", -1], "length-up": ["length", 1] };
const endsLike = (response) => view.ending === "all" || response.dataset.ending === view.ending;
const isUnknown = Number.isNaN;

function matching() {
  const search = view.search.toLowerCase().trim(), [key, way] = ORDERS[view.sort];
  const found = cards.filter((card) => (view.kind === "all" || card.solved === view.kind) && card.responses.some(endsLike) && card.text.includes(search));
  return found.sort((a, b) => isUnknown(a[key]) - isUnknown(b[key]) || way * (a[key] - b[key]) || a.at - b.at);
}

// Those that do not match are hidden, in front of them. A node that stays where it is keeps its focus and scroll position.
function putInOrder(nodes) {
  const list = byId("cards"), before = list.children.length - nodes.length;
  if (nodes.some((node, i) => node !== list.children[before + i])) list.append(...nodes);
}

function listCards() {
  const found = matching(), shown = found.slice(0, view.shown), left = found.length - shown.length;
  for (const card of cards) card.node.hidden = true;
  putInOrder(found.map((card) => card.node));
  for (const card of shown) {
    card.node.hidden = false;
    for (const response of card.responses) response.hidden = !endsLike(response);
  }
  const responses = total(found.map((card) => card.responses.filter(endsLike).length));
  byId("matches").textContent = found.length
    ? `${plural(found.length, "prompt")} with ${plural(responses, "response")}${left ? `, the first ${count(shown.length)} prompts shown` : ""}`
    : "No prompt is like that.";
  byId("more").hidden = !left;
  byId("more").textContent = `Show ${count(Math.min(left, FEW))} more`;
  byId("unfold").disabled = !shown.length;
  nameUnfold();
  markFound();
  return found;
}

const seen = () => cards.filter((card) => !card.node.hidden);
const areOpen = () => seen().length > 0 && seen().every((card) => card.node.open);

function nameUnfold() {
  byId("unfold").textContent = areOpen() ? "Fold all" : "Unfold all";
}

// Marks what was searched for in the unfolded prompts, and scrolls the boxes of long texts to it.
function markFound() {
  if (!window.Highlight || !CSS.highlights) return;
  const search = view.search.toLowerCase().trim(), ranges = [];
  if (search) for (const { node } of seen()) if (node.open) for (const box of node.querySelectorAll(".text")) {
    const leaf = box.firstChild, text = leaf.data.toLowerCase();
    if (text.length !== leaf.data.length) continue;  // letters that change their length with their case: positions are lost
    for (let at = text.indexOf(search), first = true; at >= 0; at = text.indexOf(search, at + search.length), first = false) {
      const range = new Range();
      range.setStart(leaf, at);
      range.setEnd(leaf, at + search.length);
      ranges.push(range);
      if (first) box.scrollTop += range.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 3;
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

function wireCards() {
  const choose = (changes) => { Object.assign(view, { shown: FEW, ...changes }); listCards(); };
  if (matchMedia("(max-width: 760px)").matches) for (const card of cards) card.node.open = false;  // unfolded, one fills several screens
  byId("search").addEventListener("input", ({ target }) => choose({ search: target.value }));
  for (const id of ["kind", "ending", "sort"]) byId(id)?.addEventListener("change", ({ target }) => choose({ [id]: target.value }));
  for (const card of cards) card.node.addEventListener("toggle", () => { nameUnfold(); markFound(); });
  byId("unfold").addEventListener("click", () => {
    const open = !areOpen();
    for (const card of seen()) card.node.open = open;
    nameUnfold();
  });
  byId("more").addEventListener("click", () => {
    const from = view.shown;
    view.shown += FEW;
    listCards()[from].node.querySelector("summary").focus();
  });
  listCards();
}
