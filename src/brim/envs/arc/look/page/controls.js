// What both pages have: the palette, digits in cells, the list of keys, and the keyboard.

const look = { palette: data.palettes[0], digits: false };

function choosePalette(name) {
  look.palette = name;
  document.documentElement.dataset.palette = name;
  for (const input of document.querySelectorAll('input[name="palette"]')) input.checked = input.value === name;
}

function wireLook(redraw) {
  for (const input of document.querySelectorAll('input[name="palette"]')) input.addEventListener("change", () => choosePalette(input.value));
  byId("digits").addEventListener("click", () => {
    look.digits = !look.digits;
    byId("digits").setAttribute("aria-pressed", String(look.digits));
    redraw();
  });
  byId("keys").addEventListener("click", () => byId("help").showModal());
  for (const button of document.querySelectorAll("dialog .close")) button.addEventListener("click", () => button.closest("dialog").close());
  for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}

const LOOKS = {
  k: () => choosePalette(data.palettes[(data.palettes.indexOf(look.palette) + 1) % data.palettes.length]),
  d: () => byId("digits").click(),
  "?": () => byId("keys").click(),
};

// Whether a control that has the focus has its own use for a key.
function isTaken(target, key) {
  if (target.matches("input[type=search], select")) return true;
  if (target.matches("input")) return key === " " ? target.type !== "range" : key.startsWith("Arrow") || ["Home", "End", "PageUp", "PageDown"].includes(key);
  return target.matches("button, a, summary") && (key === " " || key === "Enter");
}

// choose(event) returns the keys that mean something now: {key: function}.
function wireKeys(choose) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTaken(event.target, event.key)) return;
    if (byId("help").open) return;
    const act = { ...LOOKS, ...choose(event) }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
