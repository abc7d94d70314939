// The view of one version of a model: what it does now, a form to try it, its tensors, schedule, instances and failures.

import { Actions } from "./actions.js";
import { columns, lines } from "./charts.js";
import { copyButton, el, say, section, table } from "./dom.js";
import { bytes, keyOf, number } from "./figures.js";
import { badge, reasonOf } from "./models.js";
import { getJson, modelPath } from "./server.js";
import { TryIt } from "./tryit.js";

const SCHEDULERS = {
  default: "Each request is executed alone: the configuration has no dynamic_batching.",
  dynamic: "Requests are batched by size and delay, as dynamic_batching says.",
  ensemble: "An ensemble: its models batch, it does not.",
  other: "Its scheduler keeps no account of its batches.",
};
const FAILURES = {
  failed_rejected: "refused by a queue or a deadline",
  failed_canceled: "canceled by the client",
  failed_backend: "failed in the model",
  failed_other: "for another reason",
};
const MOST_ERRORS = 20;

function charts() {
  const names = ["Requests per second", "Latency", "Waiting requests", "Rows of a batch"];
  const cards = names.map((name) => {
    const value = el("b", {}, "–");
    const place = el("div", {});
    return { root: el("div", { class: "card" }, el("h3", {}, el("span", {}, name), value), place), value, place };
  });
  return {
    root: el("div", { class: "charts" }, cards.map((card) => card.root)),
    show(model, history) {
      const key = keyOf(model);
      const points = history.points.get(key) ?? [];
      const now = points.at(-1)?.ns ?? 0;
      const ages = points.map((point) => (now - point.ns) / 1e9);
      const lately = history.lately(key);
      const series = (name, read) => ({ name, values: points.map(read) });
      say(cards[0].value, number(history.lately(key, 5)?.requestsPerS ?? null));
      cards[0].place.replaceChildren(lines(names[0], "", ages, [series("answered", (each) => each.requestsPerS),
        series("failed", (each) => each.failuresPerS)]));
      cards[1].value.replaceChildren(el("span", { class: "key0" }, `p50 ${number(lately?.p50Ms ?? null, "ms")}`), " ",
        el("span", { class: "key1" }, `p99 ${number(lately?.p99Ms ?? null, "ms")}`));
      cards[1].place.replaceChildren(lines(names[1], "ms", ages, [series("p50", (each) => each.p50Ms),
        series("p99", (each) => each.p99Ms)]));
      say(cards[2].value, number(model.cells.pending_count));
      cards[2].place.replaceChildren(lines(names[2], "", ages, [series("waiting", (each) => each.pending)]));
      say(cards[3].value, number(lately?.rowsPerBatch ?? null));
      cards[3].place.replaceChildren(columns("Batches of the last minute by their rows", "batches", lately?.batchSizes ?? []));
    },
  };
}

function tensorTable(metadata, config) {
  const labels = new Map((config.output ?? []).map((each) => [each.name, each.label_filename]));
  const optional = new Set((config.input ?? []).filter((each) => each.optional).map((each) => each.name));
  const row = (kind) => (tensor) => [tensor.name, kind, tensor.datatype,
    `[${tensor.shape.map((dim) => (dim < 0 ? "?" : dim)).join(", ")}]`,
    [optional.has(tensor.name) ? "optional" : "", labels.get(tensor.name) ? `labels in ${labels.get(tensor.name)}` : ""].filter(Boolean).join(", ")];
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tensors" }, table("Tensors",
    ["Name", "Direction", "Datatype", "Shape", ""], [...metadata.inputs.map(row("input")), ...metadata.outputs.map(row("output"))]));
}

