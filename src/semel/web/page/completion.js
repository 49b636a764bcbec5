// Completion of table names, column names and words of SQL, below the place where one types.

import { make } from "./dom.js";
import { put } from "./text.js";

const WORDS = (
  "select from where group by order having limit distinct count sum avg min max as and or " +
  "not null is in like ilike between case when then else end join left inner on using " +
  "union all with desc asc date_trunc now interval cast try_cast json_extract epoch round " +
  "coalesce"
).split(" ");
const MOST = 8;

export class Completion {
  #tables = [];
  #columns = new Map();
  #choices = [];
  #chosen = 0;
  #hasMoved = false;
  #start = 0;

  constructor(input) {
    this.input = input;
    this.element = make("ul", {
      class: "completion",
      role: "listbox",
      id: "completions",
      "aria-label": "Completions",
      hidden: true,
    });
    input.setAttribute("aria-autocomplete", "list");
    input.setAttribute("aria-controls", "completions");
    input.addEventListener("input", () => this.#suggest(2));
    // Before the box's own keys: an open list has the arrows, Tab and Escape.
    input.addEventListener("keydown", (event) => this.#key(event), { capture: true });
    input.addEventListener("blur", () => this.close());
    input.addEventListener("click", () => this.close());
    this.element.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const index = [...this.element.children].indexOf(event.target.closest("li"));
      if (index >= 0) this.#accept(index);
    });
  }

  setNames(tables) {
    this.#tables = tables.filter((each) => typeof each?.name === "string");
    this.#columns = new Map();
    for (const table of this.#tables) {
      for (const column of table.columns ?? []) {
        if (!this.#columns.has(column)) this.#columns.set(column, table.name);
      }
    }
  }

  close() {
    this.element.hidden = true;
    this.input.removeAttribute("aria-activedescendant");
  }

  #suggest(shortest) {
    const before = this.input.value.slice(0, this.input.selectionStart);
    const word = before.match(/[\p{L}_][\p{L}\p{N}_.]*$/u)?.[0] ?? "";
    if (word.length < shortest) return this.close();
    this.#start = before.length - word.length;
    this.#choices = this.#find(word, before.slice(0, this.#start));
    if (!this.#choices.length) return this.close();
    this.#chosen = 0;
    this.#hasMoved = false;
    this.#show();
    return undefined;
  }

  /** Candidates, the likeliest first: tables after FROM and JOIN, columns elsewhere. */
  #find(word, before) {
    const needle = word.toLowerCase();
    const isTable = /\b(from|join|into|describe)\s+$/i.test(before);
    const tables = this.#tables.map((table) => ({ text: table.name, note: table.kind ?? "table" }));
    const columns = [...this.#columns].map(([text, table]) => ({ text, note: table }));
    const words = WORDS.map((text) => ({ text, note: "" }));
    const all = isTable ? tables : [...columns, ...tables, ...words];
    const fits = all.filter(({ text }) => text.toLowerCase().startsWith(needle) && text !== word);
    return fits.slice(0, MOST);
  }

  #show() {
    this.element.replaceChildren(
      ...this.#choices.map(({ text, note }, index) => {
        const name = put(make("span", { class: "mono" }), text, { limit: 80 });
        const where = put(make("span", { class: "muted" }), note, { limit: 60 });
        return make(
          "li",
          {
            role: "option",
            id: `completion-${index}`,
            "aria-selected": String(index === this.#chosen),
          },
          name,
          where,
        );
      }),
    );
    const { x, y } = this.#caret();
    this.element.style.transform = `translate(${x}px, ${y}px)`;
    this.element.hidden = false;
    this.input.setAttribute("aria-activedescendant", `completion-${this.#chosen}`);
  }

  /** Where the word begins, in pixels: the box has a fixed font, so counting is enough. */
  #caret() {
    const lines = this.input.value.slice(0, this.#start).split("\n");
    const style = getComputedStyle(this.input);
    const height = parseFloat(style.lineHeight);
    const width = parseFloat(style.fontSize) * 0.602;
    const x = parseFloat(style.paddingLeft) + lines.at(-1).length * width - this.input.scrollLeft;
    const y = parseFloat(style.paddingTop) + lines.length * height - this.input.scrollTop + 2;
    return {
      x: Math.max(0, Math.min(x, this.input.clientWidth - 260)),
      y: Math.min(y, this.input.clientHeight),
    };
  }

  #key(event) {
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      this.#suggest(0);
      return;
    }
    if (this.element.hidden || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.#chosen = (this.#chosen + step + this.#choices.length) % this.#choices.length;
      this.#hasMoved = true;
      this.#show();
    } else if (event.key === "Escape") {
      this.close();
    } else if (event.key === "Tab" || (event.key === "Enter" && this.#hasMoved)) {
      // Enter alone means a new line unless one has chosen with the arrows.
      this.#accept(this.#chosen);
    } else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }

  #accept(index) {
    const { text } = this.#choices[index];
    const end = this.input.selectionStart;
    this.close();
    this.input.setRangeText(text, this.#start, end, "end");
    this.input.dispatchEvent(new Event("input"));
    this.close();
  }
}
