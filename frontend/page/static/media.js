// Files as tensors: an image or a sound, decoded by the browser, in the shape that a model wants.

import { isFloat } from "./tensors.js";

/** Ways to scale the 0 to 255 of a picture. */
export const SCALES = {
  "0 to 255": (value) => value,
  "0 to 1": (value) => value / 255,
  "0 to 16": (value) => value / 15.9375,
  "−1 to 1": (value) => value / 127.5 - 1,
  "ImageNet's mean and deviation": (value, channel) =>
    (value / 255 - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3],
};

/** Where height, width and channels lie in a shape without its batch dimension; null if no picture fits it. */
export function layoutOf(dims) {
  const isChannels = (dim) => dim === 1 || dim === 3 || dim === 4;
  if (dims.length === 3 && isChannels(dims[0])) return { order: "CHW", channels: dims[0], height: dims[1], width: dims[2] };
  if (dims.length === 3 && isChannels(dims[2])) return { order: "HWC", channels: dims[2], height: dims[0], width: dims[1] };
  if (dims.length === 3 && dims[0] < 0) return { order: "CHW", channels: 3, height: dims[1], width: dims[2] };
  if (dims.length === 2) return { order: "HWC", channels: 1, height: dims[0], width: dims[1] };
  const side = Math.sqrt(dims[0]);
  if (dims.length === 1 && dims[0] > 15 && Number.isInteger(side)) return { order: "HWC", channels: 1, height: side, width: side, isFlat: true };
  return null;
}

/** A picture's elements and their shape (without a batch dimension). */
export async function imageElements(file, dims, datatype, scale) {
  const layout = layoutOf(dims);
  if (!layout) throw new Error(`no picture fits the shape [${dims.join(", ")}]`);
  const bitmap = await createImageBitmap(file);
  const width = layout.width > 0 ? layout.width : bitmap.width;
  const height = layout.height > 0 ? layout.height : bitmap.height;
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (layout.channels !== 4) {  // what shows through is white, as on a page
    context.fillStyle = "white";
    context.fillRect(0, 0, width, height);
  }
  context.drawImage(bitmap, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height).data;
  const { channels, order } = layout;
  const elements = new Array(width * height * channels);
  const convert = SCALES[scale];
  const finish = isFloat(datatype) ? (value) => value : Math.round;
  for (let pixel = 0; pixel < width * height; pixel++) {
    for (let channel = 0; channel < channels; channel++) {
      const raw = channels === 1
        ? 0.299 * pixels[pixel * 4] + 0.587 * pixels[pixel * 4 + 1] + 0.114 * pixels[pixel * 4 + 2]
        : pixels[pixel * 4 + channel];
      elements[order === "CHW" ? channel * width * height + pixel : pixel * channels + channel] = finish(convert(raw, channel));
    }
  }
  const shape = layout.isFlat ? [width * height] : dims.length === 2 ? [height, width]
    : order === "CHW" ? [channels, height, width] : [height, width, channels];
  return { elements, shape };
}

/** A sound's elements, one channel at so many samples a second. */
export async function audioElements(file, rate, datatype) {
  const context = new OfflineAudioContext(1, 1, rate);
  const buffer = await context.decodeAudioData(await file.arrayBuffer());
  const samples = new Float32Array(buffer.length);
  for (let channel = 0; channel < buffer.numberOfChannels; channel++)
    buffer.getChannelData(channel).forEach((value, index) => { samples[index] += value / buffer.numberOfChannels; });
  const scale = isFloat(datatype) ? (value) => value : (value) => Math.round(Math.max(-1, Math.min(1, value)) * 32767);
  return Array.from(samples, scale);
}