/** What `shoal explain` says. */
function schedule(told) {
  if (!told) return [el("p", { class: "muted" }, "Nothing is known of its batches.")];
  const parts = [el("p", {}, told.scheduler === "goal"
    ? `Requests are batched so that answers take at most ${told.latency_target_ms} ms; ${number(told.arrivals_per_s)} rows arrive per second.`
    : SCHEDULERS[told.scheduler] ?? told.scheduler)];
  const total = told.reasons.reduce((sum, each) => sum + each.batches, 0);
  if (total > 0)
    parts.push(table("Why batches had their size", ["Why a batch had its size", "Batches", "Share"],
      told.reasons.map((each) => [each.meaning, number(each.batches), `${Math.round((100 * each.batches) / total)} %`])));
  if (told.last_batches.length)
    parts.push(el("p", { class: "small muted" }, `Rows of the last ${told.last_batches.length}, oldest first: `,
      el("span", { class: "mono" }, told.last_batches.map((each) => each.rows).join(" "))));
  const measured = [...(told.measured ?? [])].sort((one, other) => one.rows - other.rows);
  if (measured.length)
    parts.push(el("div", { class: "charts" },
      el("div", { class: "card plain" }, el("h3", {}, "Mean time of a batch by its rows"),
        columns("Mean time of a batch by its rows", "ms", measured.map((each) => [each.rows, each.ns / 1e6]))),
      el("div", { class: "card plain" }, el("h3", {}, "The same per row"),
        columns("Mean time per row by the rows of its batch", "ms", measured.map((each) => [each.rows, each.ns / each.rows / 1e6])))));
  return parts;
}

function instancesTable(told) {
  if (!told?.instances?.length) return el("p", { class: "muted" }, "It has no instances.");
  const rows = told.instances.map((each) => [each.name, each.state, each.pid ? String(each.pid) : "–", each.device ?? "–",
    (each.cores ?? []).join(", ") || "any", each.busy_share === undefined ? "–" : `${Math.round(each.busy_share * 100)} %`, number(each.batches),
    number(each.restarts), bytes(each.rss_bytes), number(each.up_s, "s")]);
  const memory = [told.memory_bytes ? `${bytes(told.memory_bytes)} of the host's memory` : "",
    ...Object.entries(told.gpu_memory_bytes ?? {}).map(([gpu, size]) => `${bytes(size)} on ${gpu}`)].filter(Boolean).join(", ");
  const about = memory ? [el("p", { class: "small muted" }, `Its processes have ${memory}.`)] : [];
  return el("div", {}, ...about, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Instances" }, table("Instances",
    ["Instance", "State", "Process", "Device", "Cores", "Busy", "Batches", "Restarts", "Memory", "Up for"], rows)));
}

function failures(model) {
  const counts = Object.entries(FAILURES).map(([cell, text]) => [text, number(model.cells[cell])]);
  return table("Failed requests since it was loaded", ["Failed requests since it was loaded", "Requests"], counts);
}

/** What `shoal rollout` says: which versions get the requests that name none, and how the present step goes. */
function rollout(told) {
  const versions = Object.keys(told.weights).map(Number).sort((one, other) => one - other);
  const parts = [];
  if (!told.phase)
    parts.push(el("p", { class: "muted" }, told.pinned ? "Requests that name no version mean the one that was chosen."
      : "No version is being rolled out: requests that name none mean the highest."));
  else
    parts.push(el("p", {}, `Version ${told.version} is ${told.phase}${told.phase === "running" || told.phase === "paused"
      ? `: step ${told.step} of ${told.steps.split(",").length} (${told.steps} %), each for ${told.every}; guard ${told.guard || "none"}` : ""}.`));
  if (told.reason) parts.push(el("p", { class: "error" }, told.reason));
  const row = (version) => {
    const figures = told.figures?.[version];
    const shown = figures ? [number(figures.requests), number(figures.errors), number(figures.p50_ms, "ms"), number(figures.p99_ms, "ms")] : ["–", "–", "–", "–"];
    return [String(version), `${told.weights[version]} %`, ...shown];
  };
  parts.push(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Rollout" }, table("Rollout",
    ["Version", "Share", "Requests", "Errors", "p50", "p99"], versions.map(row))));
  if (told.figures) parts.push(el("p", { class: "small muted" }, "Requests, errors and latencies are those of the present step, or of the last."));
  return parts;
}

/** Fill a section with what the server says, or with its error; `draw` makes nodes of the answer. */
async function fillWith(place, path, draw) {
  try {
    place.replaceChildren(...[draw(await getJson(path))].flat());
  } catch (error) {
    place.replaceChildren(el("p", { class: "muted" }, error.message));
  }
}

