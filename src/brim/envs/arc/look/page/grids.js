// Grids: read from their short text, and drawn as SVG. A cell has a class for its colour, so the style decides about the palette.

const OPEN = 10;  // an open cell of the clipboard
const FINEST = 5;  // pixels of a cell from which on cells are divided by lines
const READABLE = 9;  // pixels of a cell from which on it can hold a digit

// Writes a run-length code over cells: a letter for a value and the length of its run; "z" leaves cells as they are.
function readRuns(text, cells) {
  let at = 0;
  for (const [, letter, many] of text.matchAll(/([a-z])(\d*)/g)) {
    const end = at + Number(many || 1);
    if (letter !== "z") cells.fill(letter.charCodeAt(0) - 97, at, end);
    at = end;
  }
  return cells;
}

function readGrid(text) {
  const [, rows, columns, runs] = text.match(/^(\d+)x(\d+):(.*)$/);
  return { rows: Number(rows), columns: Number(columns), cells: readRuns(runs, new Uint8Array(rows * columns)) };
}

const readPairs = (texts) => texts.reduce((pairs, text, i) => {
  if (i % 2) pairs.at(-1).output = readGrid(text); else pairs.push({ input: readGrid(text) });
  return pairs;
}, []);

const sizeText = ({ rows, columns }) => `${rows}x${columns}`;
const linesOf = ({ rows, columns, cells }) => Array.from({ length: rows }, (_, row) => [...cells.subarray(row * columns, (row + 1) * columns)].map((cell) => (cell === OPEN ? "." : cell)).join(" ")).join("\n");

// The largest whole number of pixels for a cell with which a grid fits into a room.
const cellFor = ({ rows, columns }, width, height, most) => Math.max(1, Math.min(most, Math.floor((width - 1) / columns), Math.floor((height - 1) / rows)));

// options: label; selected(row, column), whose true cells are outlined; digits.
function drawGrid(svg, grid, cell, { label, selected = null, digits = false }) {
  const { rows, columns, cells } = grid, width = columns * cell + 1, height = rows * cell + 1;
  svg.replaceChildren();
  svg.setAttribute("class", "cells");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const body = add(svg, "g", { transform: `translate(.5 .5) scale(${cell})` });
  coloured(grid).forEach((path, colour) => { if (path) add(body, "path", { class: `c${colour}`, d: path }); });
  add(svg, "path", { class: "lines", d: dividers(rows, columns, cell) });
  if (digits && cell >= READABLE) {
    const text = add(svg, "g", { "font-size": (cell * 0.58).toFixed(1), "text-anchor": "middle" });
    cells.forEach((colour, at) => {
      if (colour === OPEN) return;
      const x = ((at % columns) + 0.5) * cell + 0.5, y = (Math.floor(at / columns) + 0.5) * cell + 0.5;
      add(text, "text", { class: `i${colour}`, x: x.toFixed(1), y: y.toFixed(1) }, colour);
    });
  }
  if (!selected) return;
  const edge = outline(rows, columns, cell, selected);
  for (const name of ["outside", "inside"]) add(svg, "path", { class: name, d: edge });
}

// For each colour, its cells as rectangles one row high, in units of cells.
function coloured({ rows, columns, cells }) {
  const paths = Array(OPEN + 1).fill("");
  for (let row = 0; row < rows; row++) for (let left = 0; left < columns;) {
    const colour = cells[row * columns + left];
    let right = left + 1;
    while (right < columns && cells[row * columns + right] === colour) right++;
    paths[colour] += `M${left} ${row}h${right - left}v1H${left}z`;
    left = right;
  }
  return paths;
}

function dividers(rows, columns, cell) {
  const width = columns * cell + 1, height = rows * cell + 1;
  let path = "";
  for (let row = 0; row <= rows; row += cell < FINEST ? rows : 1) path += `M0 ${row * cell + 0.5}H${width}`;
  for (let column = 0; column <= columns; column += cell < FINEST ? columns : 1) path += `M${column * cell + 0.5} 0V${height}`;
  return path;
}

// The edges between cells that are selected and cells that are not.
function outline(rows, columns, cell, selected) {
  const has = (row, column) => row >= 0 && column >= 0 && row < rows && column < columns && selected(row, column);
  const at = (number) => number * cell + 0.5;
  let path = "";
  for (let row = 0; row <= rows; row++) for (let column = 0; column <= columns; column++) {
    if (has(row, column) !== has(row - 1, column)) path += `M${at(column)} ${at(row)}h${cell}`;
    if (has(row, column) !== has(row, column - 1)) path += `M${at(column)} ${at(row)}v${cell}`;
  }
  return path;
}
