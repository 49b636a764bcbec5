// A payload as people read it: JSON with colors, text, a number, or a hex dump.

import { button, make } from "./dom.js";
import { bytes, exact, hexDump, isNumber, NONE, put } from "./text.js";

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]/g;

/** The payload in one line, for a row of a table. */
export function summary(payload) {
  if (!payload) return NONE;
  if (payload.kind === "empty" || payload.size === 0) return "empty";
  if (payload.kind === "number" && isNumber(payload.number))
    return payload.text ?? exact(payload.number);
  if (payload.kind === "binary" || typeof payload.text !== "string") {
    const pairs = (payload.hex ?? "").slice(0, 48).match(/../g) ?? [];
    return `${bytes(payload.size)}: ${pairs.join(" ")}${payload.size > 24 ? " …" : ""}`;
  }
  return payload.text.length > 300 ? `${payload.text.slice(0, 300)}…` : payload.text;
}

/** Put the summary into a cell, with a class that says its kind. */
export function putSummary(cell, payload) {
  put(cell, summary(payload), { limit: 320 });
  cell.dataset.kind = payload?.kind ?? "none";
}

function span(style, text) {
  const element = make("span", { class: style });
  return put(element, text);
}

/** JSON text with line breaks and colors.
 *
 * It is split into tokens and not parsed, so that numbers keep all their digits, keys their order,
 * and duplicates are shown. */
export function prettyJson(text) {
  const output = document.createDocumentFragment();
  let depth = 0;
  let end = 0;
  const tokens = [...text.matchAll(TOKENS)];
  const newline = () => output.append(`\n${"  ".repeat(Math.min(depth, 40))}`);
  tokens.forEach((match, index) => {
    const token = match[0];
    const next = tokens[index + 1]?.[0];
    end = match.index + token.length;
    if (token === "{" || token === "[") {
      output.append(token);
      depth += 1;
      if (next !== "}" && next !== "]") newline();
    } else if (token === "}" || token === "]") {
      const before = tokens[index - 1]?.[0];
      depth = Math.max(0, depth - 1);
      if (before !== "{" && before !== "[") newline();
      output.append(token);
    } else if (token === ",") {
      output.append(token);
      newline();
    } else if (token === ":") {
      output.append(": ");
    } else if (token[0] === '"') {
      output.append(span(next === ":" ? "json-key" : "json-string", token));
    } else {
      output.append(span(/^[tfn]/.test(token) ? "json-word" : "json-number", token));
    }
  });
  // What was cut off in the middle of a token.
  const rest = text.slice(end).trim();
  if (rest) output.append(span("json-string", rest));
  return output;
}

/** Numbers in a payload that can be charted: name to value. "" is the payload itself. */
export function numbersOf(payload) {
  const found = new Map();
  if (isNumber(payload?.number)) found.set("", payload.number);
  if (payload?.kind !== "json" || typeof payload.text !== "string" || payload.cut) return found;
  try {
    collect(JSON.parse(payload.text), "", found, 0);
  } catch {
    // The server said JSON and the browser disagrees: then there is nothing to chart.
  }
  return found;
}

function collect(value, path, found, depth) {
  if (found.size >= 40 || depth > 3) return;
  if (isNumber(value)) found.set(path, value);
  if (value === null || typeof value !== "object") return;
  for (const [name, each] of Object.entries(value)) {
    collect(each, path ? `${path}.${name}` : name, found, depth + 1);
  }
}

/** The payload in full, with a choice of forms. The chosen form stays when the payload changes. */
export class PayloadView {
  #form = null;
  #payload = null;
  #shown = "";

  constructor() {
    this.choices = make("div", {
      class: "choices",
      role: "group",
      "aria-label": "Show the payload as",
    });
    this.content = make("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" });
    this.note = make("p", { class: "muted note" });
    this.element = make("div", { class: "payload-box" }, this.choices, this.content, this.note);
  }

  #forms() {
    const payload = this.#payload;
    const forms = [];
    if (payload?.kind === "json") forms.push("JSON");
    if (payload?.kind === "number") forms.push("Number");
    else if (typeof payload?.text === "string" && payload.kind !== "empty") forms.push("Text");
    forms.push("Hex");
    return forms;
  }

  update(payload) {
    const key = JSON.stringify([payload, this.#form]);
    if (key === this.#shown) return;
    this.#shown = key;
    this.#payload = payload;
    const forms = this.#forms();
    const form = forms.includes(this.#form) ? this.#form : forms[0];
    const choose = (name) => () => {
      this.#form = name;
      this.update(this.#payload);
      this.choices.querySelector("[aria-pressed=true]")?.focus();
    };
    this.choices.replaceChildren(
      ...forms.map((name) => button(name, choose(name), { "aria-pressed": String(name === form) })),
    );
    this.content.className = `payload ${form.toLowerCase()}`;
    if (form === "JSON") this.content.replaceChildren(prettyJson(payload.text));
    else if (form === "Number")
      put(this.content, payload.text ?? exact(payload.number), { limit: 60 });
    else if (form === "Text") put(this.content, payload.text, { lines: true });
    else this.content.textContent = hexDump(payload?.hex) || "empty";
    this.#explain(form);
  }

  #explain(form) {
    const payload = this.#payload;
    const dumped = (payload?.hex?.length ?? 0) / 2;
    let sentence = "";
    if (form === "Hex" && payload?.size > dumped)
      sentence = `The first ${dumped} of ${bytes(payload.size)}.`;
    else if (form !== "Hex" && payload?.cut) sentence = `The first part of ${bytes(payload.size)}.`;
    this.note.textContent = sentence;
  }
}