export function modelView(name, version) {
  const state = el("span", { class: "badge" });
  const about = el("p", { class: "muted" });
  const reason = el("p", { class: "error", hidden: true });
  const said = el("p", { class: "small muted", role: "status" });
  const actions = new Actions(name, (text) => say(said, text));
  const live = charts();
  const failed = el("div", {});
  const errors = el("ul", { class: "classes" });
  const parts = el("div", {});
  const schedules = el("div", {});
  const instances = el("div", {});
  const rollouts = el("div", {});
  let shown = null; // the id of the loaded version that the parts below are about
  let isClosed = false;

  async function describe(model, look) {
    const path = modelPath(name, version);
    let metadata;
    let config;
    try {
      [metadata, config] = await Promise.all([getJson(path), getJson(`${path}/config`)]);
    } catch (error) {
      parts.replaceChildren(el("p", { class: "muted" }, error.message));
      shown = null;
      return;
    }
    if (isClosed) return;
    const form = new TryIt(model, version, metadata, config, look.server.grpc_port, (error) => {
      errors.prepend(el("li", {}, el("p", { class: "error" }, `${new Date().toLocaleTimeString()}  ${error.message}`)));
      while (errors.children.length > MOST_ERRORS) errors.lastChild.remove();
    });
    const text = JSON.stringify(config, null, 2);
    parts.replaceChildren(
      section("Try it", form.root),
      section("The same request", form.requests),
      section("Tensors", tensorTable(metadata, config),
        el("p", { class: "small" }, el("a", { href: `#/api/${encodeURIComponent(name)}` }, "Its paths in the API"))),
      section("Rollout", rollouts),
      section("Schedule", schedules),
      section("Instances", instances),
      section("Failures", failed, el("p", { class: "small muted" }, "The sentences of other clients' errors are in the server's log. Those of this page:"), errors),
      section("Configuration", el("details", {}, el("summary", {}, "As the server has completed it"),
        el("p", {}, copyButton(() => text, "the configuration")), el("pre", { tabindex: 0 }, text))));
    refresh();
  }

  function refresh() {
    const path = `v2/repository/models/${encodeURIComponent(name)}${version ? `/versions/${version}` : ""}`;
    fillWith(schedules, `${path}/batches`, (told) => schedule(told.versions.at(-1)));
    fillWith(rollouts, `v2/models/${encodeURIComponent(name)}/rollout`, rollout);
    fillWith(instances, `${path}/instances`, (told) => instancesTable(told.versions.at(-1)));
  }

  const timer = setInterval(() => { if (!document.hidden && shown !== null) refresh(); }, 5000);
  return {
    title: name,
    root: el("div", {},
      el("p", { class: "small" }, el("a", { href: "#/" }, "All models")),
      el("div", { class: "bar-top" }, el("h1", {}, name), state, el("span", { class: "grow" }),
        el("a", { class: "small", href: `#/requests/${encodeURIComponent(name)}` }, "Its slowest requests"), actions.root),
      about, reason, said, live.root, parts),
    show(history, look) {
      const all = look.models.filter((model) => model.name === name);
      const model = all.find((each) => each.version === version)
        ?? (version ? undefined : all.filter((each) => each.state === "READY").at(-1) ?? all.at(-1));
      if (!model) {
        say(about, version ? `The server knows no version ${version} of this model.` : "The server knows no model of this name.");
        return;
      }
      const { kind, word } = badge(model);
      state.className = `badge ${kind}`;
      say(state, word);
      say(about, [model.version === null ? "" : `version ${model.version}`, model.platform,
        model.max_batch_size ? `batches of up to ${model.max_batch_size} rows` : "no batch dimension",
        model.is_decoupled ? "may answer a request several times" : "", model.is_cached ? "answers are cached" : "",
        `${number(model.cells.success_count)} requests answered`].filter(Boolean).join(" · "));
      const why = reasonOf(model);
      say(reason, why);
      reason.hidden = why === "";
      actions.show(model, look.server.model_control_mode);
      live.show(model, history);
      failed.replaceChildren(failures(model));
      const id = model.state === "READY" ? model.id : null;
      if (id !== shown && id !== null) {
        shown = id;
        describe(model, look);
      } else if (id === null && shown !== null) {
        shown = null;
        parts.replaceChildren();
      }
    },
    close() {
      isClosed = true;
      clearInterval(timer);
    },
  };
}
