// Now: what runs and how it is, the way of a message, and the last five minutes as charts.

import { Legend, LineChart } from "./chart.js";
import { empty, foreign, make, panel, setText } from "./dom.js";
import { Flow } from "./flow.js";
import { barTable } from "./plaintable.js";
import {
  byteRate,
  bytes,
  count,
  decimal,
  isNumber,
  milliseconds,
  NONE,
  percent,
  rate,
  short,
} from "./text.js";

const STATES = {
  ready: ["ok", "ready"],
  starting: ["warn", "starting"],
  waiting: ["warn", "waiting"],
  stopped: ["bad", "stopped"],
};
const CONDITIONS = {
  open: ["ok", "open"],
  behind: ["warn", "behind: publishers are paused until it catches up"],
  full: ["bad", "full: free disk space"],
  failed: ["bad", "failed: see the broker's log"],
};

const CHARTS = [
  {
    title: "Messages per second",
    format: decimal,
    axis: short,
    series: [
      ["in", "received_rate"],
      ["out", "sent_rate"],
    ],
  },
  {
    title: "Bytes per second",
    format: byteRate,
    axis: bytes,
    series: [
      ["in", "received_bytes_rate"],
      ["out", "sent_bytes_rate"],
    ],
  },
  {
    title: "Latency",
    format: milliseconds,
    axis: milliseconds,
    series: [
      ["commit", "commit_ms"],
      ["loop lag", "loop_lag_ms"],
    ],
  },
  {
    title: "Clients",
    format: count,
    axis: short,
    series: [
      ["clients", "clients"],
      ["connections", "connections"],
    ],
  },
  {
    title: "Queues",
    format: count,
    axis: short,
    series: [
      ["queued", "queued_messages"],
      ["in flight", "inflight_messages"],
      ["paused", "paused_publishers"],
    ],
  },
  { title: "Processor", format: percent, axis: percent, series: [["of one core", "cpu"]] },
];

const FIGURES = [
  ["Clients", (s) => count(s.clients), (s) => `${count(s.connections)} connections`],
  ["Sessions", (s) => count(s.sessions), (s) => `${count(s.subscriptions)} subscriptions`],
  ["Retained", (s) => count(s.retained), () => "messages"],
  ["Queued", (s) => count(s.queued_messages), (s) => `${count(s.inflight_messages)} in flight`],
  ["Dropped", (s) => count(total(s.dropped)), (s) => rate(s.dropped_rate)],
  ["Violations", (s) => count(s.violations_total), () => "by rule and client", "#/violations"],
  ["Commit", (s) => milliseconds(s.commit_ms), (s) => `loop lag ${milliseconds(s.loop_lag_ms)}`],
  ["CPU", (s) => percent(s.cpu), () => "of one core"],
];

function total(dropped) {
  if (!dropped || typeof dropped !== "object") return null;
  return Object.values(dropped).reduce((sum, each) => sum + (isNumber(each) ? each : 0), 0);
}

function valueOf(sample, key) {
  return isNumber(sample[key]) ? sample[key] : null;
}

/** A part of semel with its state, for example "broker: ready". */
function part(each) {
  const [kind, word] = STATES[each?.state] ?? ["none", "unknown"];
  const children = [
    make("i", { class: `lamp ${kind}` }),
    make("b", { text: each?.name ?? NONE }),
    ` ${word}`,
  ];
  if (each?.text) children.push(foreign(each.text, { tag: "span", class: "muted", limit: 200 }));
  return make("li", {}, ...children);
}

