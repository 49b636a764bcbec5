// Tables that show all of their rows, and those that compare their rows by bars.

import { make } from "./dom.js";
import { count } from "./text.js";

/** A table. A title is [text, class]; the caption is for screen readers. */
export function plainTable(caption, titles, rows, style = "plain") {
  const head = titles.map(([text, place]) =>
    make("th", { scope: "col", class: place ?? null, text }),
  );
  return make(
    "table",
    { class: style },
    make("caption", { class: "for-screen-readers", text: caption }),
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...rows),
  );
}

/** Entries with a bar each, the largest first. An entry is {value, name, note}, of elements. */
export function barTable(caption, [name, number], entries, { kind = "bad", limit = 500 } = {}) {
  const sorted = [...entries].sort((a, b) => (b.value ?? 0) - (a.value ?? 0)).slice(0, limit);
  const most = Math.max(1, sorted[0]?.value ?? 1);
  const rows = sorted.map((each) => {
    const bar = make("i", { class: `bar ${kind}`.trim() });
    bar.style.width = `${Math.max(1, ((each.value ?? 0) / most) * 100)}%`;
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, each.name, bar, each.note),
      make("td", { class: "right number", text: count(each.value) }),
    );
  });
  return plainTable(caption, [[name], [number, "right"]], rows, "bars");
}
