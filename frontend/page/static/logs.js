// The view of the log: the last lines of the server's log file, and those that come.

import { el, say } from "./dom.js";
import { getJson } from "./server.js";

const MOST_LINES = 1000; // of the page: the oldest go
const LOOK_MS = 2000;
const LEVELS = { I: "info", W: "warning", E: "error" };
const RANKS = ["verbose", "info", "warning", "error"];

/** A line of the log, whatever its format: its level ("" for what goes on with the line before) and its text. */
function parsed(text) {
  if (text.startsWith("{")) {
    try {
      const line = JSON.parse(text);
      if (typeof line.level === "string") {
        const place = [line.process, line.instance ?? line.model].filter(Boolean).join(" ");
        return { level: line.level, text: `${line.time} ${place}: ${line.message}${line.exception ? `\n${line.exception}` : ""}` };
      }
    } catch { /* not the log's own line */ }
  }
  const letter = /^([IWE])\d{4} |^\d{4}-\d\d-\d\dT\S+ ([IWE]) /.exec(text);
  return { level: LEVELS[letter?.[1] ?? letter?.[2]] ?? "", text };
}

export function logsView() {
  const state = el("p", { class: "small muted", role: "status" }, "Reading …");
  const list = el("ol", {});
  const frame = el("div", { class: "log", tabindex: 0, role: "region", "aria-label": "Lines of the log" }, list);
  const words = el("input", { id: "log-filter", type: "search", autocomplete: "off", oninput: draw });
  const least = el("select", { id: "log-level", onchange: draw },
    [["", "all"], ["info", "info and above"], ["warning", "warnings and errors"], ["error", "errors"]].map(([value, text]) => el("option", { value }, text)));
  const follows = el("input", { id: "log-follow", type: "checkbox", checked: true, onchange: () => look() });
  let lines = []; // {level, text}: a line without a level has that of the line before
  let position = 0;
  let timer = null;
  let isClosed = false;

  function isShown({ level, text }) {
    const rank = RANKS.indexOf(level);
    return (!least.value || rank >= RANKS.indexOf(least.value)) && text.toLowerCase().includes(words.value.toLowerCase());
  }

  function row(line) {
    return el("li", { class: `level-${line.level || "none"}` }, line.text);
  }

  function draw() {
    list.replaceChildren(...lines.filter(isShown).map(row));
    frame.scrollTop = frame.scrollHeight;
  }

  function add(texts) {
    const isAtEnd = frame.scrollHeight - frame.scrollTop - frame.clientHeight < 40;
    const added = texts.map(parsed);
    let level = lines.at(-1)?.level ?? "";
    for (const line of added) level = line.level ||= level;
    lines.push(...added);
    if (lines.length > MOST_LINES) {
      lines = lines.slice(-MOST_LINES);
      list.replaceChildren(...lines.filter(isShown).map(row));
    } else list.append(...added.filter(isShown).map(row));
    if (isAtEnd) frame.scrollTop = frame.scrollHeight;
  }

  async function look() {
    clearTimeout(timer);
    timer = null;
    if (isClosed || document.hidden) return;
    try {
      const told = await getJson(`v2/debug/log?after=${position}`);
      if (isClosed) return;
      if (told.position < position) lines = []; // the file was cut short
      position = told.position;
      if (told.lines.length) add(told.lines);
      say(state, told.note ? `${told.note[0].toUpperCase()}${told.note.slice(1)}.` : told.log_file);
      if (told.note) return;
    } catch (error) {
      say(state, error.message);
      return;
    }
    if (follows.checked) timer = setTimeout(look, LOOK_MS);
  }

  document.addEventListener("visibilitychange", look);
  look();
  return {
    title: "Logs",
    close() {
      isClosed = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    },
    root: el("div", {},
      el("div", { class: "bar-top" }, el("h1", {}, "Logs"), el("span", { class: "grow" }),
        el("label", { for: "log-filter" }, "With"), words,
        el("label", { for: "log-level" }, "Level"), least,
        el("label", { for: "log-follow" }, "Follow"), follows,
        el("button", { type: "button", class: "quiet", onclick: () => look() }, "Read again")),
      state, frame),
  };
}
