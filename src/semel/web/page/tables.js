// Tables: the tables of the lake, dead letters by reason, and the SQL box.

import { get } from "./api.js";
import { button, empty, foreign, make, panel } from "./dom.js";
import { barTable, plainTable } from "./plaintable.js";
import { SqlBox } from "./sql.js";
import { age, bytes, count, counted, isNumber, NONE, time } from "./text.js";

const INTERVAL = 5_000;

export function openTables(root, context) {
  const list = make("div", { class: "plain-box" }, empty("Loading…"));
  const letters = make("div", {}, empty("Loading…"));
  const sql = new SqlBox();
  const dead = panel("Dead letters", { class: "letters" }, letters);
  root.append(
    make("div", { class: "pair wide-left" }, panel("Tables of the lake", {}, list), dead),
    sql.element,
  );
  let timer = 0;
  let shown = "";

  async function load() {
    clearTimeout(timer);
    if (!document.hidden && context.live.state === "live") {
      try {
        const answer = await get("tables");
        const key = JSON.stringify([answer, Math.floor(Date.now() / 30_000)]);
        if (key !== shown) {
          shown = key;
          list.replaceChildren(tableList(answer.tables ?? [], sql, context.session));
          letters.replaceChildren(letterList(answer.dead_letters));
        }
      } catch (error) {
        shown = "";
        list.replaceChildren(empty(error.message));
        letters.replaceChildren(empty(NONE));
      }
    }
    timer = setTimeout(load, INTERVAL);
  }

  const ends = [
    context.live.on("visible", (isVisible) => isVisible && load()),
    context.live.on("state", (now) => now === "live" && load()),
  ];
  load();
  return {
    close() {
      ends.forEach((end) => end());
      clearTimeout(timer);
      sql.destroy();
    },
  };
}

function lagCell(table) {
  if (!Array.isArray(table.lag)) return make("td", { class: "right", text: NONE });
  const rows = table.lag.reduce((sum, each) => sum + (isNumber(each.rows) ? each.rows : 0), 0);
  const cell = make(
    "td",
    { class: `right ${rows > 0 ? "lagging" : ""}` },
    rows === 0 ? "none" : counted(rows, "row"),
  );
  const nodes = table.lag
    .filter((each) => each.rows > 0)
    .map((each) => `${each.node}: ${count(each.rows)}`);
  if (table.lag.length > 1 && nodes.length)
    cell.append(foreign(nodes.join(", "), { tag: "div", class: "muted", limit: 120 }));
  return cell;
}

function tableList(tables, sql, session) {
  if (!tables.length) {
    return empty(
      session?.has_lake === false ? "There is no lake here." : "The lake has no tables yet.",
    );
  }
  const titles = [
    ["Table"],
    ["Rows", "right"],
    ["Size", "right priority-2"],
    ["Files", "right priority-3"],
    ["Version", "right priority-3"],
    ["Stream", "priority-2"],
    ["Last commit", "right priority-2"],
    ["Lag", "right"],
  ];
  const rows = tables.map((table) => {
    const name = button("", () => sql.run(`select * from ${quoted(table.table)} limit 100`), {
      class: "link",
      title: "Show its rows",
    });
    name.append(foreign(table.table));
    const first = make("th", { scope: "row" }, name);
    if (table.problem) first.append(foreign(table.problem, { tag: "div", class: "problem" }));
    const commit = make("td", {
      class: "right priority-2",
      title: time(table.modified),
      text: age(table.modified),
    });
    return make(
      "tr",
      {},
      first,
      make("td", { class: "right number", text: count(table.rows) }),
      make("td", { class: "right number priority-2", text: bytes(table.bytes) }),
      make("td", { class: "right number priority-3", text: count(table.files) }),
      make("td", { class: "right number priority-3", text: count(table.version) }),
      make("td", { class: "priority-2" }, foreign(table.stream ?? NONE)),
      commit,
      lagCell(table),
    );
  });
  return plainTable("Tables of the lake", titles, rows);
}

/** A table's name as SQL needs it. */
export function quoted(name) {
  const text = String(name);
  return /^[a-z_][a-z0-9_]*$/i.test(text) ? text : `"${text.replaceAll('"', '""')}"`;
}

function letterList(letters) {
  if (!Array.isArray(letters)) return empty("No table has dead letters.");
  if (!letters.length) return empty("None: every message was decoded.");
  const entries = letters.map((each) => {
    const place = [each.table_name, each.column_name].filter(Boolean).join(", column ");
    const note = place ? foreign(place, { tag: "div", class: "muted" }) : null;
    return { value: each.count, name: foreign(each.reason), note };
  });
  return barTable("Dead letters by reason", ["Reason", "Messages"], entries, { limit: 50 });
}
