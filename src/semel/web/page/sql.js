// The SQL box: a query with completion and history, and its result.

import { download, get, post } from "./api.js";
import { Completion } from "./completion.js";
import { button, foreign, make, notice, panel, setText } from "./dom.js";
import { Result } from "./result.js";
import { count, counted, decimal, visible } from "./text.js";

const HISTORY_KEY = "semel-sql-history";
const MOST_QUERIES = 50;

function readHistory() {
  try {
    const list = JSON.parse(localStorage.getItem(HISTORY_KEY) ?? "[]");
    return Array.isArray(list) ? list.filter((each) => typeof each === "string") : [];
  } catch {
    return [];
  }
}

function writeHistory(list) {
  try {
    localStorage.setItem(HISTORY_KEY, JSON.stringify(list));
  } catch {
    // A browser without storage has no history; the query still runs.
  }
}

// What was typed stays when another view is opened and this one again.
let draft =
  "select topic, count(*) as messages\nfrom messages_now\n" +
  "group by topic\norder by messages desc\nlimit 20";

export class SqlBox {
  #request = null;
  #history = readHistory();
  #place = -1;

  constructor() {
    this.input = make("textarea", {
      id: "sql",
      rows: "5",
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      "aria-describedby": "sql-note",
    });
    this.input.value = draft;
    this.runButton = button("Run", () => this.run(), {
      class: "primary",
      icon: "play",
      title: "Ctrl+Enter",
    });
    this.status = make("span", { class: "muted", role: "status" });
    this.past = make("select", {
      "aria-label": "Earlier queries",
      class: "history",
      on: { change: () => this.#recall() },
    });
    this.exports = ["csv", "parquet"].map((format) =>
      button(format === "csv" ? "CSV" : "Parquet", () => this.#export(format), {
        icon: "download",
        disabled: true,
        "aria-label": `Export as ${format === "csv" ? "CSV" : "Parquet"}`,
      }),
    );
    this.result = new Result();
    this.completion = new Completion(this.input);
    const hint = make("span", {
      id: "sql-note",
      class: "muted hint",
      text: "Ctrl+Enter runs. Ctrl+Space completes. Alt+↑ and Alt+↓ recall.",
    });
    this.element = panel(
      "SQL",
      { class: "sql", tools: [this.past] },
      make(
        "div",
        { class: "sql-input" },
        make("label", { for: "sql", class: "for-screen-readers", text: "Query" }),
        this.input,
        this.completion.element,
      ),
      make(
        "div",
        { class: "tools" },
        this.runButton,
        hint,
        this.status,
        make("span", { class: "spring" }),
        ...this.exports,
      ),
      this.result.element,
    );
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.input.addEventListener("input", () => {
      draft = this.input.value;
      this.#place = -1;
    });
    this.#showHistory();
    get("names").then(
      (answer) => this.completion.setNames(answer.tables ?? []),
      () => {},
    );
  }

  destroy() {
    this.#request?.abort();
    this.result.destroy();
  }

  #key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.run();
    } else if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      const next = this.#place + (event.key === "ArrowUp" ? 1 : -1);
      if (next < 0 || next >= this.#history.length) return;
      this.#place = next;
      this.#write(this.#history[next]);
    }
  }

  #write(query) {
    this.input.value = query;
    draft = query;
  }

  #recall() {
    const query = this.#history[Number(this.past.value)];
    if (query !== undefined) this.#write(query);
    this.past.value = "";
    this.input.focus();
  }

  #showHistory() {
    const options = this.#history.map((query, index) => {
      const line = visible(query.replace(/\s+/g, " "), 80);
      return make("option", { value: String(index), text: line });
    });
    this.past.replaceChildren(make("option", { value: "", text: "Earlier queries" }), ...options);
    this.past.disabled = options.length === 0;
  }

  #remember(query) {
    this.#history = [query, ...this.#history.filter((each) => each !== query)].slice(
      0,
      MOST_QUERIES,
    );
    this.#place = -1;
    writeHistory(this.#history);
    this.#showHistory();
  }

  async run(query = null) {
    if (query !== null) this.#write(query);
    const text = this.input.value.trim();
    if (!text) return;
    this.completion.close();
    this.#request?.abort();
    const request = new AbortController();
    this.#request = request;
    this.#remember(text);
    setText(this.status, "Running…");
    this.element.setAttribute("aria-busy", "true");
    try {
      const answer = await post("sql", { query: text }, request.signal);
      this.ran = text;
      this.#show(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      setText(this.status, "");
      this.result.fail(error.message);
      for (const each of this.exports) each.disabled = true;
    }
    this.element.removeAttribute("aria-busy");
  }

  #show(answer) {
    const rows = Array.isArray(answer.rows) ? answer.rows : [];
    const part = answer.more ? `The first ${count(rows.length)} rows` : counted(rows.length, "row");
    setText(this.status, `${part} in ${decimal(answer.seconds)} s`);
    this.result.show(Array.isArray(answer.columns) ? answer.columns : [], rows, answer.notes ?? []);
    for (const each of this.exports) each.disabled = false;
  }

  async #export(format) {
    try {
      await download("export", { query: this.ran, format }, `semel.${format}`);
    } catch (error) {
      notice(error.message, "error");
    }
  }
}
