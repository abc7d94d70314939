// The view of single requests: the slowest and the failed of the last five minutes, with where the time of each went.

import { el, say, section, svg } from "./dom.js";
import { number } from "./figures.js";
import { getJson } from "./server.js";

const NS_PER_MS = 1e6;
const MOST = 50;
const PHASES = [
  ["receive", "its bytes came in"],
  ["parse", "it was read and handed to the batcher"],
  ["queue", "it waited"],
  ["gather", "its inputs were collected"],
  ["compute", "the model ran"],
  ["write", "its outputs were written"],
  ["steps", "an ensemble's steps"],
  ["send", "the answer was on its way"],
];
const WAITS = {
  busy: "for a busy instance",
  forming: "while the batch was forming",
  limit: "for the rate limiter",
  sequence: "for its sequence",
  wake: "for the worker to take it",
};

function ms(ns) {
  return number(ns / NS_PER_MS, "ms");
}

/** Where the time of a request went: phases side by side, each as long as its part. */
function timeBar(request, width = 240, height = 16) {
  const parts = PHASES.filter(([name]) => request.phases[name] > 0).map(([name]) => [name, request.phases[name]]);
  const label = parts.map(([name, ns]) => `${name} ${ms(ns)}`).join(", ") || "no time was measured";
  const drawn = svg("svg", { class: "times", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    svg("title", {}, label));
  let at = 0;
  for (const [name, ns] of parts) {
    const wide = (ns / Math.max(1, request.total_ns)) * width;
    drawn.append(svg("rect", { class: `phase-${name}`, x: at.toFixed(2), y: 0, width: Math.max(0.5, wide).toFixed(2), height }));
    at += wide;
  }
  return drawn;
}

/** Why a request waited, the longest part first, and in what batch it was executed. */
function reasonOf(request) {
  const parts = Object.entries(request.queue).sort((one, other) => other[1] - one[1]);
  const words = parts.map(([name, ns]) => `${ms(ns)} ${WAITS[name] ?? name}`);
  const sentences = words.length ? [`Waited ${words.join(", ")}.`] : [];
  if (request.ahead_requests)
    sentences.push(`The batch ahead had ${request.ahead_requests} requests, ${request.ahead_rows} rows, and took ${ms(request.ahead_ns)}.`);
  if (request.is_overtaken) sentences.push("Later requests of a higher priority went first.");
  if (request.batch_requests > 1) sentences.push(`In a batch of ${request.batch_requests} requests, ${request.batch_rows} rows.`);
  if (request.instance) sentences.push(`${request.instance}, pid ${request.pid}.`);
  return sentences.join(" ");
}

function modelCell(request) {
  const place = `#/models/${encodeURIComponent(request.model)}${request.version ? `/${request.version}` : ""}`;
  return [el("a", { href: place }, request.model || "–"), el("span", { class: "muted small" }, ` v${request.version}`)];
}

function nameCell(request) {
  return [
    el("code", {}, request.id || "–"),
    request.trace_id ? el("span", { class: "small muted trace" }, `trace ${request.trace_id}`) : null,
  ];
}

function clock(request) {
  return el("time", { datetime: request.finished }, new Date(request.finished).toLocaleTimeString());
}

function rows(caption, head, requests, cells) {
  const numbers = new Set(["Time"]);
  return el("table", { class: "models requests", role: "table" },
    el("caption", { class: "hidden" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head.map((name) =>
      el("th", { scope: "col", role: "columnheader", class: numbers.has(name) ? "num" : "" }, name)))),
    el("tbody", { role: "rowgroup" }, requests.map((request) => el("tr", { role: "row" }, cells(request).map((cell, index) =>
      index === 0 ? el("th", { scope: "row", role: "rowheader" }, cell)
        : el("td", { role: "cell", "data-label": head[index], class: numbers.has(head[index]) ? "num" : "" }, cell))))));
}

function legend(requests) {
  const seen = PHASES.filter(([name]) => requests.some((request) => request.phases[name] > 0));
  return el("ul", { class: "legend small" }, seen.map(([name, meaning]) => el("li", {},
    svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: `phase-${name}`, width: 10, height: 10 })),
    el("b", {}, name), ` ${meaning}`)));
}

/** `model`: the one whose requests are shown; "" for those of all. */
export function requestsView(model) {
  const state = el("p", { class: "small muted", role: "status" }, "Reading …");
  const list = el("div", {});

  async function read() {
    try {
      const told = await getJson(`v2/debug/requests?limit=${MOST}&model=${encodeURIComponent(model)}`);
      draw(told);
      say(state, `Read at ${new Date().toLocaleTimeString()}: ${told.slowest.length} slow, ${told.failed.length} failed.`);
    } catch (error) {
      list.replaceChildren();
      say(state, error.message);
    }
  }

  function draw({ slowest, failed, num_others_failed: others }) {
    const parts = [];
    if (slowest.length)
      parts.push(section("The slowest", rows("The slowest requests, the slowest first",
        ["Model", "Request", "Ended", "Time", "Where it went", "Why"], slowest, (request) =>
          [modelCell(request), nameCell(request), clock(request), ms(request.total_ns), timeBar(request), reasonOf(request) || "–"]),
      legend(slowest)));
    if (failed.length)
      parts.push(section("The failed", rows("The failed requests, the last first",
        ["Model", "Request", "Ended", "Time", "Error"], failed, (request) =>
          [modelCell(request), nameCell(request), clock(request), ms(request.total_ns), el("span", { class: "reason" }, request.error)]),
      others ? el("p", { class: "small muted" }, `${number(others)} more have failed.`) : null));
    if (!parts.length) parts.push(el("p", { class: "muted" }, "No request has ended in the last five minutes."));
    list.replaceChildren(...parts);
  }

  read();
  return {
    title: model ? `Requests to ${model}` : "Requests",
    root: el("div", {},
      el("div", { class: "bar-top" }, el("h1", {}, model ? `Requests to ${model}` : "Requests"), el("span", { class: "grow" }),
        model ? el("a", { href: "#/requests" }, "of all models") : null,
        el("button", { type: "button", class: "quiet", onclick: read }, "Read again")),
      el("p", { class: "small muted" }, "Of the last five minutes. Times are from the last byte of a request to its answer."),
      state, list),
  };
}
