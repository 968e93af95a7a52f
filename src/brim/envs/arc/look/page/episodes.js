// Episodes: their frames, put together from what each step changed, and the words for an action.

const KEPT = 8;  // episodes whose frames are kept, for going back and forth
const tasks = data.tasks.map(({ id, train, test }) => ({ id, texts: { train, test }, pairs: {} }));
const unpacked = new Map();

function pairsOf(task, kind) {
  task.pairs[kind] ??= readPairs(task.texts[kind]);
  return task.pairs[kind];
}

function framesOf(number) {
  if (!unpacked.has(number)) {
    unpacked.set(number, unpack(data.episodes[number]));
    if (unpacked.size > KEPT) unpacked.delete(unpacked.keys().next().value);
  }
  return unpacked.get(number);
}

// A column has an entry for every step; without steps it is empty.
const column = (text, steps) => (steps ? text.split(",") : []);

function unpack(episode) {
  const { steps, width, clipboards, pairs } = episode, task = tasks[episode.task], input = ([kind, pair]) => pairsOf(task, kind)[pair].input;
  const operations = column(episode.operations, steps), selections = column(episode.selections, steps), grids = column(episode.grids, steps);
  const rewards = column(episode.rewards, steps), similarity = episode.similarity.split(",");
  let [kind, pair] = episode.begin, grid = input(episode.begin), clipboard = null, alike = Number(similarity[0]), reward = 0, sum = 0;
  const frames = [{ operation: null, invalid: "", selection: null, asked: null, grid, clipboard, kind, pair, reward: 0, sum, similarity: alike }];
  for (let i = 0; i < steps; i++) {
    const [operation, invalid = ""] = operations[i].split("!"), chosen = selections[i];
    if (pairs[i + 1]) [kind, pair] = pairs[i + 1];
    if (clipboards[i + 1]) clipboard = readGrid(clipboards[i + 1]);
    if (grids[i] === "=") grid = input([kind, pair]);
    else if (grids[i].includes(":")) grid = readGrid(grids[i]);
    else if (grids[i]) grid = { ...grid, cells: readRuns(grids[i], grid.cells.slice()) };
    if (rewards[i]) reward = Number(rewards[i]);
    if (similarity[i + 1]) alike = Number(similarity[i + 1]);
    sum += reward;
    const asked = chosen.startsWith("?") ? chosen.slice(1).split(".").map(Number) : null, cells = asked ? null : selectionOf(chosen, width);
    frames.push({ operation: Number(operation), invalid, selection: invalid ? null : cells, asked: asked ? boxOf(asked) : invalid ? cells : null, grid, clipboard, kind, pair, reward, sum, similarity: alike });
  }
  return frames;
}

const isWithin = ({ top, left, bottom, right }) => (row, column) => row >= top && row <= bottom && column >= left && column <= right;

// The cells as a box and a function: {top, left, bottom, right, cells, has(row, column)}; null if there are none.
function selectionOf(text, width) {
  if (!text) return null;
  if (text[0] !== "/") {
    const [top, left, bottom, right] = [...text].map((digit) => parseInt(digit, 36)), box = { top, left, bottom, right };
    return { ...box, cells: (bottom - top + 1) * (right - left + 1), has: isWithin(box) };
  }
  const mask = readRuns(text.slice(1), new Uint8Array(30 * width)), rows = [], columns = [];
  mask.forEach((is, at) => { if (is) { rows.push(Math.floor(at / width)); columns.push(at % width); } });
  const box = { top: rows[0], bottom: rows.at(-1), left: Math.min(...columns), right: Math.max(...columns) };
  return { ...box, cells: rows.length, has: (row, column) => column < width && mask[row * width + column] === 1 };
}

function boxOf(numbers) {
  const [r1, c1, r2 = r1, c2 = c1] = numbers;
  const box = { top: Math.min(r1, r2), left: Math.min(c1, c2), bottom: Math.max(r1, r2), right: Math.max(c1, c2) };
  return { ...box, cells: (box.bottom - box.top + 1) * (box.right - box.left + 1) };
}

const along = (name, low, high) => (low === high ? `${name} ${low}` : `${name}s ${low} to ${high}`);

function placeText(box) {
  if (box.cells === 1) return `at row ${box.top}, column ${box.left}`;
  const area = `${along("row", box.top, box.bottom)}, ${along("column", box.left, box.right)}`;
  const isFull = box.cells === (box.bottom - box.top + 1) * (box.right - box.left + 1);
  return isFull ? `in ${area}` : `in ${plural(box.cells, "cell")} of ${area}`;
}

const operationText = ({ operation }) => `operation ${operation}${data.operations[operation] ? `, ${data.operations[operation].name}` : ""}`;

function actionText(frame) {
  const { operation, invalid, selection, asked, grid } = frame;
  if (operation === null) return "beginning of the episode";
  const { words, uses } = data.operations[operation] || { words: `operation ${operation}`, uses: "none" };
  if (invalid) return `invalid: ${words}${asked && uses !== "none" ? ` ${placeText(asked)}` : ""} (${data.reasons[invalid]})`;
  if (uses === "none") return words;
  if (uses === "size" && selection) return `${words} to ${sizeText(grid)}`;
  if (!selection) return uses === "whole" ? `${words} the whole grid` : `${words}, with no cell selected`;
  if (uses === "corner") return `${words} at row ${selection.top}, column ${selection.left}`;
  return `${words} ${placeText(selection)}`;
}
