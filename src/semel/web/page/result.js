// The result of a query: a table, and a chart where the columns allow one.
//
// A time or a number beside numbers makes lines; a text beside a number makes bars. What fits the
// columns best is shown first, and the user may switch.

import { Legend, LineChart } from "./chart.js";
import { button, foreign, make, setText } from "./dom.js";
import { VirtualTable } from "./virtualtable.js";
import { decimal, exact, isNumber, put } from "./text.js";

const MOST_BARS = 40;
const MOST_LINES = 6;

/** Which charts the columns allow: {line: {x, ys}, bar: {label, value}}, the better one first. */
export function chartsFor(columns, rows) {
  const found = {};
  if (rows.length < 2) return found;
  const numbers = indexes(columns, "number");
  const times = indexes(columns, "time");
  const texts = [...indexes(columns, "text"), ...indexes(columns, "boolean")];
  const bar = texts.length && numbers.length ? { label: texts[0], value: numbers[0] } : null;
  if (times.length && numbers.length)
    found.line = { x: times[0], ys: numbers.slice(0, MOST_LINES) };
  if (bar) found.bar = bar;
  if (!found.line && numbers.length > 1)
    found.line = { x: numbers[0], ys: numbers.slice(1, MOST_LINES + 1) };
  if (!bar && times.length && numbers.length) found.bar = { label: times[0], value: numbers[0] };
  // Many rows per label (raw messages) are no bar chart that anybody wants to see first.
  return found;
}

function indexes(columns, type) {
  return columns.flatMap((column, index) => (column?.type === type ? [index] : []));
}

/** The form to begin with. */
export function bestForm(columns, rows) {
  const charts = chartsFor(columns, rows);
  const isRaw = columns.length > 4 || columns.some((column) => column?.type === "other");
  if (isRaw) return "Table";
  if (charts.line && indexes(columns, "time").length) return "Line";
  if (charts.bar && rows.length <= MOST_BARS) return "Bars";
  return "Table";
}

function seconds(value) {
  if (isNumber(value)) return value;
  const at = Date.parse(value);
  return Number.isNaN(at) ? null : at / 1000;
}

export class Result {
  #chart = null;
  #table = null;

  constructor() {
    this.choices = make("div", {
      class: "choices",
      role: "group",
      "aria-label": "Show the result as",
      hidden: true,
    });
    this.notes = make("div", { class: "notes" });
    this.content = make("div", { class: "result-content" });
    this.element = make("div", { class: "result" }, this.notes, this.choices, this.content);
  }

  destroy() {
    this.#chart?.destroy();
    this.#table?.destroy();
    this.#chart = null;
    this.#table = null;
  }

  fail(sentence) {
    this.destroy();
    this.choices.hidden = true;
    this.notes.replaceChildren();
    this.content.replaceChildren(
      foreign(sentence, { tag: "pre", class: "problem", limit: 4000, role: "alert" }),
    );
  }

  show(columns, rows, notes) {
    this.columns = columns;
    this.rows = rows;
    this.notes.replaceChildren(
      ...notes.map((each) => foreign(each, { tag: "p", class: "muted", limit: 600 })),
    );
    this.charts = chartsFor(columns, rows);
    this.forms = [
      "Table",
      ...(this.charts.line ? ["Line"] : []),
      ...(this.charts.bar ? ["Bars"] : []),
    ];
    this.#showForm(bestForm(columns, rows));
  }

  #showForm(form) {
    this.destroy();
    this.choices.hidden = this.forms.length < 2;
    this.choices.replaceChildren(
      ...this.forms.map((name) =>
        button(
          name,
          () => {
            this.#showForm(name);
            this.choices.querySelector("[aria-pressed=true]").focus();
          },
          { "aria-pressed": String(name === form) },
        ),
      ),
    );
    if (form === "Line") this.#showLine();
    else if (form === "Bars") this.#showBars();
    else this.#showTable();
  }

  #showTable() {
    const columns = this.columns.map((column, index) => ({
      key: String(index),
      title: foreign(column?.name ?? "", { limit: 60 }),
      align: column?.type === "number" ? "right" : "",
      width: column?.type === "number" ? "120px" : null,
    }));
    this.#table = new VirtualTable({
      label: "Result",
      columns,
      rowHeight: 28,
      keyOf: (row) => row,
      fill(cells, row) {
        cells.forEach((cell, index) => {
          const value = row[index];
          cell.classList.toggle("null", value === null || value === undefined);
          if (value === null || value === undefined) setText(cell, "null");
          else if (typeof value === "object") put(cell, JSON.stringify(value), { limit: 300 });
          else put(cell, String(value), { limit: 300 });
        });
      },
    });
    this.#table.element.classList.add("result-table");
    this.#table.table.style.minWidth = `${Math.max(1, columns.length) * 110}px`;
    this.#table.element.style.height = `${Math.min(420, 36 + (this.rows.length + 1) * 28)}px`;
    this.content.replaceChildren(this.#table.element);
    this.#table.update(this.rows);
  }

  #showLine() {
    const { x, ys } = this.charts.line;
    const isTime = this.columns[x].type === "time";
    const points = this.rows
      .map((row) => [isTime ? seconds(row[x]) : row[x], row])
      .filter(([at]) => isNumber(at))
      .sort((a, b) => a[0] - b[0]);
    const series = ys.map((index) => ({ name: this.columns[index].name }));
    this.#chart = new LineChart({
      title: "Result of the query",
      series,
      format: exact,
      axisFormat: decimal,
      xKind: isTime ? "time" : "number",
      zero: false,
      fill: series.length === 1,
    });
    this.#chart.element.classList.add("tall");
    const legend = new Legend(series);
    legend.update(series.map(() => ""));
    this.content.replaceChildren(
      ...(series.length > 1 ? [legend.element] : []),
      this.#chart.element,
    );
    this.#chart.update(
      points.map(([at]) => at),
      ys.map((index) => points.map(([, row]) => row[index])),
    );
  }

  #showBars() {
    const { label, value } = this.charts.bar;
    const shown = this.rows.slice(0, MOST_BARS);
    const most = Math.max(...shown.map((row) => Math.abs(row[value] ?? 0)), 1e-12);
    const rows = shown.map((row) => {
      const bar = make("i", { class: "bar" });
      bar.style.width = `${(Math.abs(row[value] ?? 0) / most) * 100}%`;
      bar.classList.toggle("bad", row[value] < 0);
      return make(
        "tr",
        {},
        make("th", { scope: "row" }, foreign(row[label], { limit: 120 })),
        make("td", { class: "bar-cell" }, bar),
        make("td", { class: "right number", text: exact(row[value]) }),
      );
    });
    const head = make(
      "tr",
      {},
      make("th", { scope: "col" }, foreign(this.columns[label].name)),
      make("td"),
      make("th", { scope: "col", class: "right" }, foreign(this.columns[value].name)),
    );
    const parts = [
      make("table", { class: "bar-chart" }, make("thead", {}, head), make("tbody", {}, ...rows)),
    ];
    if (this.rows.length > MOST_BARS)
      parts.push(make("p", { class: "muted note", text: `The first ${MOST_BARS} rows.` }));
    this.content.replaceChildren(...parts);
  }
}
