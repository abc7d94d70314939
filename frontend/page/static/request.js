// A request to a model in Triton's protocol: binary tensors to `infer`, plain JSON to `generate_stream`.

import { modelPath, send } from "./server.js";
import { decode, encode } from "./tensors.js";

const utf8 = new TextEncoder();
const MOST_CLASSES = 10;

/** The head and the tensors of an infer request, as they are sent. `asked`: {inputs, outputs, parameters}, outputs
 * [{name, classes}]. */
export function binaryBody(asked) {
  const parts = asked.inputs.map((input) => encode(input.datatype, input.elements));
  const head = {
    ...(Object.keys(asked.parameters).length ? { parameters: asked.parameters } : {}),
    inputs: asked.inputs.map(({ name, shape, datatype }, index) =>
      ({ name, shape, datatype, parameters: { binary_data_size: parts[index].length } })),
    outputs: asked.outputs.map(({ name, classes }) =>
      ({ name, parameters: { binary_data: true, ...(classes ? { classification: Math.min(classes, MOST_CLASSES) } : {}) } })),
  };
  const first = utf8.encode(JSON.stringify(head));
  return { headBytes: first.length, body: new Blob([first, ...parts]) };
}

/** The answer of a model that answers once: [{name, datatype, shape, elements, isClasses}]. Throws ServerError. */
export async function infer(asked, signal) {
  const { headBytes, body } = binaryBody(asked);
  const answer = await send(`${modelPath(asked.model, asked.version)}/infer`, { method: "POST", body, signal,
    headers: { "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(headBytes) } });
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const length = Number(answer.headers.get("Inference-Header-Content-Length") ?? bytes.length);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, length)));
  const classified = new Set(asked.outputs.filter((each) => each.classes).map((each) => each.name));
  let at = length;
  return head.outputs.map((output) => {
    const size = output.parameters?.binary_data_size;
    const elements = size === undefined
      ? (output.data ?? []).map((each) => (output.datatype === "BYTES" ? utf8.encode(each) : each))
      : decode(output.datatype, bytes.subarray(at, at + size));
    at += size ?? 0;
    return { ...output, elements, isClasses: classified.has(output.name) };
  });
}

/** A tensor as a member of a `generate` request. */
function plain(input) {
  const elements = input.elements.map((each) => (typeof each === "bigint" ? Number(each)
    : each instanceof Uint8Array ? new TextDecoder().decode(each) : each));
  return elements.length === 1 ? elements[0] : elements;
}

/** A request as the flat JSON of `generate`. */
export function generateBody(asked) {
  return JSON.stringify({ ...Object.fromEntries(asked.inputs.map((input) => [input.name, plain(input)])), ...asked.parameters });
}

/** The answers of a model that may give several, one after the other, as they come. Throws ServerError. */
export async function* stream(asked, signal) {
  const answer = await send(`${modelPath(asked.model, asked.version)}/generate_stream`, { method: "POST",
    body: generateBody(asked), signal, headers: { "Content-Type": "application/json" } });
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    text += decoder.decode(value ?? new Uint8Array(), { stream: !done });
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events)
      if (event.startsWith("data:")) yield JSON.parse(event.slice(5));
    if (done) return;
  }
}
