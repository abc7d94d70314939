// Tensors of Triton's protocol: numbers and texts to bytes, and back. Pure.

const FLOATS = new Set(["FP16", "BF16", "FP32", "FP64"]);
const SIZES = { BOOL: 1, UINT8: 1, INT8: 1, UINT16: 2, INT16: 2, FP16: 2, BF16: 2, UINT32: 4, INT32: 4, FP32: 4,
  UINT64: 8, INT64: 8, FP64: 8 };
const SETTERS = { BOOL: "setUint8", UINT8: "setUint8", INT8: "setInt8", UINT16: "setUint16", INT16: "setInt16",
  UINT32: "setUint32", INT32: "setInt32", FP32: "setFloat32", UINT64: "setBigUint64", INT64: "setBigInt64",
  FP64: "setFloat64" };
const utf8 = new TextEncoder();
const scratch = new DataView(new ArrayBuffer(4));

export function isFloat(datatype) {
  return FLOATS.has(datatype);
}

/** Elements in a shape. */
export function count(shape) {
  return shape.reduce((product, dim) => product * dim, 1);
}

function halfOf(value) {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | roundEven(size * 2 ** 24);
  const power = Math.min(15, Math.floor(Math.log2(size)));
  const exact = size / 2 ** power < 1 ? power - 1 : power;
  return sign | (((exact + 15) << 10) + roundEven((size / 2 ** exact - 1) * 1024));
}

function roundEven(value) {
  const low = Math.floor(value);
  const rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2 === 1) ? low + 1 : low;
}

function ofHalf(word) {
  const sign = word & 0x8000 ? -1 : 1;
  const power = (word >> 10) & 31;
  const part = word & 1023;
  if (power === 31) return part ? NaN : sign * Infinity;
  return sign * (power === 0 ? part * 2 ** -24 : (1 + part / 1024) * 2 ** (power - 15));
}

function brainOf(value) {
  scratch.setFloat32(0, value);
  const word = scratch.getUint32(0);
  if (Number.isNaN(value)) return 0x7fc0;
  return ((word + 0x7fff + ((word >> 16) & 1)) >>> 16) & 0xffff;
}

function ofBrain(word) {
  scratch.setUint32(0, word << 16);
  return scratch.getFloat32(0);
}

/** The bytes of a tensor's elements. Elements of BYTES are texts or Uint8Arrays, of INT64 and UINT64 numbers or BigInts. */
export function encode(datatype, elements) {
  if (datatype === "BYTES") {
    const parts = elements.map((each) => (each instanceof Uint8Array ? each : utf8.encode(String(each))));
    const all = new Uint8Array(parts.reduce((sum, part) => sum + 4 + part.length, 0));
    const view = new DataView(all.buffer);
    let at = 0;
    for (const part of parts) {
      view.setUint32(at, part.length, true);
      all.set(part, at + 4);
      at += 4 + part.length;
    }
    return all;
  }
  const size = SIZES[datatype];
  const all = new Uint8Array(elements.length * size);
  const view = new DataView(all.buffer);
  elements.forEach((each, index) => {
    if (datatype === "FP16") view.setUint16(index * 2, halfOf(each), true);
    else if (datatype === "BF16") view.setUint16(index * 2, brainOf(each), true);
    else if (size === 8 && datatype !== "FP64") view[SETTERS[datatype]](index * 8, BigInt(each), true);
    else view[SETTERS[datatype]](index * size, Number(each), true);
  });
  return all;
}

/** The elements of a tensor's bytes: numbers, BigInts, booleans, or Uint8Arrays for BYTES. */
export function decode(datatype, bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const elements = [];
  if (datatype === "BYTES") {
    for (let at = 0; at < bytes.length;) {
      const length = view.getUint32(at, true);
      elements.push(bytes.subarray(at + 4, at + 4 + length));
      at += 4 + length;
    }
    return elements;
  }
  const size = SIZES[datatype];
  for (let at = 0; at + size <= bytes.length; at += size) {
    if (datatype === "FP16") elements.push(ofHalf(view.getUint16(at, true)));
    else if (datatype === "BF16") elements.push(ofBrain(view.getUint16(at, true)));
    else if (datatype === "BOOL") elements.push(view.getUint8(at) !== 0);
    else elements.push(view[SETTERS[datatype].replace("set", "get")](at, true));
  }
  return elements;
}

