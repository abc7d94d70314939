// Load, unload and scale: the same requests that `shoal load`, `unload` and `scale` send. The buttons are there for those
// whom the server lets change it.

import { el, say } from "./dom.js";
import { mayAdminister, postJson } from "./server.js";

let may = null;

/** Whether this browser may change the server; asked once. */
function allowed() {
  may ??= mayAdminister();
  return may;
}

/** Buttons for one model, in a group; `said` is told what became of a request. */
export class Actions {
  constructor(name, said) {
    this.name = name;
    this.said = said;
    this.isBusy = false;
    this.instances = 0;
    this.load = this.button("Load", "load", {});
    this.unload = this.button("Unload", "unload", {});
    this.fewer = el("button", { type: "button", class: "quiet", "aria-label": `One instance of ${name} less`,
      onclick: () => this.scale(-1) }, "−");
    this.more = el("button", { type: "button", class: "quiet", "aria-label": `One instance of ${name} more`,
      onclick: () => this.scale(1) }, "+");
    this.root = el("span", { class: "buttons", hidden: true }, this.fewer, this.more, this.load, this.unload);
    allowed().then((is) => { this.isAllowed = is; this.draw(); });
  }

  button(text, verb, body) {
    return el("button", { type: "button", class: "quiet", "aria-label": `${text} ${this.name}`, onclick: () =>
      this.ask(`v2/repository/models/${encodeURIComponent(this.name)}/${verb}`, body, `${text} ${this.name}`) }, text);
  }

  scale(change) {
    const count = Math.max(0, this.instances + change);
    const version = this.model.version ? `/versions/${this.model.version}` : "";
    this.ask(`v2/repository/models/${encodeURIComponent(this.name)}${version}/instances`, { count, wait: false },
      `${this.name}: ${count} instances`);
  }

  async ask(path, body, what) {
    this.isBusy = true;
    this.draw();
    this.said(`${what} …`);
    try {
      await postJson(path, body);
      this.said(`${what}: done.`);
    } catch (error) {
      this.said(`${what}: ${error.message}`);
    }
    this.isBusy = false;
    this.draw();
  }

  /** Show what can be done with a model in this state. */
  show(model, mode) {
    this.model = model;
    this.mode = mode;
    this.instances = model.instances;
    this.draw();
  }

  draw() {
    if (!this.model) return;
    const isReady = this.model.state === "READY";
    this.root.hidden = !this.isAllowed;
    this.fewer.hidden = this.more.hidden = !isReady || this.model.is_ensemble;
    this.load.hidden = this.mode !== "explicit";
    this.unload.hidden = this.mode !== "explicit" || !isReady;
    say(this.load, isReady ? "Reload" : "Load");
    this.load.setAttribute("aria-label", `${isReady ? "Reload" : "Load"} ${this.name}`);
    for (const button of [this.fewer, this.more, this.load, this.unload]) button.disabled = this.isBusy;
    if (this.instances <= 1) this.fewer.disabled = true;
  }
}
