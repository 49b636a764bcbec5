// The way of a message as a picture: received → on disk → sealed → landed.
//
// The picture is laid out in CSS pixels for the width it has, in a row or, on a phone, in a
// column, so that its text has the size of other text. Every few seconds a dot goes the way that a
// message goes. Between two of them nothing is animated, because an endless animation costs a page
// without graphics hardware several percent of a core; and none is if less motion is preferred.

import { make, setText, svg } from "./dom.js";
import { count, counted, duration, isNumber, milliseconds, NONE, rate } from "./text.js";

const HEIGHT = 84;
const GAP_DOWN = 58;
const NARROW = 720;

// A dot is sent with every so many samples; it takes this many milliseconds and steps per arrow.
const EVERY = 4;
const TRAVEL = 700;
const STEPS = 18;
const REDUCED = matchMedia("(prefers-reduced-motion: reduce)");

// From which lag on an arrow is a warning, and from which a problem.
const LIMITS = { recorded: [0.5, 5], sealed: [15, 120], landed: [30, 300] };

// Sealing and landing work in batches: their rates are means of this many seconds.
const MEAN_OF = 15;

/** The mean of a stage's latest rates. */
function meanRate(samples, stage) {
  const known = samples
    .slice(-MEAN_OF)
    .map((each) => each.flow?.[stage]?.rate)
    .filter(isNumber);
  return known.length ? known.reduce((sum, each) => sum + each, 0) / known.length : null;
}

function stations(samples) {
  const sample = samples.at(-1);
  const flow = sample?.flow;
  if (!flow) {
    const received = { total: sample?.received_total, rate: sample?.received_rate };
    return [
      { key: "received", name: "Received", total: received.total, rate: received.rate },
      {
        key: "sent",
        name: "Sent",
        total: sample?.sent_total,
        rate: sample?.sent_rate,
        by: "broker",
      },
    ];
  }
  const { received = {}, recorded = {}, sealed = {}, landed } = flow;
  return [
    { key: "received", name: "Received", total: received?.total, rate: received?.rate },
    {
      key: "recorded",
      name: "On disk",
      total: recorded?.seq,
      rate: recorded?.rate,
      by: "commit",
      lag: milliseconds(recorded?.lag_ms),
      seconds: isNumber(recorded?.lag_ms) ? recorded.lag_ms / 1000 : null,
    },
    {
      key: "sealed",
      name: "Sealed",
      total: sealed?.seq,
      rate: meanRate(samples, "sealed"),
      by: "sealer",
      lag: lagText(sealed),
      seconds: sealed?.lag_seconds,
    },
    {
      key: "landed",
      name: "Landed",
      total: landed?.seq,
      rate: meanRate(samples, "landed"),
      by: "landing",
      lag: lagText(landed),
      seconds: landed?.lag_seconds,
      isMissing: landed === null,
    },
  ];
}

function lagText(stage) {
  if (!stage) return NONE;
  if (stage.lag_rows === 0) return "no lag";
  const parts = [];
  if (isNumber(stage.lag_seconds)) parts.push(duration(stage.lag_seconds));
  if (isNumber(stage.lag_rows)) parts.push(counted(stage.lag_rows, "row"));
  return parts.join(" · ") || NONE;
}

function condition(station) {
  if (station.isMissing || !isNumber(station.seconds))
    return isNumber(station.rate) ? "fine" : "none";
  const [warning, problem] = LIMITS[station.key] ?? [Infinity, Infinity];
  if (station.seconds >= problem) return "bad";
  return station.seconds >= warning ? "warn" : "fine";
}

/** What the picture shows, as one sentence per station: its text alternative. */
function sentence(list) {
  return list
    .map((each) => {
      const lag = each.lag && each.lag !== NONE ? `, lag ${each.lag}` : "";
      return `${each.name}: ${count(each.total)}, ${rate(each.rate)}${lag}.`;
    })
    .join(" ");
}

export class Flow {
  #layout = "";
  #parts = [];
  #samples = [];
  #updates = 0;

