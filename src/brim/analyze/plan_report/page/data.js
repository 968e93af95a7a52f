// Numbers: columns out of base64, and the sequence of microbatches that a choice of epoch, ranks and rank gives.
// Nothing here is decided again: order and statistics come from Python.

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };

function decode(column) {
  if ("value" in column) return new Float64Array(column.count).fill(column.value);
  if ("identity" in column) return Uint32Array.from({ length: column.identity }, (_, i) => i);
  const text = atob(column.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAYS[column.type](bytes.buffer);
}

const decoded = new Map();
function once(key, make) {
  if (!decoded.has(key)) decoded.set(key, make());
  return decoded.get(key);
}

// The columns of microbatches (or of merged runs of them): width, slots, padding, cost, and count.
function columnsOf(epoch, world) {
  const source = world.columns || epoch.columns;
  const found = {};
  for (const name of Object.keys(source)) found[name] = decode(source[name]);
  const n = found.width.length;
  if (!found.slots) {
    found.slots = Float64Array.from(found.width, (width, i) => width * found.rows[i]);
    found.cost = Float64Array.from(found.slots, (slots, i) => slots + found.extra[i]);
  }
  if (!found.count) found.count = new Uint8Array(n).fill(1);
  if (!found.sequences) found.sequences = found.rows;
  return found;
}

// What is looked at: {epoch, world, columns, at, ranks, rounds}. at[i] is the column of the i-th microbatch in order.
function lookAt(epochIndex, ranks, rank) {
  const epoch = data.epochs[epochIndex];
  const world = epoch.worlds[ranks];
  const columns = world.columns
    ? once(`${epochIndex}/${ranks}`, () => columnsOf(epoch, world))
    : once(`${epochIndex}`, () => columnsOf(epoch, world));
  const places = once(`${epochIndex}/${ranks}/places`, () =>
    world.places ? decode(world.places) : decode({ identity: columns.width.length }));
  const isNull = world.merged ? (place) => columns.count[place] === 0 : (place) => place === epoch.count;
  const at = [], from = [];
  for (let i = rank === null ? 0 : rank; i < places.length; i += rank === null ? 1 : world.ranks) {
    if (!isNull(places[i])) { at.push(places[i]); from.push(i); }
  }
  const seen = rank === null ? 0 : rank + 1;
  return { epoch, world, columns, places, isNull, rank, at: Uint32Array.from(at), from: Uint32Array.from(from), seen };
}

const roundOf = (look, i) => Math.floor(look.from[i] / look.world.ranks);
const rankOf = (look, i) => (data.share === null ? look.from[i] % look.world.ranks : data.share);
const stepOf = (look, i) => {
  const { merged, rounds_per_step: rounds } = look.world;
  return merged ? roundOf(look, i) * merged : Math.floor(roundOf(look, i) / rounds);
};

function metricOf(look, metric) {
  const { width, slots, padding, cost, count } = look.columns;
  if (metric === "width") return (at) => width[at];
  if (metric === "tokens") return (at) => (slots[at] - padding[at]) / count[at];
  return (at) => cost[at] / count[at];
}

// Sums over some kind of microbatches: [{microbatches, sequences, tokens, slots}], one for each kind.
function sumsBy(look, kind, kinds) {
  const merged = kind === "band" ? look.world.bands : look.world.groups;
  const names = ["microbatches", "sequences", "tokens", "slots"];
  if (look.world.merged) {
    return Array.from({ length: kinds }, (_, i) => Object.fromEntries(names.map((name) => [name, merged[name][i]])));
  }
  const sums = Array.from({ length: kinds }, () => ({ microbatches: 0, sequences: 0, tokens: 0, slots: 0 }));
  const { slots, padding, sequences } = look.columns;
  for (const at of look.at) {
    const sum = sums[look.columns[kind][at]];
    sum.microbatches += 1;
    sum.sequences += sequences[at];
    sum.tokens += slots[at] - padding[at];
    sum.slots += slots[at];
  }
  return sums;
}

// Distinct shapes and how often each comes: [{rows, width, times}].
function shapesOf(look) {
  if (look.world.merged) {
    const [rows, width, times] = look.world.shapes.map(decode);
    return Array.from(rows, (value, i) => ({ rows: value, width: width[i], times: times[i] }));
  }
  const found = new Map();
  const { rows, width } = look.columns;
  for (const at of look.at) {
    const key = rows[at] * 4294967296 + width[at];
    const shape = found.get(key);
    if (shape) shape.times += 1;
    else found.set(key, { rows: rows[at], width: width[at], times: 1 });
  }
  return [...found.values()].sort((a, b) => a.rows - b.rows || a.width - b.width);
}

// Cost of every step for every rank, and what each rank costs in all: {steps, mean, slowest, own, totals}.
function costsOf(look) {
  const { world, columns, places } = look;
  const rounds = places.length / world.ranks;
  const perStep = world.merged ? 1 : world.rounds_per_step;
  const steps = Math.ceil(rounds / perStep);
  const costs = new Float64Array(steps * world.ranks);
  const totals = new Float64Array(world.ranks);
  for (let i = 0; i < places.length; i++) {
    if (look.isNull(places[i])) continue;
    const rank = i % world.ranks, step = Math.floor(i / world.ranks / perStep);
    costs[step * world.ranks + rank] += columns.cost[places[i]];
    totals[rank] += columns.cost[places[i]];
  }
  const mean = new Float64Array(steps), own = new Float64Array(steps);
  let slowest = new Float64Array(steps);
  for (let step = 0; step < steps; step++) {
    const row = costs.subarray(step * world.ranks, (step + 1) * world.ranks);
    mean[step] = row.reduce((a, b) => a + b, 0) / world.ranks;
    slowest[step] = row.reduce((a, b) => Math.max(a, b), 0);
    own[step] = look.rank === null ? slowest[step] : row[look.rank];
  }
  if (world.slowest) slowest = decode(world.slowest);
  if (look.rank === null) own.set(slowest);
  return { steps, mean, slowest, own, totals };
}
