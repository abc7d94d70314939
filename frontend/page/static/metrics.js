// The view of the metrics: what Prometheus reads, as a person reads it.

import { el, say, table } from "./dom.js";
import { send } from "./server.js";

const MOST_SAMPLES = 100;
const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;

/** The families of a text in Prometheus's format: [{name, kind, help, samples: [[labels, value]]}]. */
function families(text) {
  const found = [];
  let family = null;
  for (const line of text.split("\n")) {
    const head = /^# (HELP|TYPE) (\S+) ?(.*)$/.exec(line);
    if (head) {
      if (head[1] === "HELP") {
        family = { name: head[2], help: head[3], kind: "", samples: [] };
        found.push(family);
      } else if (family) family.kind = head[3];
      continue;
    }
    const sample = SAMPLE.exec(line);
    if (!sample || !family || sample[1].endsWith("_bucket")) continue; // a histogram's count and sum are enough to read
    const suffix = sample[1].slice(family.name.length).replace("_", "");
    family.samples.push([[suffix, (sample[2] ?? "").replaceAll('",', '", ')].filter(Boolean).join(" "), sample[3]]);
  }
  return found;
}

export function metricsView() {
  const wanted = el("input", { id: "filter", type: "search", autocomplete: "off", oninput: () => draw() });
  const state = el("p", { class: "small muted", role: "status" });
  const list = el("div", {});
  let known = [];

  function draw() {
    const words = wanted.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = known.map((family) => ({ ...family, samples: family.samples.filter(([labels]) =>
      words.every((word) => `${family.name} ${family.help} ${labels}`.toLowerCase().includes(word))) }))
      .filter((family) => family.samples.length > 0);
    say(state, `${shown.length} of ${known.length} families; those without a figure are left out`);
    const isOpen = words.length > 0 && shown.length <= 8;
    list.replaceChildren(...shown.map((family) => el("details", { open: isOpen },
      el("summary", {}, el("code", {}, family.name), " ", el("span", { class: "muted small" }, `${family.kind} · ${family.help}`)),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": family.name }, table(family.name, ["Labels", "Value"],
        family.samples.slice(0, MOST_SAMPLES).map(([labels, value]) => [el("code", {}, labels || "–"), el("code", {}, value)]), { class: "samples" })),
      family.samples.length > MOST_SAMPLES ? el("p", { class: "small muted" }, `… ${family.samples.length - MOST_SAMPLES} more`) : null)));
  }

  async function read() {
    try {
      known = families(await (await send("ui/metrics")).text());
      draw();
    } catch (error) {
      say(state, error.message);
    }
  }

  read();
  return {
    title: "Metrics",
    root: el("div", {},
      el("div", { class: "bar-top" }, el("h1", {}, "Metrics"), el("span", { class: "grow" }),
        el("label", { for: "filter" }, "Filter by name, help or labels"), wanted,
        el("button", { type: "button", class: "quiet", onclick: read }, "Read again"),
        el("a", { href: "ui/metrics" }, "as text")),
      state, list),
  };
}
