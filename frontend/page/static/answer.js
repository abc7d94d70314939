// A model's answer, drawn: classes as bars, images as images, texts as texts, numbers as numbers.

import { el, svg } from "./dom.js";
import { number } from "./figures.js";
import { count, imageType, textOf } from "./tensors.js";

const MOST_SHOWN = 512;
const MOST_BARS = 32;

/** One output: {name, datatype, shape, elements, isClasses}. */
export function outputView(output) {
  const shape = `[${output.shape.join(", ")}]`;
  return el("div", { class: "output" },
    el("h3", {}, output.name, " ", el("span", { class: "muted small mono" }, `${output.datatype} ${shape}`)),
    drawn(output));
}

function drawn(output) {
  const { datatype, elements, shape } = output;
  if (elements.length === 0) return el("p", { class: "muted" }, "No elements.");
  if (output.isClasses) return classes(elements.map(classOf));
  if (datatype === "BYTES") return el("div", {}, elements.slice(0, MOST_SHOWN).map(blob));
  const picture = pictureOf(datatype, shape, elements);
  if (picture) return picture;
  const isRow = count(shape.slice(0, -1)) === 1 && elements.length > 1 && elements.length <= MOST_BARS;
  if (isRow && elements.every((each) => typeof each === "number" && Number.isFinite(each)))
    return classes(elements.map((value, index) => ({ name: String(index), value, text: number(value) })));
  return el("pre", { class: "wrap", tabindex: 0, "aria-label": `Values of ${output.name}` }, numbers(output));
}

/** "0.97:2:two" of Triton's classification extension, or "0.97:2" without labels. */
function classOf(element) {
  const [value, index, ...label] = (textOf(element) ?? "").split(":");
  return { name: label.join(":") || index, value: Number(value), text: number(Number(value)) };
}

function classes(rows) {
  const most = Math.max(...rows.map((row) => Math.abs(row.value)), 1e-12);
  return el("ul", { class: "classes" }, rows.map((row) => el("li", {},
    el("span", { class: "name" }, row.name),
    svg("svg", { viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "rail", width: 100, height: 12 }),
      svg("rect", { width: ((Math.abs(row.value) / most) * 100).toFixed(2), height: 12 })),
    el("span", { class: "value" }, row.text))));
}

function blob(bytes) {
  const type = imageType(bytes);
  if (type) {
    const image = el("img", { alt: "The image that the model answered", src: URL.createObjectURL(new Blob([bytes], { type })) });
    image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
    return image;
  }
  return el("pre", { class: "wrap", tabindex: 0 }, textOf(bytes) ?? `${bytes.length} bytes that are no text`);
}

/** A canvas for a tensor that has the shape of a picture and values like one; else null. */
function pictureOf(datatype, shape, elements) {
  const dims = shape.length === 4 && shape[0] === 1 ? shape.slice(1) : shape;
  if (dims.length !== 3 || typeof elements[0] !== "number") return null;
  const isChannels = (dim) => dim === 1 || dim === 3;
  const isFirst = isChannels(dims[0]) && dims[1] >= 16 && dims[2] >= 16;
  if (!isFirst && !(isChannels(dims[2]) && dims[0] >= 16 && dims[1] >= 16)) return null;
  const [channels, height, width] = isFirst ? dims : [dims[2], dims[0], dims[1]];
  let low = Infinity;
  let high = -Infinity;
  for (const value of elements) { low = Math.min(low, value); high = Math.max(high, value); }
  if (datatype === "UINT8") { low = 0; high = 255; }
  else if (low >= 0 && high <= 1) { low = 0; high = 1; }
  const canvas = el("canvas", { width, height, role: "img", "aria-label": `The output as a picture, ${width} by ${height}` });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel++) {
    for (let channel = 0; channel < 3; channel++) {
      const from = channel % channels;
      const value = elements[isFirst ? from * width * height + pixel : pixel * channels + from];
      picture.data[pixel * 4 + channel] = ((value - low) / (high - low || 1)) * 255;
    }
    picture.data[pixel * 4 + 3] = 255;
  }
  context.putImageData(picture, 0, 0);
  return canvas;
}

function numbers({ elements, shape }) {
  const wide = shape.at(-1) || 1;
  const lines = [];
  for (let at = 0; at < Math.min(elements.length, MOST_SHOWN); at += wide)
    lines.push(elements.slice(at, Math.min(at + wide, MOST_SHOWN)).map(short).join("  "));
  const left = elements.length - MOST_SHOWN;
  return lines.join("\n") + (left > 0 ? `\n… ${left} more` : "");
}

function short(value) {
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value);
}
