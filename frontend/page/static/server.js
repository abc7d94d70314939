// Requests to the server that the page came from, by the paths that any other client uses.

const KEY = "shoal.header";

/** An answer that is not what was asked for: the server's own sentence, and the status (0: no answer at all). */
export class ServerError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The address of a path, also where a proxy serves the page below another. */
export function address(path) {
  return new URL(path, document.baseURI).href;
}

/** The path of a model, or of one of its versions. */
export function modelPath(name, version) {
  return `v2/models/${encodeURIComponent(name)}${version ? `/versions/${version}` : ""}`;
}

/** The header that every request carries, for a server that restricts its API; null without one. It is kept until the
 * browser's tab is closed. */
export function header() {
  const kept = sessionStorage.getItem(KEY);
  return kept === null ? null : JSON.parse(kept);
}

export function setHeader(name, value) {
  if (name) sessionStorage.setItem(KEY, JSON.stringify([name, value]));
  else sessionStorage.removeItem(KEY);
}

/** A request's answer; raises ServerError unless its status is 2xx. */
export async function send(path, options = {}) {
  const extra = header();
  let answer;
  try {
    answer = await fetch(address(path), {
      cache: "no-store", ...options, headers: { ...options.headers, ...(extra ? { [extra[0]]: extra[1] } : {}) },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer.");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let sentence = text;
  try {
    sentence = JSON.parse(text).error ?? text;
  } catch { /* not JSON: the text itself */ }
  throw new ServerError(answer.status, sentence || `The server answered with status ${answer.status}.`);
}

export async function getJson(path) {
  return (await send(path)).json();
}

export async function postJson(path, value) {
  return send(path, { method: "POST", body: JSON.stringify(value), headers: { "Content-Type": "application/json" } });
}

/** Whether the server lets this browser load, unload and scale. */
export async function mayAdminister() {
  try {
    return (await (await send("ui/access", { method: "POST" })).json()).may_administer === true;
  } catch {
    return false;
  }
}
