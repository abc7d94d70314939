// The form that asks a model, its answer, and the same request for other clients.

import { outputView } from "./answer.js";
import { copyButton, el, save, say } from "./dom.js";
import { number } from "./figures.js";
import { Input } from "./inputs.js";
import { binaryBody, infer, stream } from "./request.js";
import { curl, fileBytes, fileOf, isInline, isPlain, shoalClient, tritonGrpc, tritonHttp } from "./snippets.js";
import { writeNpy } from "./tensors.js";

const MOST_EVENTS = 500;

/** `model`: its figures; `metadata`, `config`: as the server describes it; `failed` is told each error. */
export class TryIt {
  constructor(model, version, metadata, config, grpcPort, failed) {
    this.model = model;
    this.version = version;
    this.failed = failed;
    this.grpcPort = grpcPort;
    const optional = new Set((config.input ?? []).filter((each) => each.optional).map((each) => each.name));
    this.inputs = metadata.inputs.map((spec) => new Input(spec, model.max_batch_size > 0, optional.has(spec.name)));
    const labelled = new Set((config.output ?? []).filter((each) => each.label_filename).map((each) => each.name));
    this.outputs = metadata.outputs.map((spec) => ({ name: spec.name,
      classes: labelled.has(spec.name) ? Math.max(1, Math.abs(spec.shape.at(-1) ?? 1)) : 0 }));
    this.button = el("button", { type: "submit" }, "Ask");
    this.stop = el("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.abort?.abort() }, "Stop");
    this.state = el("p", { class: "small muted", role: "status" });
    this.result = el("div", { class: "answer", id: "answer" });
    this.requests = el("div", {});
    this.sequence = model.has_sequences ? sequenceFields(hasTextIds(config)) : null;
    this.form = el("form", { id: "try", onsubmit: (event) => { event.preventDefault(); this.ask(); } },
      this.inputs.map((input) => input.root), this.sequence?.root,
      el("div", { class: "field-row" }, this.button, this.stop));
    this.form.addEventListener("change", () => this.showRequest());
    this.root = el("div", { class: "two" }, this.form,
      el("div", {}, el("h3", { id: "answer-title" }, "Answer"), this.state, this.result));
    this.showRequest();
  }

  /** The request that the form describes. Throws Error. */
  async read() {
    const inputs = [];
    for (const input of this.inputs) {
      const tensor = await input.read();
      if (tensor) inputs.push(tensor);
    }
    return { model: this.model.name, version: this.version, isDecoupled: this.model.is_decoupled, inputs,
      outputs: this.outputs, parameters: this.sequence?.read() ?? {} };
  }

  async ask() {
    this.button.disabled = true;
    this.stop.hidden = false;
    this.abort = new AbortController();
    this.result.replaceChildren();
    say(this.state, "Asked …");
    try {
      const asked = await this.read();
      await this.showRequest(asked);
      const begun = performance.now();
      const took = () => number(performance.now() - begun, "ms");
      if (asked.isDecoupled) {
        await this.follow(asked, took);
      } else {
        const outputs = await infer(asked, this.abort.signal);
        say(this.state, `Answered in ${took()}, the way to this browser included.`);
        this.result.replaceChildren(...outputs.map(outputView));
      }
    } catch (error) {
      const sentence = error.name === "AbortError" ? "Stopped." : error.message;
      say(this.state, error.status ? `Status ${error.status}` : "");
      this.result.append(el("p", { class: "error", role: "alert" }, sentence));
      if (error.status !== undefined) this.failed(error);
    }
    this.button.disabled = false;
    this.stop.hidden = true;
  }

  /** Show each answer of a model that may give several, as it comes. */
  async follow(asked, took) {
    const list = el("ol", { class: "stream", "aria-live": "polite" });
    this.result.replaceChildren(list);
    let count = 0;
    for await (const event of stream(asked, this.abort.signal)) {
      if (event.error) throw Object.assign(new Error(event.error), { status: 200 });
      count++;
      const { model_name: _, model_version: __, ...outputs } = event;
      if (count <= MOST_EVENTS) list.append(el("li", {}, el("code", {}, JSON.stringify(outputs))));
      say(this.state, `${count} ${count === 1 ? "answer" : "answers"} so far, ${took()}`);
    }
    say(this.state, `${count} ${count === 1 ? "answer" : "answers"} in ${took()}.`);
  }

  /** The request for other clients, below the form. */
  async showRequest(asked = null) {
    try {
      asked ??= await this.read();
    } catch {
      this.requests.replaceChildren(el("p", { class: "muted" }, "Fill in the form to see its request here."));
      return;
    }
    const { body, headBytes } = binaryBody(asked);
    const texts = {
      curl: curl(asked, body, headBytes),
      "Python, HTTP": tritonHttp(asked),
      "Python, gRPC": tritonGrpc(asked, this.grpcPort),
      "shoal.Client": shoalClient(asked, this.grpcPort),
    };
    const files = asked.inputs.filter((input) => !isInline(input) && !input.fill);
    const saves = files.map((input) => el("button", { type: "button", class: "quiet", onclick: () => save(fileOf(input),
      input.datatype === "BYTES" ? fileBytes(input) : writeNpy(input.datatype === "BF16" ? "FP32" : input.datatype, input.shape, input.elements),
      "application/octet-stream") }, `Save ${fileOf(input)}`));
    if (!isPlain(asked) && !asked.isDecoupled)
      saves.push(el("button", { type: "button", class: "quiet", onclick: () => save("request.bin", body, "application/octet-stream") }, "Save request.bin"));
    this.requests.replaceChildren(tabs(texts, this.requests),
      saves.length ? el("p", { class: "field-row" }, "It reads what lies beside it:", saves) : "");
  }
}

/** Whether the model wants its sequences' ids as strings. */
function hasTextIds(config) {
  return (config.sequence_batching?.control_input ?? []).some(({ control }) => (control ?? []).some((each) =>
    each.kind === "CONTROL_SEQUENCE_CORRID" && each.data_type === "TYPE_STRING"));
}

function sequenceFields(isText) {
  const id = el("input", { id: "sequence-id", size: 12, value: String(1 + Math.floor(Math.random() * 1e6)) });
  const start = el("input", { id: "sequence-start", type: "checkbox", checked: true });
  const end = el("input", { id: "sequence-end", type: "checkbox" });
  const labelled = (text, field) => el("span", { class: "buttons" }, field, el("label", { for: field.id }, text));
  return {
    root: el("fieldset", {}, el("legend", {}, "Sequence"), el("div", { class: "field-row" },
      el("label", { for: id.id }, "Id"), id, labelled("Its first request", start), labelled("Its last request", end))),
    read: () => ({ sequence_id: !isText && /^\d+$/.test(id.value) ? Number(id.value) : id.value,
      sequence_start: start.checked, sequence_end: end.checked }),
  };
}

/** Tabs of texts, each with a button that copies it; arrow keys lead from one to the next. The tab that was chosen
 * before stays chosen. */
function tabs(texts, before) {
  const names = Object.keys(texts);
  const code = el("pre", { tabindex: 0 });
  const panel = el("div", { role: "tabpanel", id: "request-panel", "aria-labelledby": "request-tab-0" }, code);
  const buttons = names.map((name, index) => el("button", { type: "button", role: "tab", id: `request-tab-${index}`,
    "aria-controls": "request-panel", onclick: () => choose(index) }, name));
  const list = el("div", { role: "tablist", class: "tabs", "aria-label": "Clients", onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (chosen + step + names.length) % names.length;
    choose(next);
    buttons[next].focus();
  } }, buttons);
  let chosen = 0;
  function choose(index) {
    chosen = index;
    buttons.forEach((button, number_) => {
      button.setAttribute("aria-selected", String(number_ === index));
      button.tabIndex = number_ === index ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", `request-tab-${index}`);
    say(code, texts[names[index]]);
  }
  const old = before.querySelector("[role=tab][aria-selected=true]");
  choose(Math.max(0, names.indexOf(old?.textContent ?? "")));
  return el("div", {}, el("div", { class: "tabs" }, list, copyButton(() => code.textContent, "the request")), panel);
}
