// The request of the form as other clients send it: curl, tritonclient over HTTP and gRPC, shoal.Client. Pure.

import { address, header, modelPath } from "./server.js";
import { encode } from "./tensors.js";

const INLINE = 64; // elements that a snippet spells out
const DTYPES = { BOOL: "bool", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", INT8: "int8",
  INT16: "int16", INT32: "int32", INT64: "int64", FP16: "float16", FP32: "float32", FP64: "float64", BYTES: "object",
  BF16: "float32" };

/** A file name for a tensor's values. */
export function fileOf(input) {
  const name = input.name.replace(/[^A-Za-z0-9_-]+/g, "_");
  return `${name}.${input.datatype === "BYTES" ? "bin" : "npy"}`;
}

/** Whether a snippet spells a tensor's values out. */
export function isInline(input) {
  return input.elements.length <= INLINE && !input.elements.some((each) => each instanceof Uint8Array);
}

/** Whether JSON can carry the whole request, and a person can read it. */
export function isPlain(asked) {
  return asked.inputs.every((input) => isInline(input) && input.datatype !== "FP16" && input.datatype !== "BF16"
    && input.elements.every((each) => typeof each !== "number" || Number.isFinite(each)));
}

function json(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(json).join(",")}]`;
  if (value !== null && typeof value === "object")
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}:${json(each)}`).join(",")}}`;
  return JSON.stringify(value);
}

function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function python(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number" && !Number.isFinite(value)) return `float("${value}")`;
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

function where() {
  const url = new URL(address("."));
  return { url: url.href.replace(/\/$/, ""), host: url.host + url.pathname.replace(/\/$/, ""), name: url.hostname };
}

export function curl(asked, body, headBytes) {
  const base = `${where().url}/${modelPath(asked.model, asked.version)}`;
  const extra = header() ? ` -H ${shell(`${header()[0]}: …`)}` : "";
  if (asked.isDecoupled) return `curl -sN ${shell(`${base}/generate_stream`)}${extra} \\\n  -d ${shell(generate(asked))}`;
  const url = shell(`${base}/infer`);
  if (!isPlain(asked))
    return `curl -s ${url}${extra} \\\n  -H 'Inference-Header-Content-Length: ${headBytes}' --data-binary @request.bin --output answer.bin`;
  const outputs = asked.outputs.map(({ name, classes }) =>
    ({ name, ...(classes ? { parameters: { classification: Math.min(classes, 10) } } : {}) }));
  return `curl -s ${url}${extra} \\\n  -d ${shell(json({
    ...(Object.keys(asked.parameters).length ? { parameters: asked.parameters } : {}),
    inputs: asked.inputs.map((input) => ({ name: input.name, shape: input.shape, datatype: input.datatype, data: input.elements })),
    ...(outputs.some((output) => output.parameters) ? { outputs } : {}),
  }))}`;
}

function generate(asked) {
  return json({ ...Object.fromEntries(asked.inputs.map((input) =>
    [input.name, input.elements.length === 1 ? input.elements[0] : input.elements])), ...asked.parameters });
}

/** A tensor as an expression of numpy. */
function array(input) {
  const dtype = input.datatype === "BYTES" || input.datatype === "BOOL" ? DTYPES[input.datatype] : `np.${DTYPES[input.datatype]}`;
  const shape = `[${input.shape.join(", ")}]`;
  if (!isInline(input) && input.fill) return `np.${input.fill}(${shape}, ${dtype})`;
  if (!isInline(input) && input.datatype === "BYTES")
    return `np.array([open(${python(fileOf(input))}, "rb").read()], object).reshape(${shape})`;
  if (!isInline(input)) return `np.load(${python(fileOf(input))})`;
  return `np.array([${input.elements.map(python).join(", ")}], ${dtype}).reshape(${shape})`;
}

/** The keywords of a request beyond its tensors, each with a comma before it. */
function keywords(asked) {
  const { sequence_id: id, sequence_start: start, sequence_end: end } = asked.parameters;
  return (asked.version ? `, model_version=${python(asked.version)}` : "")
    + (id === undefined ? "" : `, sequence_id=${python(id)}, sequence_start=${python(Boolean(start))}, sequence_end=${python(Boolean(end))}`);
}

function tensors(asked, kind) {
  return `import numpy as np
import tritonclient.${kind} as triton


def tensor(name, datatype, array):
    return triton.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)


inputs = [
${asked.inputs.map((input) => `    tensor(${python(input.name)}, "${input.datatype}", ${array(input)}),`).join("\n")}
]
`;
}

function printed(asked, answer = "answer", indent = "") {
  return `${indent}for name in ${`[${asked.outputs.map(({ name }) => python(name)).join(", ")}]`}:
${indent}    print(name, ${answer}.as_numpy(name))`;
}

export function tritonHttp(asked) {
  if (asked.isDecoupled) {
    const members = asked.inputs.map((input) => `${python(input.name)}: ${array(input)}.ravel().tolist()`);
    return `import json
import urllib.request

import numpy as np

# tritonclient reads no streams over HTTP; Python itself does.
body = json.dumps({${members.join(", ")}})
url = ${python(`${where().url}/${modelPath(asked.model, asked.version)}/generate_stream`)}
with urllib.request.urlopen(urllib.request.Request(url, body.encode())) as answers:
    for line in answers:
        if line.startswith(b"data:"):
            print(json.loads(line[5:]))
`;
  }
  return `${tensors(asked, "http")}
client = triton.InferenceServerClient(${python(where().host)}${where().url.startsWith("https:") ? ", ssl=True" : ""})
answer = client.infer(${python(asked.model)}, inputs${keywords(asked)})
${printed(asked)}
`;
}

export function tritonGrpc(asked, port) {
  if (!port) return "# This server has no gRPC (--allow-grpc).\n";
  const client = `client = triton.InferenceServerClient(${python(`${where().name}:${port}`)})`;
  if (!asked.isDecoupled)
    return `${tensors(asked, "grpc")}
${client}
answer = client.infer(${python(asked.model)}, inputs${keywords(asked)})
${printed(asked)}
`;
  return `import queue

${tensors(asked, "grpc")}
answers = queue.Queue()
${client}
client.start_stream(lambda result, error: answers.put(error or result))
client.async_stream_infer(${python(asked.model)}, inputs, enable_empty_final_response=True${keywords(asked)})
while True:
    answer = answers.get()
    if isinstance(answer, Exception):
        raise answer
    if answer.get_response().parameters["triton_final_response"].bool_param:
        break
${printed(asked, "answer", "    ")}
client.stop_stream()
`;
}

export function shoalClient(asked, port) {
  const inputs = asked.inputs.map((input) => `    ${python(input.name)}: ${array(input)},`).join("\n");
  const place = asked.isDecoupled && port ? `grpc://${where().name}:${port}` : where().url;
  const more = keywords(asked).replace("model_version", "version");
  const shown = `${asked.isDecoupled ? "    " : ""}for name in [${asked.outputs.map(({ name }) => python(name)).join(", ")}]:
${asked.isDecoupled ? "    " : ""}    print(name, answer[name])`;
  return `import numpy as np
from shoal import Client

# On the server's own machine, Client() asks through shared memory instead.
client = Client(${python(place)})
inputs = {
${inputs}
}
${asked.isDecoupled ? `for answer in client.stream(${python(asked.model)}, inputs${more}):`
    : `answer = client.infer(${python(asked.model)}, inputs${more})`}
${shown}
`;
}

/** Bytes to save for a tensor that snippets load from a file. */
export function fileBytes(input) {
  return input.datatype === "BYTES" ? input.elements[0] : encode(input.datatype, input.elements);
}
