// Elements of the page. Whatever comes from a server is text: nothing here, nor elsewhere, makes HTML of a string.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An HTML element; attributes named on… are listeners, children are nodes or text. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace an element's text if it has changed: screen readers and selections are not disturbed for nothing. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table with its caption for screen readers, its head, and rows of cells (text or nodes). */
export function table(caption, head, rows, attributes = {}) {
  return el("table", attributes,
    el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, number) =>
      number === 0 ? el("th", { scope: "row" }, cell) : el("td", { "data-label": head[number] }, cell))))));
}

/** A section with a heading. */
export function section(title, ...children) {
  const id = `section-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return el("section", { "aria-labelledby": id }, el("h2", { id }, title), ...children);
}

/** A button that copies a text, and says so. */
export function copyButton(text, what) {
  const button = el("button", { type: "button", class: "quiet", "aria-label": `Copy ${what}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text());
      say(button, "Copied");
    } catch {
      say(button, "Select it and press Ctrl+C");
    }
    setTimeout(() => say(button, "Copy"), 2000);
  } }, "Copy");
  return button;
}

/** Offer bytes or text as a file to save. */
export function save(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
