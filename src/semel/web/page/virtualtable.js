// A table of any length that keeps only its visible rows in the document.
//
// All rows have one height, so that the place of each is known without measuring. Two spacer rows
// stand for what is above and below. The table itself has the focus and names its active row by
// aria-activedescendant: rows may come and go without losing the focus.

import { make } from "./dom.js";
import { count } from "./text.js";

const SPARE = 6;
let tables = 0;

export class VirtualTable {
  #items = [];
  #rows = [];
  #first = 0;
  #active = -1;
  #frame = 0;
  #id = `table-${(tables += 1)}`;

  /** `columns`: [{key, title, width?, align?, sortable?, priority?, isHeader?}].
   * `fill(cells, item, row, index)` writes an item into its cells.
   * `activate(item)` is called on a click, Enter or Space. `press(event, item)` may handle a key
   * first and returns whether it did. `sort(key)` is called when a header is chosen. */
  constructor({
    label,
    columns,
    fill,
    keyOf,
    role = "grid",
    rowHeight = 30,
    activate = null,
    press = null,
    sort = null,
    moved = null,
  }) {
    Object.assign(this, { columns, fill, keyOf, rowHeight, activate, press, sort, moved });
    this.headers = columns.map((column) => this.#header(column));
    const width = (column) => {
      const col = make("col", { class: `priority-${column.priority ?? 1}` });
      if (column.width) col.style.width = column.width;
      return col;
    };
    this.above = make("tr", { class: "spacer", "aria-hidden": "true" }, make("td"));
    this.below = make("tr", { class: "spacer", "aria-hidden": "true" }, make("td"));
    this.body = make("tbody", {}, this.above, this.below);
    this.table = make(
      "table",
      { class: "virtual", role, tabindex: "0", "aria-label": label, "aria-rowcount": "1" },
      make("colgroup", {}, ...columns.map(width)),
      make("thead", {}, make("tr", { "aria-rowindex": "1" }, ...this.headers)),
      this.body,
    );
    this.element = make("div", { class: "scroller" }, this.table);
    this.element.addEventListener("scroll", () => this.#soon(), { passive: true });
    this.table.addEventListener("keydown", (event) => this.#key(event));
    this.table.addEventListener("focus", () => this.#active < 0 && this.#move(0));
    this.body.addEventListener("click", (event) => this.#click(event));
    this.sizes = new ResizeObserver(() => this.#soon());
    this.sizes.observe(this.element);
  }

  destroy() {
    this.sizes.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  #header(column) {
    const style = `priority-${column.priority ?? 1} ${column.align ?? ""}`.trim();
    const head = make("th", { scope: "col", class: style });
    if (!column.sortable) {
      head.append(column.title);
      return head;
    }
    const press = () => this.sort(column.key);
    head.append(
      make("button", { type: "button", class: "sort", on: { click: press } }, column.title),
    );
    return head;
  }

  /** Show by which column the items are sorted. */
  markSorted(key, isDescending) {
    this.columns.forEach((column, index) => {
      const head = this.headers[index];
      if (column.key === key)
        head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  /** Replace the items. The active one stays active wherever it is now. */
  update(items) {
    const before = this.active;
    this.#items = items;
    if (before !== undefined) {
      const key = this.keyOf(before);
      const same = this.#items[this.#active];
      if (same === undefined || this.keyOf(same) !== key) {
        this.#active = items.findIndex((item) => this.keyOf(item) === key);
      }
    } else {
      this.#active = -1;
    }
    this.table.setAttribute("aria-rowcount", String(items.length + 1));
    this.#soon();
  }

  get active() {
    return this.#items[this.#active];
  }

  /** First and last index of the rows that are in the document. */
  get range() {
    return [this.#first, this.#first + this.#rows.length];
  }

  activateKey(key) {
    this.#active = this.#items.findIndex((item) => this.keyOf(item) === key);
    if (this.#active < 0) return;
    // The spacers first: there is nothing to scroll to before they have their height.
    this.#show();
    const box = this.element;
    const top = this.#active * this.rowHeight;
    const isSeen =
      top >= box.scrollTop && top + 2 * this.rowHeight <= box.scrollTop + box.clientHeight;
    if (!isSeen) box.scrollTop = top - box.clientHeight / 2;
    this.#soon();
  }

  refresh() {
    this.#soon();
  }

  #soon() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      if (this.element.isConnected) this.#show();
    });
  }

  #show() {
    const height = this.element.clientHeight;
    const top = this.element.scrollTop;
    const fits = Math.ceil(height / this.rowHeight) + 2 * SPARE;
    const total = this.#items.length;
    const first = Math.max(0, Math.min(Math.floor(top / this.rowHeight) - SPARE, total - fits));
    const wanted = Math.min(fits, total - first);
    while (this.#rows.length < wanted) this.#rows.push(this.#makeRow());
    while (this.#rows.length > wanted) this.#rows.pop().row.remove();
    this.#first = first;
    this.above.style.height = `${first * this.rowHeight}px`;
    this.below.style.height = `${Math.max(0, total - first - wanted) * this.rowHeight}px`;
    this.#rows.forEach(({ row, cells }, offset) => {
      const index = first + offset;
      const item = this.#items[index];
      row.id = `${this.#id}-${index}`;
      row.setAttribute("aria-rowindex", String(index + 2));
      row.classList.toggle("active", index === this.#active);
      row.setAttribute("aria-selected", String(index === this.#active));
      row.classList.toggle("odd", index % 2 === 1);
      this.fill(cells, item, row, index);
    });
    const isShown = this.#active >= first && this.#active < first + wanted;
    if (isShown) this.table.setAttribute("aria-activedescendant", `${this.#id}-${this.#active}`);
    else this.table.removeAttribute("aria-activedescendant");
    this.moved?.();
  }

  #makeRow() {
    const cells = this.columns.map((column) =>
      make(column.isHeader ? "th" : "td", {
        scope: column.isHeader ? "row" : null,
        class: `priority-${column.priority ?? 1} ${column.align ?? ""}`.trim(),
      }),
    );
    const row = make("tr", {}, ...cells);
    row.style.height = `${this.rowHeight}px`;
    this.below.before(row);
    return { row, cells };
  }

  #click(event) {
    const row = event.target.closest("tr");
    const offset = this.#rows.findIndex((each) => each.row === row);
    if (offset < 0) return;
    this.#active = this.#first + offset;
    this.activate?.(this.active, event);
    this.#soon();
  }

  #key(event) {
    if (event.target !== this.table || event.ctrlKey || event.altKey || event.metaKey) return;
    if (this.active !== undefined && this.press?.(event, this.active)) {
      event.preventDefault();
      return;
    }
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 2);
    const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page };
    if (event.key in steps) this.#move(this.#active + steps[event.key]);
    else if (event.key === "Home") this.#move(0);
    else if (event.key === "End") this.#move(this.#items.length - 1);
    else if ((event.key === "Enter" || event.key === " ") && this.active !== undefined) {
      this.activate?.(this.active, event);
    } else return;
    event.preventDefault();
  }

  #move(index) {
    if (!this.#items.length) return;
    this.#active = Math.max(0, Math.min(this.#items.length - 1, index));
    this.#reveal();
    // At once: a screen reader reads the active row as soon as the key is handled.
    this.#show();
  }

  #reveal() {
    const head = this.table.tHead.offsetHeight;
    const top = this.#active * this.rowHeight;
    const box = this.element;
    if (top < box.scrollTop) box.scrollTop = top;
    const bottom = top + this.rowHeight + head;
    if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight;
  }
}

/** "120 of 1,000 clients" above a filtered table. */
export function shownOf(shown, total, noun) {
  return shown === total ? `${count(total)} ${noun}` : `${count(shown)} of ${count(total)} ${noun}`;
}
