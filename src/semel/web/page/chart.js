// Line charts on a canvas: live (five minutes that move) or of fixed data.
//
// The canvas is drawn when data change. The cursor and its readout are elements above it, so that
// moving the pointer never redraws the chart. For the keyboard and for screen readers a chart is
// a slider over its points: arrow keys move the readout, and its value is read as a sentence.

import { color, forget, prepare, schedule } from "./drawing.js";
import { make, setText } from "./dom.js";
import { decimal, isNumber, isoDay, minutes, NONE, time } from "./text.js";
import { ticks, timeTicks } from "./scale.js";

const TOP = 8;
const BOTTOM = 20;
const RIGHT = 10;
const FONT = "11px ui-sans-serif, system-ui, sans-serif";

export class LineChart {
  #x = [];
  #columns = [];
  #low = 0;
  #high = 1;
  #bottom = 0;
  #top = 1;
  #left = 40;
  #width = 0;
  #height = 0;
  #cursor = null;
  #isSeen = true;

  /** `series`: [{name, color?}]; `format` writes a value; `span` is the seconds of a live chart. */
  constructor({
    title,
    series,
    format = decimal,
    axisFormat = format,
    span = null,
    xKind = "time",
    zero = true,
    fill = series.length < 3,
    compact = false,
  }) {
    Object.assign(this, { title, format, axisFormat, span, xKind, zero, fill, compact });
    this.series = series.map((each, index) => ({ color: `--series-${(index % 6) + 1}`, ...each }));
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.line = make("div", { class: "chart-cursor", hidden: true });
    this.readout = make("div", { class: "chart-readout", hidden: true, "aria-hidden": "true" });
    this.element = make(
      "div",
      {
        class: compact ? "chart compact" : "chart",
        tabindex: "0",
        role: "slider",
        "aria-roledescription": "chart",
        "aria-label": title,
        "aria-orientation": "horizontal",
      },
      this.canvas,
      this.line,
      this.readout,
    );
    this.element.addEventListener("pointermove", (event) => this.#point(event));
    this.element.addEventListener("pointerleave", () => this.#moveCursor(null));
    this.element.addEventListener("keydown", (event) => this.#press(event));
    this.element.addEventListener("blur", () => this.#moveCursor(null));
    this.sizes = new ResizeObserver(() => schedule(this, { isForced: true }));
    this.sizes.observe(this.element);
    this.sight = new IntersectionObserver(([entry]) => {
      this.#isSeen = entry.isIntersecting;
      if (this.#isSeen) schedule(this, { isForced: true });
    });
    this.sight.observe(this.element);
    this.themed = () => schedule(this, { isForced: true });
    document.addEventListener("semel:theme", this.themed);
    this.#describe();
  }

  destroy() {
    forget(this);
    this.sizes.disconnect();
    this.sight.disconnect();
    document.removeEventListener("semel:theme", this.themed);
  }

  /** `x` ascending; `columns`: for each series a list of numbers, or null where there is none. */
  update(x, columns) {
    this.#x = x;
    this.#columns = columns;
    if (this.#cursor !== null && this.#cursor >= x.length) this.#cursor = null;
    this.#describe();
    schedule(this);
  }

  draw() {
    if (!this.#isSeen || !this.element.isConnected) return;
    this.#width = this.element.clientWidth;
    this.#height = this.element.clientHeight;
    if (this.#width < 40 || this.#height < 20) return;
    const context = prepare(this.canvas, this.#width, this.#height);
    context.font = FONT;
    this.#measure(context);
    if (!this.compact) this.#drawAxes(context);
    this.#columns.forEach((values, index) => this.#drawLine(context, values, this.series[index]));
    this.#showCursor();
  }

  #measure(context) {
    const x = this.#x;
    this.#high = x.at(-1) ?? Date.now() / 1000;
    this.#low = this.span ? this.#high - this.span : (x[0] ?? this.#high - 1);
    if (this.#high === this.#low) this.#low -= 1;
    let least = this.zero ? 0 : Infinity;
    let most = -Infinity;
    for (const values of this.#columns) {
      for (const value of values) {
        if (!isNumber(value)) continue;
        if (value < least) least = value;
        if (value > most) most = value;
      }
    }
    if (!isNumber(most)) most = 1;
    if (!isNumber(least)) least = 0;
    if (most <= least) {
      const middle = least;
      const room = this.zero ? 1 : Math.max(Math.abs(middle) * 0.05, 0.5);
      most = middle + room;
      if (!this.zero) least = middle - room;
    }
    if (this.compact) {
      const room = (most - least) * 0.08;
      [this.#bottom, this.#top, this.#left] = [least - room, most + room, 2];
      return;
    }
    this.yTicks = ticks(least, most, this.#height < 130 ? 2 : 3);
    this.#bottom = this.yTicks[0];
    this.#top = this.yTicks.at(-1);
    const widest = Math.max(
      ...this.yTicks.map((t) => context.measureText(this.axisFormat(t)).width),
    );
    this.#left = Math.ceil(Math.max(28, widest + 10));
  }

  #xAt(value) {
    const room = this.#width - this.#left - (this.compact ? 2 : RIGHT);
    return this.#left + ((value - this.#low) / (this.#high - this.#low)) * room;
  }

  #yAt(value) {
    const top = this.compact ? 2 : TOP;
    const room = this.#height - top - (this.compact ? 2 : BOTTOM);
    return top + (1 - (value - this.#bottom) / (this.#top - this.#bottom)) * room;
  }

  #drawAxes(context) {
    context.fillStyle = color("--muted");
    context.strokeStyle = color("--grid");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of this.yTicks) {
      const y = Math.round(this.#yAt(tick)) + 0.5;
      context.beginPath();
      context.moveTo(this.#left, y);
      context.lineTo(this.#width - RIGHT, y);
      context.stroke();
      context.fillText(this.axisFormat(tick), this.#left - 6, y);
    }
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    const wanted = Math.max(2, Math.floor((this.#width - this.#left) / 70));
    for (const [at, label] of this.#xLabels(wanted)) {
      const x = this.#xAt(at);
      const half = context.measureText(label).width / 2;
      if (x - half < this.#left - 4 || x + half > this.#width) continue;
      context.fillText(label, x, this.#height - 5);
    }
  }

  #xLabels(wanted) {
    if (this.xKind === "number") {
      return ticks(this.#low, this.#high, wanted).map((at) => [at, decimal(at)]);
    }
    const { step, found } = timeTicks(this.#low, this.#high, wanted);
    return found.map((at) => {
      if (step >= 86_400) return [at, isoDay(new Date(at * 1000))];
      return [at, step < 60 ? time(at).slice(-8) : minutes(at)];
    });
  }

  #drawLine(context, values, series) {
    const stroke = color(series.color);
    const points = [];
    const runs = [];
    // A missing value, or a pause in a live chart, is a gap and not a straight line.
    for (let index = 0; index < values.length; index += 1) {
      const gap = this.span && index > 0 && this.#x[index] - this.#x[index - 1] > 5;
      if ((gap || !isNumber(values[index])) && points.length) runs.push(points.splice(0));
      if (isNumber(values[index]) && this.#x[index] >= this.#low) {
        points.push([this.#xAt(this.#x[index]), this.#yAt(values[index])]);
      }
    }
    if (points.length) runs.push(points);
    const floor = this.#yAt(Math.max(0, this.#bottom));
    for (const run of runs) {
      context.beginPath();
      context.moveTo(...run[0]);
      for (const point of run) context.lineTo(...point);
      context.strokeStyle = stroke;
      context.lineWidth = 1.6;
      context.lineJoin = "round";
      context.stroke();
      if (run.length === 1) {
        context.beginPath();
        context.arc(run[0][0], run[0][1], 1.6, 0, 7);
        context.fillStyle = stroke;
        context.fill();
      } else if (this.fill) {
        context.lineTo(run.at(-1)[0], floor);
        context.lineTo(run[0][0], floor);
        const shade = context.createLinearGradient(0, this.#yAt(this.#top), 0, floor);
        shade.addColorStop(0, stroke);
        // Not "transparent", which is black without opacity: the shade would turn gray.
        shade.addColorStop(1, stroke.replace("rgb(", "rgba(").replace(")", ", 0)"));
        context.globalAlpha = 0.16;
        context.fillStyle = shade;
        context.fill();
        context.globalAlpha = 1;
      }
    }
  }

  // --- the readout ---

  #point(event) {
    if (!this.#x.length) return;
    const box = this.element.getBoundingClientRect();
    const room = this.#width - this.#left - RIGHT;
    const share = (event.clientX - box.left - this.#left) / Math.max(1, room);
    this.#moveCursor(this.#nearest(this.#low + share * (this.#high - this.#low)));
  }

  #nearest(value) {
    let low = 0;
    let high = this.#x.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#x[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low > 0 && value - this.#x[low - 1] < this.#x[low] - value ? low - 1 : low;
  }

  #press(event) {
    const last = this.#x.length - 1;
    if (last < 0) return;
    const at = this.#cursor ?? last;
    const steps = {
      ArrowLeft: -1,
      ArrowDown: -1,
      ArrowRight: 1,
      ArrowUp: 1,
      PageUp: 30,
      PageDown: -30,
    };
    let next;
    if (event.key in steps) next = at + steps[event.key];
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = last;
    else if (event.key === "Escape") next = null;
    else return;
    event.preventDefault();
    this.#moveCursor(next === null ? null : Math.min(last, Math.max(0, next)));
  }

  #moveCursor(index) {
    this.#cursor = index;
    this.#showCursor();
    this.#describe();
  }

  #xText(index) {
    return this.xKind === "time" ? time(this.#x[index]) : decimal(this.#x[index]);
  }

  #showCursor() {
    const index = this.#cursor;
    const isShown = index !== null && index < this.#x.length;
    this.line.hidden = !isShown;
    this.readout.hidden = !isShown;
    if (!isShown) return;
    const x = this.#xAt(this.#x[index]);
    this.line.style.transform = `translateX(${Math.round(x)}px)`;
    const lines = [make("div", { class: "chart-when", text: this.#xText(index) })];
    this.series.forEach((each, column) => {
      const swatch = make("i", { class: "swatch" });
      swatch.style.background = `var(${each.color})`;
      const value = this.format(this.#columns[column]?.[index]);
      lines.push(make("div", {}, swatch, `${each.name} `, make("b", { text: value })));
    });
    this.readout.replaceChildren(...lines);
    const isLeft = x > this.#width / 2;
    const shift = isLeft ? `calc(${Math.round(x - 8)}px - 100%)` : `${Math.round(x + 8)}px`;
    this.readout.style.transform = `translateX(${shift})`;
  }

  #describe() {
    const last = this.#x.length - 1;
    const index = this.#cursor ?? last;
    const values = this.series.map(
      (each, column) => `${each.name} ${this.format(this.#columns[column]?.[index])}`,
    );
    let sentence = last < 0 ? "no data yet" : `${this.#xText(index)}: ${values.join(", ")}`;
    if (this.#cursor === null && last > 0) sentence += `; ${this.#extremes()}`;
    this.element.setAttribute("aria-valuemin", "0");
    this.element.setAttribute("aria-valuemax", String(Math.max(0, last)));
    this.element.setAttribute("aria-valuenow", String(Math.max(0, index)));
    this.element.setAttribute("aria-valuetext", sentence);
  }

  #extremes() {
    return this.series
      .map((each, column) => {
        const known = (this.#columns[column] ?? []).filter(isNumber);
        if (!known.length) return `${each.name} ${NONE}`;
        const least = known.reduce((a, b) => Math.min(a, b));
        const most = known.reduce((a, b) => Math.max(a, b));
        return `${each.name} from ${this.format(least)} to ${this.format(most)}`;
      })
      .join(", ");
  }
}

/** Names of series with their last values, above a chart. */
export class Legend {
  constructor(series) {
    this.values = series.map(() => make("b", { text: NONE }));
    this.element = make(
      "div",
      { class: "legend" },
      ...series.map((each, index) => {
        const swatch = make("i", { class: "swatch" });
        swatch.style.background = `var(${each.color ?? `--series-${(index % 6) + 1}`})`;
        return make("span", {}, swatch, `${each.name} `, this.values[index]);
      }),
    );
  }

  update(texts) {
    texts.forEach((each, index) => setText(this.values[index], each));
  }
}
