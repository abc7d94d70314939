// The view of all models: their states, rates, times and batches, as they are now.

import { Actions } from "./actions.js";
import { sizeBars, sparkline } from "./charts.js";
import { el, say } from "./dom.js";
import { keyOf, number } from "./figures.js";

const HEAD = ["Model", "State", "Instances", "Requests/s", "Failed/s", "p50", "p99", "Queued", "Rows per batch", ""];
const NUMBERS = new Set(["Instances", "Requests/s", "Failed/s", "p50", "p99", "Queued"]);

/** The place of a model's view. */
export function modelLink(model) {
  return `#/models/${encodeURIComponent(model.name)}${model.version ? `/${model.version}` : ""}`;
}

/** A state in a word, and how it looks. */
export function badge(model) {
  const isPart = model.state === "READY" && model.instances_up < model.instances;
  const isUnloaded = model.reason === "unloaded";
  const kind = model.state === "READY" ? (model.instances_up === 0 ? "bad" : isPart ? "wait" : "good")
    : model.state === "UNAVAILABLE" ? (isUnloaded ? "" : "bad") : "wait";
  const word = isUnloaded && model.state === "UNAVAILABLE" ? "unloaded" : model.state.toLowerCase();
  return { kind, word };
}

/** Why a version is not ready, or lacks instances; "" where all is well. */
export function reasonOf(model) {
  if (model.reason && model.reason !== "unloaded") return model.reason;
  if (model.state === "READY" && model.instances_up < model.instances)
    return `${model.instances_up} of ${model.instances} instances are up`;
  return "";
}

class Row {
  constructor(model, said) {
    this.link = el("a", { href: modelLink(model) }, model.name);
    this.kind = el("span", { class: "muted small" });
    this.reason = el("span", { class: "reason", hidden: true });
    this.badge = el("span", { class: "badge" });
    this.actions = new Actions(model.name, said);
    const cell = (name) => el("td", { role: "cell", "data-label": name, class: NUMBERS.has(name) ? "num" : "" });
    this.cells = Object.fromEntries(HEAD.slice(1).map((name) => [name, cell(name)]));
    this.rate = el("span", {}, "–");
    this.spark = el("span", { class: "hold" });
    this.cells["Requests/s"].append(el("span", {}, this.spark, " ", this.rate));
    this.cells.State.append(this.badge);
    this.cells[""].append(this.actions.root);
    this.root = el("tr", { role: "row" },
      el("th", { scope: "row", role: "rowheader" }, this.link, " ", this.kind, this.reason), Object.values(this.cells));
  }

  show(model, history, mode) {
    const key = keyOf(model);
    const lately = history.lately(key);
    const now = history.lately(key, 5);
    const { kind, word } = badge(model);
    const points = history.points.get(key) ?? [];
    const version = model.version === null ? "" : `v${model.version}`;
    say(this.kind, [version, model.platform, model.namespace].filter(Boolean).join(" · "));
    this.badge.className = `badge ${kind}`;
    say(this.badge, word);
    const reason = reasonOf(model);
    say(this.reason, reason);
    this.reason.hidden = reason === "";
    say(this.cells.Instances, model.is_ensemble ? "–" : `${model.instances_up}/${model.instances}`);
    say(this.rate, number(now?.requestsPerS ?? null));
    this.spark.replaceChildren(sparkline(points.map((point) => point.requestsPerS)));
    say(this.cells["Failed/s"], number(now?.failuresPerS ?? null));
    say(this.cells.p50, number(lately?.p50Ms ?? null, "ms"));
    say(this.cells.p99, number(lately?.p99Ms ?? null, "ms"));
    say(this.cells.Queued, number(model.cells.pending_count));
    const sizes = lately?.batchSizes ?? [];
    this.cells["Rows per batch"].replaceChildren(el("span", {}, sizeBars(sizes), " ", number(lately?.rowsPerBatch ?? null)));
    this.actions.show(model, mode);
  }
}

export function modelsView() {
  const said = el("p", { class: "small muted", role: "status" });
  const wanted = el("input", { id: "filter", type: "search", autocomplete: "off", oninput: () => filter() });
  const totals = Object.fromEntries(["Ready", "Not ready", "Requests/s", "Failed/s"].map((name) =>
    [name, el("dd", {}, "–")]));
  const body = el("tbody", { role: "rowgroup" });
  const empty = el("p", { class: "muted", hidden: true }, "The server knows no models.");
  const rows = new Map();

  function filter() {
    const text = wanted.value.toLowerCase();
    for (const row of rows.values()) row.root.hidden = !row.link.textContent.toLowerCase().includes(text);
  }

  const head = HEAD.map((name) => el("th", { scope: "col", role: "columnheader", class: NUMBERS.has(name) ? "num" : "" },
    name || el("span", { class: "hidden" }, "Actions")));
  return {
    title: "Models",
    root: el("div", {},
      el("div", { class: "bar-top" }, el("h1", {}, "Models"), el("span", { class: "grow" }),
        el("label", { for: "filter" }, "Filter"), wanted),
      el("dl", { class: "totals" }, Object.entries(totals).map(([name, value]) => el("div", {}, el("dt", {}, name), value))),
      said,
      el("table", { class: "models", role: "table" },
        el("caption", { class: "hidden" }, "Models with their figures of the last minute; rates of the last five seconds"),
        el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), body),
      empty,
      el("p", { class: "small muted" }, "Rates are of the last five seconds, times and batches of the last minute. ",
        "Percentiles are read from buckets that double, as from the histograms in the metrics.")),
    show(history, look) {
      const seen = new Set();
      let requests = 0;
      let failures = 0;
      for (const model of look.models) {
        const key = keyOf(model);
        seen.add(key);
        let row = rows.get(key);
        if (!row) {
          row = new Row(model, (text) => say(said, text));
          rows.set(key, row);
        }
        row.show(model, history, look.server.model_control_mode);
        const now = history.lately(key, 5);
        requests += now?.requestsPerS ?? 0;
        failures += now?.failuresPerS ?? 0;
      }
      for (const [key, row] of rows) if (!seen.has(key)) { row.root.remove(); rows.delete(key); }
      const order = look.models.map((model) => rows.get(keyOf(model)).root);
      if (order.some((row, index) => body.children[index] !== row)) body.replaceChildren(...order);
      filter();
      empty.hidden = look.models.length > 0;
      const ready = look.models.filter((model) => model.state === "READY" && model.instances_up > 0).length;
      say(totals.Ready, String(ready));
      say(totals["Not ready"], String(look.models.length - ready));
      say(totals["Requests/s"], history.looks.length > 1 ? number(requests) : "–");
      say(totals["Failed/s"], history.looks.length > 1 ? number(failures) : "–");
    },
  };
}
