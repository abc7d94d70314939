// The fields of one input tensor in the form: typed values, a filling, or a file.

import { el, say } from "./dom.js";
import { SCALES, audioElements, imageElements, layoutOf } from "./media.js";
import { count, flat, isFloat, parse, readNpy, resolve } from "./tensors.js";

const TYPED = "values";
const FEW = 64; // elements that are typed rather than filled in

let nextId = 0;

/** An input of a model: `root` to show, `read()` for what the reader has given. */
export class Input {
  /** `spec`: {name, datatype, shape} as in the model's metadata, `isBatched` whether the first size is the batch's;
   * `value`: an array to begin with, or null. */
  constructor(spec, isBatched, isOptional) {
    this.spec = spec;
    this.isBatched = isBatched;
    this.isOptional = isOptional;
    const id = `input${nextId++}`;
    const start = spec.shape.map((dim, index) => (dim < 0 ? (index === 0 && isBatched ? 1 : "?") : dim));
    const sizes = start.map((dim) => (dim === "?" ? 1 : dim));
    const isText = spec.datatype === "BYTES";
    const few = count(sizes) <= FEW;
    this.source = el("select", { id: `${id}-source`, onchange: () => this.draw() },
      this.choices(isText).map(([value, text]) => el("option", { value }, text)));
    this.source.value = few ? TYPED : "random";
    this.shape = el("input", { id: `${id}-shape`, class: "mono", size: 16, autocomplete: "off",
      value: start.join(", ") });
    this.values = el("textarea", { id: `${id}-values`, rows: isText ? 2 : 3, spellcheck: "false" });
    this.values.value = isText ? (count(sizes) > 1 ? JSON.stringify(Array(Math.min(FEW, count(sizes))).fill("1")) : "hello")
      : few ? this.example(sizes) : "";
    this.file = el("input", { id: `${id}-file`, type: "file" });
    this.scale = el("select", { id: `${id}-scale` }, Object.keys(SCALES).map((name) => el("option", {}, name)));
    this.scale.value = isFloat(spec.datatype) ? "0 to 1" : "0 to 255";
    this.rate = el("input", { id: `${id}-rate`, type: "number", min: 3000, max: 768000, value: 16000, size: 7 });
    this.isGiven = el("input", { id: `${id}-given`, type: "checkbox", checked: !isOptional });
    this.preview = el("span", {});
    this.wrong = el("p", { class: "error", role: "alert", hidden: true });
    this.file.addEventListener("change", () => this.showPreview());
    const labelled = (text, field) => el("span", { class: "buttons" }, el("label", { for: field.id }, text), field);
    this.rows = {
      values: el("div", {}, el("label", { for: this.values.id, class: "hidden" }, `Values of ${spec.name}`), this.values),
      file: el("div", { class: "field-row" }, labelled("File", this.file)),
      scale: el("span", {}, labelled("Pixels", this.scale)),
      rate: el("span", {}, labelled("Samples per second", this.rate)),
    };
    this.rows.file.append(this.rows.scale, this.rows.rate);
    this.root = el("fieldset", {},
      el("legend", {}, spec.name, " ", el("span", { class: "muted small mono" },
        `${spec.datatype} [${spec.shape.map((dim) => (dim < 0 ? "?" : dim)).join(", ")}]`)),
      el("div", { class: "field-row" },
        isOptional ? labelled("Send it", this.isGiven) : null,
        labelled("From", this.source), labelled("Shape", this.shape)),
      this.rows.values, this.rows.file, this.preview, this.wrong);
    this.draw();
  }

  /** Where the values can come from. */
  choices(isText) {
    if (isText) return [[TYPED, "text"], ["bytes", "a file's bytes (image, sound …)"]];
    const dims = this.isBatched ? this.spec.shape.slice(1) : this.spec.shape;
    const isPicture = this.spec.datatype !== "BOOL" && layoutOf(dims) !== null;
    return [[TYPED, "typed numbers"], ["zeros", "zeros"], ["ones", "ones"], ["random", "random"],
      ...(isPicture ? [["image", "an image file"]] : []),
      ...(this.spec.datatype !== "BOOL" ? [["audio", "a sound file"]] : []), ["array", "a .npy or .json file"]];
  }

  example(sizes) {
    const all = count(sizes);
    if (this.spec.datatype === "BOOL") return Array(all).fill("true").join(" ");
    return Array.from({ length: all }, (_, index) => (isFloat(this.spec.datatype) ? (index % 10) / 10 : index % 16)).join(" ");
  }

