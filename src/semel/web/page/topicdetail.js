// The details of one topic: its last message, and its last hour as chart and table.

import { get } from "./api.js";
import { LineChart } from "./chart.js";
import { badge, copyButton, foreign, iconButton, make, setText } from "./dom.js";
import { numbersOf, PayloadView, putSummary } from "./payload.js";
import { VirtualTable } from "./virtualtable.js";
import {
  bytes,
  count,
  counted,
  duration,
  exact,
  isNumber,
  NONE,
  preciseTime,
  put,
  time,
} from "./text.js";

const COLUMNS = [
  { key: "at", title: "Received", width: "112px" },
  { key: "value", title: "Value" },
  { key: "qos", title: "QoS", width: "48px", align: "right" },
  { key: "client", title: "Client", width: "26%", priority: 2 },
];
// As many as the server gives for the last hour; live messages are added to them.
const MOST_ROWS = 500;

export class TopicDetail {
  #topic = null;
  #rows = [];
  #field = null;
  #request = null;
  #chart = null;

  constructor(context, close) {
    this.hasRecord = Boolean(context.session?.has_record);
    this.title = make("h2", { class: "foreign", tabindex: "-1" });
    this.badges = make("div", { class: "badges" });
    this.payload = new PayloadView();
    this.field = make("select", {
      "aria-label": "Number to chart",
      on: { change: () => this.#choose() },
    });
    this.chartBox = make("div", { class: "detail-chart" });
    this.note = make("p", { class: "muted note" });
    this.table = new VirtualTable({
      label: "The last hour of this topic",
      columns: COLUMNS,
      rowHeight: 26,
      keyOf: (row) => `${row.at} ${row.seq}`,
      fill: (cells, row) => this.#fill(cells, row),
      activate: (row) => this.#showOld(row),
    });
    const historyHead = make(
      "header",
      { class: "panel-head" },
      make("h3", { text: "The last hour" }),
      this.field,
    );
    this.history = make(
      "section",
      { class: "detail-history", "aria-label": "The last hour" },
      historyHead,
      this.chartBox,
      this.note,
      this.table.element,
    );
    this.element = make(
      "aside",
      { class: "detail panel", "aria-label": "Topic" },
      make(
        "header",
        { class: "panel-head" },
        this.title,
        copyButton(() => this.#topic ?? "", "Copy the topic"),
        iconButton("close", "Close", close),
      ),
      this.badges,
      this.payload.element,
      this.history,
    );
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && close());
  }

  destroy() {
    this.#request?.abort();
    this.#chart?.destroy();
    this.table.destroy();
  }

  /** Show a topic, or nothing if it is null. */
  show(topic, entry) {
    if (topic === this.#topic && topic !== null) return;
    this.#request?.abort();
    this.#topic = topic;
    this.#rows = [];
    this.#field = null;
    this.entry = null;
    this.retained = null;
    if (topic === null) return;
    put(this.title, topic, { limit: 1000 });
    this.badges.replaceChildren();
    this.payload.element.hidden = true;
    this.#showRows();
    if (entry) this.update(entry);
    this.#load(topic);
  }

  async #load(topic) {
    const request = new AbortController();
    this.#request = request;
    this.#loadRetained(topic, request.signal);
    if (!this.hasRecord) {
      setText(this.note, "No stream records messages. This table begins with the next message.");
      return;
    }
    setText(this.note, "Loading…");
    try {
      const answer = await get("history", { topic, minutes: 60 }, request.signal);
      const newest = this.#rows[0]?.at ?? -Infinity;
      const old = Array.isArray(answer.rows) ? answer.rows : [];
      // Live messages that came in the meantime are newer than the answer, or in it.
      const live = this.#rows.filter((row) => !old.length || row.at > old[0].at);
      this.#rows = [...live, ...old].slice(0, MOST_ROWS);
      const latest = answer.more ? "The latest " : "";
      const some = `${latest}${counted(old.length, "recorded message")}.`;
      setText(this.note, old.length ? some : "No recorded message in the last hour.");
      if (!this.entry && old.length && newest === -Infinity) this.#showMessage(old[0]);
      this.#showRows();
    } catch (error) {
      if (error.name !== "AbortError") setText(this.note, error.message);
    }
  }

  async #loadRetained(topic, signal) {
    try {
      const answer = await get("retained", { topic }, signal);
      this.retained = (answer.entries ?? []).find((each) => each.topic === topic) ?? false;
      this.#showBadges();
    } catch {
      // Whether a message is retained is not known then, and not shown.
    }
  }

