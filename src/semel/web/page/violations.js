// Violations: which rules clients have broken, how often, and what to do about it.

import { get } from "./api.js";
import { badge, empty, foreign, make, panel } from "./dom.js";
import { barTable } from "./plaintable.js";
import { count, duration, hexDump, isNumber, NONE } from "./text.js";

const INTERVAL = 5_000;

export function openViolations(root, context) {
  const rules = make("div", {}, empty("Loading…"));
  const recent = make("div", { class: "violations" }, empty("Loading…"));
  const count_ = make("span", { class: "muted", role: "status" });
  root.append(
    make(
      "div",
      { class: "pair narrow-left" },
      panel("By rule", {}, rules),
      panel("By client, latest first", { tools: [count_] }, recent),
    ),
  );
  let timer = 0;
  let chosen = null;
  let answer = null;
  // Which entries are open, by what identifies them: the list is made again when it changes.
  const opened = new Set();
  let shown = "";

  async function load() {
    clearTimeout(timer);
    if (!document.hidden && context.live.state === "live") {
      try {
        answer = await get("violations");
        show();
      } catch (error) {
        shown = "";
        rules.replaceChildren(empty(error.message));
        recent.replaceChildren();
      }
    }
    timer = setTimeout(load, INTERVAL);
  }

  function choose(rule) {
    chosen = chosen === rule ? null : rule;
    shown = "";
    show();
    rules.querySelector("[aria-pressed=true]")?.focus();
  }

  function show() {
    const list = (answer.recent ?? []).filter((each) => chosen === null || each.rule === chosen);
    const key = JSON.stringify([answer.rules, list.map((each) => ({ ...each, seconds_ago: 0 }))]);
    if (key === shown) {
      // Only the ages have changed: what is open or has the focus stays.
      list.forEach((each, index) => {
        const cell = recent.children[index]?.querySelector(".ago");
        if (cell) cell.textContent = ago(each);
      });
      return;
    }
    shown = key;
    rules.replaceChildren(ruleList(answer.rules ?? [], chosen, choose));
    if (!list.length)
      recent.replaceChildren(empty("No violation was seen. Every client keeps the rules."));
    else recent.replaceChildren(...list.map((each) => entry(each, opened)));
    count_.textContent = chosen === null ? "" : `only ${chosen}`;
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
    },
  };
}

function ago(each) {
  return isNumber(each.seconds_ago) ? `${duration(each.seconds_ago)} ago` : NONE;
}

function ruleList(rules, chosen, choose) {
  if (!rules.length) return empty("No rule was broken.");
  const entries = rules.map((each) => {
    const press = make(
      "button",
      {
        type: "button",
        class: "link mono",
        "aria-pressed": String(each.rule === chosen),
        title: "Show only this rule",
        on: { click: () => choose(each.rule) },
      },
      foreign(each.rule),
    );
    const note = foreign(each.sentence, { tag: "div", class: "muted" });
    return { value: each.total, name: press, note };
  });
  return barTable("Violations by rule", ["Rule", "Total"], entries);
}

/** One violation: a line that opens to its evidence. */
function entry(each, opened) {
  const key = JSON.stringify([each.rule, each.client, each.address, each.packet, each.bytes]);
  const client = make("a", {
    class: "foreign",
    href: `#/clients/${encodeURIComponent(String(each.client ?? "").toWellFormed())}`,
  });
  client.append(foreign(each.client ?? NONE, { limit: 80 }));
  const line = make(
    "summary",
    {},
    make("span", { class: "violation-rule" }, foreign(each.rule, { class: "mono" })),
    badge(`× ${count(each.count)}`),
    foreign(each.client ?? NONE, { class: "violation-client", limit: 80 }),
    make("span", { class: "ago muted", text: ago(each) }),
  );
  const statements = Array.isArray(each.statements) ? each.statements : [];
  const dump = make("pre", {
    class: "payload hex",
    tabindex: "0",
    "aria-label": "Bytes",
    text: hexDump(each.bytes) || NONE,
  });
  const body = make(
    "div",
    { class: "violation-body" },
    make("p", { class: "violation-sentence" }, foreign(each.sentence, { limit: 1000 })),
    make("p", {}, ...statements.map((text) => badge(text, "accent"))),
    make(
      "dl",
      { class: "facts" },
      make("dt", { text: "Seen" }),
      make("dd", {}, foreign(each.seen ?? NONE, { limit: 1000 })),
      make("dt", { text: "Packet" }),
      make("dd", { text: `${each.packet ?? NONE}, MQTT ${each.version ?? NONE}` }),
      make("dt", { text: "Client" }),
      make("dd", {}, each.client ? client : NONE),
      make("dt", { text: "User" }),
      make("dd", {}, foreign(each.user ?? NONE)),
      make("dt", { text: "Address" }),
      make("dd", {}, foreign(each.address ?? NONE)),
    ),
    make("h3", { text: "Bytes" }),
    dump,
    make("h3", { text: "What to do" }),
    make("p", {}, foreign(each.advice ?? NONE, { limit: 2000 })),
  );
  const element = make("details", { open: opened.has(key) }, line, body);
  element.addEventListener("toggle", () => (element.open ? opened.add(key) : opened.delete(key)));
  return element;
}
