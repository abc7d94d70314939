// What the counters mean: rates, means and percentiles as differences of two looks. Pure.
//
// A look is an answer of ui/figures. Its counts are sums since a version was loaded; a version that was loaded anew has
// another id and counts from zero.

const NS_PER_S = 1e9;
const NS_PER_MS = 1e6;
const COMPUTE = ["compute_input_ns", "compute_infer_ns", "compute_output_ns"];

/** A name for one version of a model that no other has. */
export function keyOf(model) {
  return JSON.stringify([model.namespace, model.name, model.version]);
}

/** The models of a look by their keys. */
export function byKey(look) {
  return new Map(look.models.map((model) => [keyOf(model), model]));
}

function grown(later, earlier, cell) {
  return later.cells[cell] - (earlier ? earlier.cells[cell] : 0);
}

/** Pairs [number, count] that were added since. */
function grownPairs(later, earlier) {
  const before = new Map(earlier ?? []);
  return later.map(([number, count]) => [number, count - (before.get(number) ?? 0)]).filter(([, count]) => count > 0);
}

/** A quantile in ms of times whose numbers of bits were counted: a time of n bits lies below 2^n ns. Between the bounds
 * it is interpolated, as Prometheus does with the histograms of /metrics. */
export function quantileMs(pairs, quantile) {
  const total = pairs.reduce((sum, [, count]) => sum + count, 0);
  if (total === 0) return null;
  let rank = quantile * total;
  for (const [bits, count] of [...pairs].sort((one, other) => one[0] - other[0])) {
    if (rank <= count) {
      const high = 2 ** bits;
      const low = bits === 0 ? 0 : high / 2;
      return (low + (high - low) * (rank / count)) / NS_PER_MS;
    }
    rank -= count;
  }
  return null;
}

/** What a version did between two looks (`earlier` null: since it was loaded; then rates are null). */
export function compare(later, earlier, seconds) {
  if (earlier && earlier.id !== later.id) earlier = null;
  const successes = grown(later, earlier, "success_count");
  const failures = grown(later, earlier, "fail_count");
  const rows = grown(later, earlier, "inference_count");
  const batches = grown(later, earlier, "execution_count");
  const hits = grown(later, earlier, "cache_hit_count");
  const misses = grown(later, earlier, "cache_miss_count");
  const times = grownPairs(later.times.request, earlier?.times.request);
  const computed = successes - hits;
  return {
    requestsPerS: seconds > 0 ? successes / seconds : null,
    failuresPerS: seconds > 0 ? failures / seconds : null,
    successes,
    failures,
    rowsPerBatch: batches > 0 ? rows / batches : null,
    queueMs: successes > 0 ? grown(later, earlier, "queue_ns") / successes / NS_PER_MS : null,
    computeMs: computed > 0
      ? COMPUTE.reduce((sum, cell) => sum + grown(later, earlier, cell), 0) / computed / NS_PER_MS : null,
    p50Ms: quantileMs(times, 0.5),
    p99Ms: quantileMs(times, 0.99),
    cachedShare: hits + misses > 0 ? hits / (hits + misses) : null,
    batchSizes: grownPairs(later.batches, earlier?.batches).sort((one, other) => one[0] - other[0]),
  };
}

/** The looks of the last minute. */
export class History {
  constructor(seconds = 60) {
    this.seconds = seconds;
    this.looks = []; // oldest first: {ns, models: Map}
    this.points = new Map(); // key → [{ns, requestsPerS, p50Ms, …}], oldest first
  }

  /** Take a look in; false if it is one that was taken already (the server reads its counters twice a second at most). */
  add(look) {
    const last = this.looks.at(-1);
    if (last && last.ns >= look.now_ns) {
      if (last.ns - look.now_ns < 10 * NS_PER_S) return false;
      this.looks = []; // another server: its clock began anew
      this.points.clear();
    }
    const models = byKey(look);
    const oldest = look.now_ns - (this.seconds + 1) * NS_PER_S;
    if (last && this.looks.length) {
      const seconds = (look.now_ns - last.ns) / NS_PER_S;
      for (const [key, model] of models) {
        const before = last.models.get(key);
        if (!before) continue;
        const points = this.points.get(key) ?? [];
        points.push({ ns: look.now_ns, pending: model.cells.pending_count, ...compare(model, before, seconds) });
        while (points[0].ns < oldest) points.shift();
        this.points.set(key, points);
      }
    }
    this.looks.push({ ns: look.now_ns, models });
    while (this.looks[0].ns < oldest) this.looks.shift();
    for (const key of this.points.keys()) if (!models.has(key)) this.points.delete(key);
    return true;
  }

  /** What a version did in the last so many seconds; null before there are two looks. */
  lately(key, seconds = this.seconds) {
    const last = this.looks.at(-1);
    const model = last?.models.get(key);
    if (!model || this.looks.length < 2) return null;
    const first = this.looks.find((each) => last.ns - each.ns <= seconds * NS_PER_S * 1.05 && each !== last)
      ?? this.looks.at(-2);
    const before = first.models.get(key);
    return compare(model, before ?? null, before ? (last.ns - first.ns) / NS_PER_S : 0);
  }
}

/** A number with so many digits as a reader can use; "–" for null. */
export function number(value, unit = "") {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const text = size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en-US")
    : size >= 10 ? value.toFixed(1) : size >= 0.095 ? value.toFixed(2) : size === 0 ? "0" : value.toPrecision(2);
  return unit ? `${text} ${unit}` : text;
}

/** Bytes for a reader. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const power = value > 0 ? Math.min(4, Math.floor(Math.log2(value) / 10)) : 0;
  return `${number(value / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
