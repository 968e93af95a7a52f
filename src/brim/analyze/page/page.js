// What every page has: its numbers, short names for common things, and the button for dark and light.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

const signed = (x, digits = 3) => (x < 0 ? "−" : "") + Math.abs(x).toFixed(digits);
const range = (low, high) => (low === high ? count(low) : `${count(low)}–${count(high)}`);
const share = (part, whole) => (whole ? part / whole : 0);
const total = (list) => list.reduce((a, b) => a + b, 0);
const whole = (value) => (Number.isInteger(value) ? brief(value) : "");
const inside = (chart, px) => px >= chart.box.left - 4 && px <= chart.box.right + 4;

// Shows what needs a script, and draws: now, and whenever the colours change.
function start(render) {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const show = () => {
    byId("theme").textContent = isDark() ? "Light" : "Dark";
    byId("theme").setAttribute("aria-pressed", String(isDark()));
    render();
  };
  root.classList.add("js");
  byId("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; show(); });
  dark.addEventListener("change", show);
  matchMedia("print").addEventListener("change", render);  // canvases are drawn in the colours of the paper
  show();
}
