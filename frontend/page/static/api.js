// The view of the API: openapi.json, path by path.

import { copyButton, el, say } from "./dom.js";
import { address, getJson } from "./server.js";

/** A schema in a few words, with its members below it. */
function schemaView(schema, depth = 0) {
  if (!schema || depth > 6) return el("span", {}, "…");
  if (schema.oneOf || schema.anyOf) {
    const all = (schema.oneOf ?? schema.anyOf).map((each) => el("li", {}, schemaView(each, depth + 1)));
    return el("span", {}, "one of", el("ul", {}, all));
  }
  const words = [];
  if (schema.const !== undefined) words.push(JSON.stringify(schema.const));
  else if (schema.enum) words.push(schema.enum.map((each) => JSON.stringify(each)).join(" | "));
  else if (schema.prefixItems) words.push(`[${schema.prefixItems.map(size).join(", ")}]`);
  else words.push([schema.type ?? "any"].flat().join(" | "));
  if (schema.minimum !== undefined && schema.const === undefined) words.push(`from ${schema.minimum}${schema.maximum === undefined ? "" : ` to ${schema.maximum}`}`);
  if (schema.description) words.push(`– ${schema.description}`);
  const required = new Set(schema.required ?? []);
  const members = Object.entries(schema.properties ?? {}).map(([name, each]) =>
    el("li", {}, el("code", {}, name), required.has(name) ? "" : " (optional)", ": ", schemaView(each, depth + 1)));
  const items = schema.items && Object.keys(schema.items).length ? el("ul", {}, el("li", {}, "each: ", schemaView(schema.items, depth + 1))) : null;
  return el("span", {}, words.join(" "), members.length ? el("ul", {}, members) : null, items);
}

function size(schema) {
  if (schema.const !== undefined) return String(schema.const);
  return schema.maximum === undefined ? "any" : `${schema.minimum}…${schema.maximum}`;
}

function operationView(path, verb, operation) {
  const content = (part) => Object.entries(part?.content ?? {}).map(([type, each]) =>
    [el("p", { class: "small muted" }, type), el("div", { class: "small" }, schemaView(each.schema))]);
  const body = content(operation.requestBody);
  const answer = content(operation.responses["200"]);
  return el("details", {},
    el("summary", {}, el("span", { class: "verb" }, verb.toUpperCase()), el("code", {}, path), " ",
      el("span", { class: "muted small" }, operation.summary)),
    body.length ? [el("h3", {}, "Request"), ...body.flat()] : null,
    el("h3", {}, "Answer"), answer.length ? answer.flat() : el("p", { class: "small muted" }, "No body."));
}

/** `wanted`: the model whose paths are shown at once. */
export function apiView(wanted) {
  const state = el("p", { class: "muted", role: "status" }, "Reading openapi.json …");
  const list = el("div", {});

  async function read() {
    try {
      const document_ = await getJson("openapi.json");
      const tags = new Map(document_.tags.map(({ name }) => [name, []]));
      for (const [path, verbs] of Object.entries(document_.paths))
        for (const [verb, operation] of Object.entries(verbs)) tags.get(operation.tags[0])?.push(operationView(path, verb, operation));
      list.replaceChildren(...[...tags].map(([name, views]) =>
        el("details", { open: name === wanted || tags.size <= 3 }, el("summary", {}, el("b", {}, name), " ",
          el("span", { class: "muted small" }, `${views.length} paths`)), el("div", {}, views))));
      say(state, document_.info.description);
    } catch (error) {
      say(state, error.message);
    }
  }

  read();
  return {
    title: "API",
    root: el("div", {},
      el("div", { class: "bar-top" }, el("h1", {}, "API"), el("span", { class: "grow" }),
        el("a", { href: "openapi.json" }, "openapi.json"), copyButton(() => address("openapi.json"), "its address")),
      state, list),
  };
}