/** A text of Uint8Array, or null where it is not UTF-8. */
export function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** The media type of an image's first bytes; "" for what is no image. */
export function imageType(bytes) {
  const start = String.fromCharCode(...bytes.subarray(0, 12));
  if (start.startsWith("\x89PNG\r\n")) return "image/png";
  if (start.startsWith("\xff\xd8\xff")) return "image/jpeg";
  if (start.startsWith("GIF8")) return "image/gif";
  if (start.startsWith("RIFF") && start.slice(8) === "WEBP") return "image/webp";
  return "";
}

/** Read what a person has typed as elements. Throws Error with a sentence. */
export function parse(datatype, text) {
  const trimmed = text.trim();
  if (datatype === "BYTES") {
    if (trimmed.startsWith("[")) {
      try {
        return flat(JSON.parse(trimmed)).map(String);
      } catch { /* a text that begins with a bracket */ }
    }
    return [text];
  }
  const isWhole = !isFloat(datatype);
  return trimmed.split(/[\s,;[\]()]+/).filter(Boolean).map((word) => {
    if (datatype === "BOOL") {
      if (/^(true|1)$/i.test(word)) return true;
      if (/^(false|0)$/i.test(word)) return false;
      throw new Error(`expected true or false, got '${word}'`);
    }
    if (isWhole) {
      if (!/^[+-]?\d+$/.test(word)) throw new Error(`expected a whole number, got '${word}'`);
      return SIZES[datatype] === 8 ? BigInt(word) : Number(word);
    }
    const value = Number(word);
    if (Number.isNaN(value) && !/^nan$/i.test(word)) throw new Error(`expected a number, got '${word}'`);
    return value;
  });
}

/** Nested lists as one. */
export function flat(value) {
  return Array.isArray(value) ? value.flat(Infinity) : [value];
}

/** The shape with its unknown size ("?" or -1) worked out from the number of elements. Throws Error with a sentence. */
export function resolve(shape, elements) {
  const unknown = shape.filter((dim) => dim < 0).length;
  const known = shape.filter((dim) => dim >= 0).reduce((product, dim) => product * dim, 1);
  const shown = `[${shape.map((dim) => (dim < 0 ? "?" : dim)).join(", ")}]`;
  if (unknown > 1) throw new Error(`the shape ${shown} has more than one unknown size: say them`);
  if (unknown === 0) {
    if (known !== elements) throw new Error(`the shape ${shown} has ${known} elements, got ${elements}`);
    return shape;
  }
  if (known === 0 || elements % known) throw new Error(`${elements} elements do not fill the shape ${shown}`);
  return shape.map((dim) => (dim < 0 ? elements / known : dim));
}

/** The header of a file in numpy's format, and what follows it. Throws Error for a kind that is not read here. */
export function readNpy(bytes) {
  if (String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") throw new Error("this is no .npy file");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const isLong = bytes[6] > 1;
  const start = isLong ? 12 : 10;
  const end = start + (isLong ? view.getUint32(8, true) : view.getUint16(8, true));
  const head = new TextDecoder().decode(bytes.subarray(start, end));
  const descr = /'descr': '([^']+)'/.exec(head)?.[1];
  const shape = /'shape': \(([^)]*)\)/.exec(head)?.[1].split(",").filter((each) => each.trim()).map(Number);
  const kinds = { "|b1": "BOOL", "|u1": "UINT8", "|i1": "INT8", "<u2": "UINT16", "<i2": "INT16", "<u4": "UINT32",
    "<i4": "INT32", "<u8": "UINT64", "<i8": "INT64", "<f2": "FP16", "<f4": "FP32", "<f8": "FP64" };
  if (!kinds[descr] || !shape || /'fortran_order': True/.test(head))
    throw new Error(`arrays of '${descr}' in this order are not read here`);
  return { datatype: kinds[descr], shape, elements: decode(kinds[descr], bytes.subarray(end)) };
}

/** A file in numpy's format. */
export function writeNpy(datatype, shape, elements) {
  const kinds = { BOOL: "|b1", UINT8: "|u1", INT8: "|i1", UINT16: "<u2", INT16: "<i2", UINT32: "<u4", INT32: "<i4",
    UINT64: "<u8", INT64: "<i8", FP16: "<f2", FP32: "<f4", FP64: "<f8" };
  const dims = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  let head = `{'descr': '${kinds[datatype]}', 'fortran_order': False, 'shape': (${dims}), }`;
  head += " ".repeat(63 - ((10 + head.length) % 64)) + "\n";
  const content = encode(datatype, elements);
  const all = new Uint8Array(10 + head.length + content.length);
  all.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, head.length & 255, head.length >> 8]);
  all.set(utf8.encode(head), 10);
  all.set(content, 10 + head.length);
  return all;
}
