// The page's frame: which view is shown, and the looks at the server's counters while one needs them.

import { el, say } from "./dom.js";
import { History } from "./figures.js";
import { getJson, header, setHeader } from "./server.js";
import { modelsView } from "./models.js";
import { modelView } from "./model.js";
import { metricsView } from "./metrics.js";
import { apiView } from "./api.js";
import { requestsView } from "./requests.js";
import { logsView } from "./logs.js";

const LOOK_MS = 1000;
const main = document.getElementById("main");
const status = document.getElementById("server");
const history = new History();
let view = null; // the view that is shown: {show(history, look), close()}, both of which it may lack
let latest = null;
let timer = null;

/** Ask for the figures again and again, but not while nobody sees the page or the view does not draw them. */
async function look() {
  clearTimeout(timer);
  timer = null;
  if (document.hidden || !view?.show) return;
  const shown = view;
  try {
    latest = await getJson("ui/figures");
    history.add(latest);
    const server = latest.server;
    const waiting = latest.models.filter((each) => each.state !== "READY" && each.reason !== "unloaded").length;
    say(status, `${server.name} · Shoal ${server.version}${waiting ? ` · ${waiting} not ready` : ""}`);
    if (view === shown) shown.show(history, latest);
  } catch (error) {
    say(status, error.message);
    if (error.status === 401 || error.status === 403) askForHeader(error.message);
  }
  timer ??= setTimeout(look, LOOK_MS);
}

/** A form for the header that a server with restricted APIs needs. */
function askForHeader(sentence) {
  if (document.getElementById("access")) return;
  const [name, value] = header() ?? ["", ""];
  const names = el("input", { id: "access-name", required: true, autocomplete: "off", value: name });
  const values = el("input", { id: "access-value", type: "password", required: true, autocomplete: "off", value });
  main.prepend(el("form", { id: "access", class: "card", onsubmit: (event) => {
    event.preventDefault();
    setHeader(names.value.trim(), values.value);
    document.getElementById("access").remove();
    navigate();
  } },
  el("h2", {}, "This server asks for a header"),
  el("p", { class: "muted" }, sentence),
  el("div", { class: "field-row" },
    el("label", { for: "access-name" }, "Name"), names,
    el("label", { for: "access-value" }, "Value"), values,
    el("button", { type: "submit" }, "Use it"))));
}

function viewOf(parts) {
  const [page, ...rest] = parts;
  if (page === "models" && rest[0]) return modelView(rest[0], rest[1] ?? "");
  if (page === "metrics") return metricsView();
  if (page === "requests") return requestsView(rest[0] ?? "");
  if (page === "logs") return logsView();
  if (page === "api") return apiView(rest[0] ?? "");
  return modelsView();
}

function navigate() {
  const hash = window.location.hash;
  if (hash && !hash.startsWith("#/")) return; // a place on the page
  let parts;
  try {
    parts = hash.slice(2).split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    parts = [];
  }
  const isFirst = view === null;
  view?.close?.();
  view = viewOf(parts);
  main.replaceChildren(view.root);
  const page = ["requests", "logs", "metrics", "api"].includes(parts[0]) ? parts[0] : "models";
  for (const link of document.querySelectorAll("header nav a"))
    if (link.dataset.page === page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  document.title = `${view.title} – Shoal`;
  if (!isFirst) {
    main.focus();
    window.scrollTo(0, 0);
  }
  if (latest && view.show) view.show(history, latest);
  look();
}

window.addEventListener("hashchange", navigate);
document.addEventListener("visibilitychange", look);
navigate();