export function openNow(root, { live }) {
  const parts = make("ul", { class: "parts", "aria-label": "Parts of semel" });
  const stream = make("span", { class: "muted" });
  const flow = new Flow();
  const figures = FIGURES.map(([name, main, side, link]) => {
    const value = make(link ? "a" : "dd", { class: "figure-value", href: link ?? null });
    const note = make("dd", { class: "figure-note" });
    const shown = link ? make("dd", { class: "figure-link" }, value) : value;
    return {
      main,
      side,
      value,
      note,
      element: make("div", { class: "figure" }, make("dt", { text: name }), shown, note),
    };
  });
  const charts = CHARTS.map(({ title, format, axis, series }) => {
    const names = series.map(([name]) => ({ name }));
    const chart = new LineChart({
      title: `${title}, last 5 minutes`,
      series: names,
      format,
      axisFormat: axis,
      span: 300,
    });
    const legend = new Legend(names);
    const section = panel(
      title,
      { class: "chart-panel", level: 3, tools: [legend.element] },
      chart.element,
    );
    return { chart, legend, series, format, section };
  });
  const drops = new Drops();
  const resources = new Resources();
  root.append(
    panel("The way of a message", { class: "flow-panel", tools: [stream, parts] }, flow.element),
    make("dl", { class: "figures", "aria-label": "Key figures" }, ...figures.map((f) => f.element)),
    make(
      "section",
      { class: "charts", "aria-label": "The last five minutes" },
      make("h2", { class: "for-screen-readers", text: "The last five minutes" }),
      ...charts.map((c) => c.section),
    ),
    make("div", { class: "pair" }, resources.element, drops.element),
  );

  function show() {
    const { samples } = live;
    const sample = samples.at(-1);
    if (!sample) return;
    const list = Array.isArray(sample.parts) ? sample.parts : [];
    const key = JSON.stringify(list);
    if (parts.dataset.key !== key) {
      parts.dataset.key = key;
      parts.replaceChildren(...list.map(part));
    }
    setText(stream, sample.flow?.stream ? `stream ${sample.flow.stream}` : "no stream is recorded");
    flow.update(samples);
    for (const each of figures) {
      setText(each.value, each.main(sample));
      setText(each.note, each.side(sample));
    }
    const times = samples.map((each) => each.at);
    for (const { chart, legend, series, format } of charts) {
      const columns = series.map(([, name]) => samples.map((each) => valueOf(each, name)));
      chart.update(times, columns);
      legend.update(columns.map((values) => format(values.at(-1))));
    }
    drops.update(sample, samples);
    resources.update(sample, samples);
  }

  // A hidden tab draws nothing; it catches up when it is shown.
  const ends = [
    live.on("now", () => document.hidden || show()),
    live.on("hello", show),
    live.on("visible", (isVisible) => isVisible && show()),
  ];
  show();
  return {
    close() {
      ends.forEach((end) => end());
      charts.forEach(({ chart }) => chart.destroy());
      flow.destroy();
      drops.destroy();
      resources.destroy();
    },
  };
}

/** Drops by reason, the largest first, each with a bar. */
class Drops {
  constructor() {
    this.content = make("div", {}, empty("No message was dropped."));
    this.chart = new LineChart({
      title: "Drops per second, last 5 minutes",
      series: [{ name: "drops per second", color: "--series-3" }],
      span: 300,
    });
    this.element = panel("Dropped by reason", {}, this.content, this.chart.element);
    this.shown = "[]";
  }

  destroy() {
    this.chart.destroy();
  }

  update(sample, samples) {
    const rates = samples.map((each) => valueOf(each, "dropped_rate"));
    this.chart.element.hidden = !rates.some((each) => each > 0);
    this.chart.update(
      samples.map((each) => each.at),
      [rates],
    );
    const entries = Object.entries(sample.dropped ?? {})
      .filter(([, value]) => isNumber(value) && value > 0)
      .map(([reason, value]) => ({ value, reason }));
    const shown = JSON.stringify(entries);
    if (shown === this.shown) return;
    this.shown = shown;
    const named = entries.map(({ value, reason }) => ({ value, name: foreign(reason) }));
    this.content.replaceChildren(
      entries.length
        ? barTable("Dropped messages by reason", ["Reason", "Messages"], named, { kind: "" })
        : empty("No message was dropped."),
    );
  }
}

/** Memory with its limit, free disk space, and the condition of the store. */
class Resources {
  constructor() {
    this.meter = make("i", { class: "bar" });
    this.memory = make("b", { text: NONE });
    this.limit = make("span", { class: "muted" });
    this.free = make("b", { text: NONE });
    this.lamp = make("i", { class: "lamp none" });
    this.store = make("span", { text: NONE });
    this.chart = new LineChart({
      title: "Memory of the broker, last 5 minutes",
      series: [{ name: "memory" }],
      format: bytes,
      span: 300,
    });
    this.element = panel(
      "Memory and disk",
      { level: 2 },
      make(
        "div",
        { class: "resources" },
        make(
          "div",
          {},
          make("div", { class: "label", text: "Memory" }),
          this.memory,
          " ",
          this.limit,
          make("div", { class: "meter", "aria-hidden": "true" }, this.meter),
        ),
        make("div", {}, make("div", { class: "label", text: "Free disk space" }), this.free),
        make("div", {}, make("div", { class: "label", text: "Store" }), this.lamp, " ", this.store),
      ),
      this.chart.element,
    );
  }

  destroy() {
    this.chart.destroy();
  }

  update(sample, samples) {
    const limit = sample.memory_limit_bytes;
    setText(this.memory, bytes(sample.memory_bytes));
    setText(this.limit, isNumber(limit) ? `of ${bytes(limit)}` : "no limit");
    this.meter.parentNode.hidden = !isNumber(limit);
    if (isNumber(limit) && isNumber(sample.memory_bytes)) {
      const share = Math.min(1, sample.memory_bytes / limit);
      this.meter.style.width = `${share * 100}%`;
      this.meter.classList.toggle("bad", share > 0.9);
    }
    setText(this.free, bytes(sample.free_bytes));
    const [kind, word] = CONDITIONS[sample.store_condition] ?? ["none", NONE];
    this.lamp.className = `lamp ${kind}`;
    setText(this.store, word);
    this.chart.update(
      samples.map((each) => each.at),
      [samples.map((each) => valueOf(each, "memory_bytes"))],
    );
  }
}