  /** A new state of the topic from the live tree. */
  update(entry) {
    if (entry.topic !== this.#topic) return;
    const isNew = entry.last && entry.last.at !== this.entry?.last?.at;
    this.entry = entry;
    if (!entry.last) {
      this.#showBadges();
      return;
    }
    this.#showMessage(entry.last);
    if (isNew && entry.last.at > (this.#rows[0]?.at ?? -Infinity)) {
      this.#rows = [{ ...entry.last, seq: null, client: null }, ...this.#rows].slice(0, MOST_ROWS);
      this.#showRows();
    }
  }

  #showMessage(message) {
    this.message = message;
    this.payload.element.hidden = false;
    this.payload.update(message.payload);
    this.#showBadges();
  }

  #showOld(row) {
    this.payload.element.hidden = false;
    this.payload.update(row.payload);
  }

  #showBadges() {
    const list = [];
    const { message, entry } = this;
    if (message) {
      list.push(
        badge(message.payload?.kind ?? NONE),
        badge(bytes(message.payload?.size)),
        badge(`QoS ${message.qos ?? NONE}`),
      );
      if (message.retain) list.push(badge("retain flag", "accent"));
    }
    if (this.retained) {
      const { expires_seconds: seconds } = this.retained;
      const until = isNumber(seconds) ? `, expires in ${duration(seconds)}` : "";
      list.push(badge(`retained${until}`, "accent"));
    }
    if (message) list.push(badge(preciseTime(message.at)));
    if (entry?.children > 0) list.push(badge(`${count(entry.topics)} topics at and below`));
    this.badges.replaceChildren(...list);
  }

  #fill(cells, row) {
    setText(cells[0], time(row.at));
    putSummary(cells[1], row.payload);
    setText(cells[2], `${row.qos ?? NONE}${row.retain ? " R" : ""}`);
    if (row.client === null || row.client === undefined) setText(cells[3], NONE);
    else put(cells[3], row.client, { limit: 100 });
  }

  #choose() {
    this.#field = this.field.value;
    this.#showRows();
  }

  #showRows() {
    this.table.update(this.#rows);
    this.table.element.hidden = this.#rows.length === 0;
    // A field that only some messages have is offered, too; the latest say which there are.
    const names = new Set(
      this.#rows.slice(0, 20).flatMap((row) => [...numbersOf(row.payload).keys()]),
    );
    if (this.#field !== null && !names.has(this.#field)) this.#field = null;
    const name = this.#field ?? this.#likeliest(names);
    this.field.hidden = names.size < 2;
    const options = [...names].join("\n");
    if (this.field.dataset.options !== options) {
      this.field.dataset.options = options;
      this.field.replaceChildren(
        ...[...names].map((each) =>
          foreign(each || "payload", { tag: "option", value: each, limit: 80 }),
        ),
      );
    }
    if (name !== undefined) this.field.value = name;
    this.#showChart(name);
  }

  /** The number that the topic is about: the payload, its "value", or what is called as the topic.
   * The first one is often a counter. */
  #likeliest(names) {
    const level = this.#topic?.split("/").at(-1);
    return ["", "value", level].find((each) => names.has(each)) ?? names.values().next().value;
  }

  #showChart(name) {
    const points = [];
    if (name !== undefined) {
      for (const row of this.#rows) {
        const value = numbersOf(row.payload).get(name);
        if (isNumber(value) && isNumber(row.at)) points.push([row.at, value]);
      }
    }
    this.chartBox.hidden = points.length < 2;
    if (points.length < 2) return;
    points.reverse();
    const label = name || "value";
    if (this.#chart?.name !== label) {
      this.#chart?.destroy();
      this.#chart = new LineChart({
        title: "The last hour of this topic",
        series: [{ name: label }],
        format: exact,
        zero: false,
      });
      this.#chart.name = label;
      this.chartBox.replaceChildren(this.#chart.element);
    }
    this.#chart.update(
      points.map(([at]) => at),
      [points.map(([, value]) => value)],
    );
  }
}
