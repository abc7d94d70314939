// Charts, drawn as SVG. Each has a text that says what it shows, for those who do not see it.

import { svg } from "./dom.js";
import { number } from "./figures.js";

/** A small line without axes. */
export function sparkline(values, width = 96, height = 22) {
  const most = Math.max(...values, 0);
  const drawn = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  if (values.length > 1 && most > 0) {
    const step = width / (values.length - 1);
    const points = values.map((value, index) =>
      `${(index * step).toFixed(1)},${(height - 1 - (value / most) * (height - 3)).toFixed(1)}`);
    drawn.append(svg("polyline", { points: points.join(" ") }));
  }
  return drawn;
}

/** Small bars of batch sizes, without axes. */
export function sizeBars(sizes, width = 72, height = 22) {
  const total = sizes.reduce((sum, [, count]) => sum + count, 0);
  const label = total === 0 ? "no batches in the last minute"
    : `batches by rows: ${sizes.map(([size, count]) => `${size}: ${Math.round((100 * count) / total)}%`).join(", ")}`;
  const drawn = svg("svg", { class: "bars", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    svg("title", {}, label));
  const shown = sizes.slice(-24);
  const most = Math.max(...shown.map(([, count]) => count), 1);
  const wide = Math.min(12, width / Math.max(shown.length, 1));
  shown.forEach(([, count], index) => {
    const tall = Math.max(1.5, (count / most) * (height - 2));
    drawn.append(svg("rect", { x: (index * wide).toFixed(1), y: (height - tall).toFixed(1),
      width: Math.max(1, wide - 1).toFixed(1), height: tall.toFixed(1) }));
  });
  return drawn;
}

/** A bound for an axis: 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((times) => times * power >= value * 0.999) * power;
}

const WIDTH = 320;
const HEIGHT = 120;
const LEFT = 44;
const BOTTOM = 18;

function frame(title, label, most, unit) {
  const drawn = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": `${title}: ${label}` });
  for (const share of [0, 0.5, 1]) {
    const y = (HEIGHT - BOTTOM) * (1 - share) + 6 * share;
    drawn.append(
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y, y2: y }),
      svg("text", { x: LEFT - 6, y: y + 3.5, "text-anchor": "end" }, `${number(most * share)}`));
  }
  if (unit) drawn.append(svg("text", { x: WIDTH - 2, y: 12, "text-anchor": "end" }, unit));
  return drawn;
}

/** Lines over the last minute. `series`: [{name, values}], whose values may be null; `ages` in seconds, oldest first. */
export function lines(title, unit, ages, series, seconds = 60) {
  const seen = series.flatMap((each) => each.values).filter((value) => value !== null);
  const most = roundUp(Math.max(...seen, 0));
  const label = series.map((each) => `${each.name} ${number(each.values.at(-1) ?? null, unit)}`).join(", ");
  const drawn = frame(title, label, most, unit);
  const x = (age) => WIDTH - (age / seconds) * (WIDTH - LEFT);
  const y = (value) => (HEIGHT - BOTTOM) - (value / most) * (HEIGHT - BOTTOM - 6);
  series.forEach((each, number_) => {
    let path = "";
    let isDown = false;
    each.values.forEach((value, index) => {
      if (value === null || ages[index] > seconds) { isDown = false; return; }
      path += `${isDown ? "L" : "M"}${x(ages[index]).toFixed(1)} ${y(value).toFixed(1)}`;
      isDown = true;
    });
    if (path) drawn.append(svg("path", { class: `line line${number_}`, d: path }));
  });
  drawn.append(svg("text", { x: LEFT, y: HEIGHT - 4 }, `${seconds} s ago`),
    svg("text", { x: WIDTH - 2, y: HEIGHT - 4, "text-anchor": "end" }, "now"));
  return drawn;
}

/** Bars by a number: [[number, value]], in ascending order. */
export function columns(title, unit, pairs, below = "") {
  const most = roundUp(Math.max(...pairs.map(([, value]) => value), 0));
  const label = pairs.map(([size, value]) => `${size}: ${number(value)}`).join(", ") || "nothing yet";
  const drawn = frame(title, label, most, unit);
  const wide = (WIDTH - LEFT) / Math.max(pairs.length, 6);
  pairs.forEach(([size, value], index) => {
    const tall = (value / most) * (HEIGHT - BOTTOM - 6);
    drawn.append(svg("rect", { class: "bar", x: (LEFT + index * wide + 1).toFixed(1),
      y: (HEIGHT - BOTTOM - tall).toFixed(1), width: Math.max(1, wide - 2).toFixed(1), height: tall.toFixed(1) }));
    if (pairs.length <= 16 || index % Math.ceil(pairs.length / 12) === 0)
      drawn.append(svg("text", { x: (LEFT + (index + 0.5) * wide).toFixed(1), y: HEIGHT - 4, "text-anchor": "middle" },
        String(size)));
  });
  if (below) drawn.append(svg("title", {}, below));
  return drawn;
}