  constructor() {
    this.picture = svg("svg", { class: "flow", role: "img", "aria-label": "The way of a message" });
    this.element = make("div", { class: "flow-box" }, this.picture);
    this.sizes = new ResizeObserver(() => this.#show());
    this.sizes.observe(this.element);
  }

  destroy() {
    this.sizes.disconnect();
  }

  update(samples) {
    this.#samples = samples;
    this.#show();
    if (this.#updates % EVERY === 0 && !REDUCED.matches) this.#sendDot();
    this.#updates += 1;
  }

  #sendDot() {
    let delay = 0;
    for (const { arrow } of this.#parts) {
      if (!arrow) continue;
      if (!arrow.moves) return;
      const { dx, dy } = arrow.way;
      arrow.dot.animate(
        [
          { visibility: "visible", transform: "none" },
          { visibility: "visible", transform: `translate(${dx}px, ${dy}px)` },
        ],
        { duration: TRAVEL, delay, easing: `steps(${STEPS})` },
      );
      delay += TRAVEL;
    }
  }

  #show() {
    const list = stations(this.#samples);
    const width = Math.floor(this.element.clientWidth);
    if (width < 100) return;
    const layout = `${width} ${list.map((each) => each.key).join(" ")}`;
    if (layout !== this.#layout) {
      this.#layout = layout;
      this.#build(list, width);
    }
    this.picture.setAttribute("aria-label", `The way of a message. ${sentence(list)}`);
    list.forEach((station, index) => this.#fill(station, this.#parts[index]));
  }

  #build(list, width) {
    const isRow = width >= NARROW;
    this.#parts = [];
    this.picture.replaceChildren();
    this.picture.classList.toggle("column", !isRow);
    const last = list.length - 1;
    const box = isRow ? Math.min(230, width / (list.length + last * 0.72)) : width - 2;
    const gap = isRow ? (width - 2 - box * list.length) / last : 0;
    const height = isRow ? HEIGHT + 44 : HEIGHT * list.length + GAP_DOWN * last + 2;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("width", width);
    this.picture.setAttribute("height", height);
    list.forEach((station, index) => {
      const x = isRow ? 1 + index * (box + gap) : 1;
      const y = isRow ? 1 : 1 + index * (HEIGHT + GAP_DOWN);
      const arrow =
        index === 0
          ? null
          : isRow
            ? this.#across(x - gap, gap, station)
            : this.#down(y, box, station);
      this.#parts.push({ ...this.#station(station, x, y, box), arrow });
    });
    if (isRow && list[1].key === "recorded") this.#acknowledgement(box, gap);
  }

  #station(station, x, y, width) {
    const total = svg("text", { class: "flow-total", x: x + 16, y: y + 50 });
    const speed = svg("text", { class: "flow-rate", x: x + 16, y: y + 71 });
    const name = svg("text", { class: "flow-name", x: x + 16, y: y + 23 });
    name.textContent = station.name;
    const frame = svg("rect", { class: "flow-station", x, y, width, height: HEIGHT, rx: 10 });
    const group = svg("g", {}, frame, name, total, speed);
    this.picture.append(group);
    return { group, total, speed };
  }

  #across(x, gap, station) {
    const y = 1 + HEIGHT / 2;
    const end = x + gap - 10;
    const lag = svg("text", {
      class: "flow-lag",
      x: x + gap / 2 - 2,
      y: y - 12,
      "text-anchor": "middle",
    });
    const by = svg("text", {
      class: "flow-by",
      x: x + gap / 2 - 2,
      y: y + 20,
      "text-anchor": "middle",
    });
    by.textContent = station.by ?? "";
    const line = svg("path", { class: "flow-line", d: `M${x + 8} ${y}H${end}` });
    const tip = svg("path", { class: "flow-tip", d: `M${end - 1} ${y - 5}l8 5-8 5z` });
    return this.#arrow([line, tip, lag, by], lag, { x: x + 8, y, dx: end - x - 8, dy: 0 });
  }

  #down(y, width, station) {
    const x = 40;
    const start = y - GAP_DOWN + 6;
    const end = y - 10;
    const lag = svg("text", { class: "flow-lag", x: x + 22, y: y - GAP_DOWN / 2 - 3 });
    const by = svg("text", { class: "flow-by", x: x + 22, y: y - GAP_DOWN / 2 + 14 });
    by.textContent = station.by ?? "";
    const line = svg("path", { class: "flow-line", d: `M${x} ${start}V${end}` });
    const tip = svg("path", { class: "flow-tip", d: `M${x - 5} ${end - 1}l5 8 5-8z` });
    return this.#arrow([line, tip, lag, by], lag, { x, y: start, dx: 0, dy: end - start });
  }

  #arrow(pieces, lag, way) {
    const dot = svg("circle", { class: "flow-dot", cx: way.x, cy: way.y, r: 4 });
    const group = svg("g", { class: "flow-arrow" }, ...pieces, dot);
    this.picture.append(group);
    return { group, lag, dot, way };
  }

  /** What semel promises: the acknowledgement comes back from the disk, not from memory. */
  #acknowledgement(box, gap) {
    const right = 1 + box + gap + Math.min(60, box / 3);
    const left = 1 + box - Math.min(60, box / 3);
    const y = HEIGHT + 20;
    const d = `M${right} ${HEIGHT + 4}V${y - 6}q0 6-6 6H${left + 6}q-6 0-6-6V${HEIGHT + 10}`;
    const text = svg("text", {
      class: "flow-ack-text",
      x: (left + right) / 2,
      y: y + 17,
      "text-anchor": "middle",
    });
    text.textContent = "acknowledged after the commit";
    const tip = svg("path", {
      class: "flow-ack-tip",
      d: `M${left - 4.5} ${HEIGHT + 11}l4.5-7 4.5 7z`,
    });
    this.picture.append(svg("g", {}, svg("path", { class: "flow-ack", d }), tip, text));
  }

  #fill(station, part) {
    if (!part) return;
    setText(part.total, count(station.total));
    setText(part.speed, station.isMissing ? "not running" : rate(station.rate));
    if (!part.arrow) return;
    setText(part.arrow.lag, station.lag ?? "");
    part.arrow.moves = isNumber(station.rate) && station.rate > 0;
    part.arrow.group.setAttribute("class", `flow-arrow ${condition(station)}`);
  }
}