  draw() {
    const source = this.source.value;
    this.rows.values.hidden = source !== TYPED;
    this.rows.file.hidden = !["image", "audio", "array", "bytes"].includes(source);
    this.rows.scale.hidden = source !== "image";
    this.rows.rate.hidden = source !== "audio";
    this.file.accept = { image: "image/*", audio: "audio/*", array: ".npy,.json", bytes: "" }[source] ?? "";
    this.preview.replaceChildren();
    this.wrong.hidden = true;
  }

  showPreview() {
    this.preview.replaceChildren();
    const file = this.file.files[0];
    if (!file || !file.type.startsWith("image/")) return;
    const image = el("img", { class: "preview", alt: `The chosen file ${file.name}`, src: URL.createObjectURL(file) });
    image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
    this.preview.append(image);
  }

  /** The shape that is typed; -1 for a size that is open. Throws Error. */
  typedShape() {
    return this.shape.value.split(/[\s,x×[\]]+/).filter(Boolean).map((word) => {
      if (word === "?" || word === "-1") return -1;
      if (!/^\d+$/.test(word)) throw new Error(`the shape of ${this.spec.name} has '${word}' for a size`);
      return Number(word);
    });
  }

  /** {name, datatype, shape, elements, fill}; null for an optional tensor that is not sent. Throws Error, and shows it
   * beside the field. */
  async read() {
    this.wrong.hidden = true;
    if (this.isOptional && !this.isGiven.checked) return null;
    try {
      const { name, datatype } = this.spec;
      const { elements, shape } = await this.elements();
      const fill = ["zeros", "ones"].includes(this.source.value) ? this.source.value : "";
      return { name, datatype, shape: resolve(shape, elements.length), elements, fill };
    } catch (error) {
      say(this.wrong, `${this.spec.name}: ${error.message}`);
      this.wrong.hidden = false;
      throw error;
    }
  }

  async elements() {
    const { datatype } = this.spec;
    const shape = this.typedShape();
    const source = this.source.value;
    if (source === TYPED) {
      let elements = parse(datatype, this.values.value);
      if (datatype === "BYTES" && elements.length === 1 && count(shape.map(Math.abs)) > 1)
        elements = this.values.value.split("\n");
      // One batch more is meant where a whole multiple is typed.
      const known = count(shape.slice(1).map((dim) => (dim < 0 ? NaN : dim)));
      if (this.isBatched && shape[0] === 1 && known > 0 && elements.length > known && elements.length % known === 0)
        shape[0] = elements.length / known;
      return { elements, shape };
    }
    if (["zeros", "ones", "random"].includes(source)) {
      const sizes = shape.map((dim) => (dim < 0 ? 1 : dim));
      return { elements: filling(datatype, source, count(sizes)), shape: sizes };
    }
    const file = this.file.files[0];
    if (!file) throw new Error("choose a file");
    const batch = this.isBatched ? [1] : [];
    const dims = this.isBatched ? this.spec.shape.slice(1) : this.spec.shape;
    if (source === "bytes") return { elements: [new Uint8Array(await file.arrayBuffer())], shape };
    if (source === "image") {
      const read = await imageElements(file, dims, datatype, this.scale.value);
      return { elements: read.elements, shape: [...batch, ...read.shape] };
    }
    if (source === "audio") return { elements: await audioElements(file, Number(this.rate.value), datatype), shape };
    if (file.name.endsWith(".npy")) {
      const read = readNpy(new Uint8Array(await file.arrayBuffer()));
      if (read.datatype !== datatype) throw new Error(`the file has ${read.datatype}, the model wants ${datatype}`);
      return { elements: read.elements, shape: read.shape };
    }
    return { elements: parse(datatype, flat(JSON.parse(await file.text())).join(" ")), shape };
  }
}

function filling(datatype, kind, length) {
  const is64 = datatype === "INT64" || datatype === "UINT64";
  const of = (value) => (is64 ? BigInt(value) : value);
  if (kind === "zeros") return Array(length).fill(datatype === "BOOL" ? false : of(0));
  if (kind === "ones") return Array(length).fill(datatype === "BOOL" ? true : of(1));
  if (datatype === "BOOL") return Array.from({ length }, () => Math.random() < 0.5);
  if (isFloat(datatype)) return Array.from({ length }, () => Math.random());
  return Array.from({ length }, () => of(Math.floor(Math.random() * 100)));
}
