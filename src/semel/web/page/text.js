// Numbers, sizes, durations, times and foreign text, formatted for people.
//
// A missing value is an en dash everywhere, so that a server that does not know a figure never
// shows as zero, and a field that it does not send never throws.

export const NONE = "–";

// One formatter for each number of digits: making one costs far more than using it.
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const ONE_DIGIT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const TWO_DIGITS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });
const ANY_DIGITS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 6 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const CLOCK_MINUTES = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** A whole number with separators: 12,345. */
export function count(value) {
  return isNumber(value) ? WHOLE.format(value) : NONE;
}

/** A number with about three significant digits: 0.12, 4.5, 12,345. */
export function decimal(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 100) return WHOLE.format(value);
  return (size >= 10 ? ONE_DIGIT : TWO_DIGITS).format(value);
}

/** A number as a device sent it, at most six digits after the point. */
export function exact(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e15)) return value.toPrecision(6);
  return ANY_DIGITS.format(value);
}

/** A short form for tiles and axes: 950, 1.2 k, 3.4 M. */
export function short(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size < 1000) return decimal(value);
  if (size < 999_500) return `${decimal(value / 1e3)} k`;
  if (size < 999_500_000) return `${decimal(value / 1e6)} M`;
  return `${decimal(value / 1e9)} G`;
}

/** Messages per second. */
export function rate(value) {
  return isNumber(value) ? `${decimal(value)}/s` : NONE;
}

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

/** A number of bytes, in powers of 1,000. */
export function bytes(value) {
  if (!isNumber(value)) return NONE;
  let amount = Math.abs(value);
  let unit = 0;
  while (amount >= 999.5 && unit < SIZES.length - 1) {
    amount /= 1000;
    unit += 1;
  }
  const digits = unit === 0 ? WHOLE.format(amount) : decimal(amount);
  return `${value < 0 ? "−" : ""}${digits} ${SIZES[unit]}`;
}

export function byteRate(value) {
  return isNumber(value) ? `${bytes(value)}/s` : NONE;
}

export function milliseconds(value) {
  if (!isNumber(value)) return NONE;
  if (value >= 1000) return duration(value / 1000);
  if (value > 0 && value < 0.01) return "< 0.01 ms";
  return `${decimal(value)} ms`;
}

export function percent(value) {
  return isNumber(value) ? `${decimal(value * 100)} %` : NONE;
}

/** A duration in its two largest units: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 10) return `${ONE_DIGIT.format(Math.max(0, seconds))} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86_400)
    return two(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return two(Math.floor(whole / 86_400), "d", Math.floor((whole % 86_400) / 3600), "h");
}

function two(large, largeUnit, small, smallUnit) {
  const head = `${WHOLE.format(large)} ${largeUnit}`;
  return small ? `${head} ${small} ${smallUnit}` : head;
}

/** How long ago an epoch time was. A device's clock, or ours, may be ahead: never negative. */
export function age(at, now = Date.now() / 1000) {
  if (!isNumber(at)) return NONE;
  const seconds = Math.max(0, now - at);
  if (seconds < 1.5) return "now";
  return `${duration(Math.floor(seconds))} ago`;
}

/** The time of day of an epoch time, and the date if it is not today. */
export function time(at) {
  if (!isNumber(at)) return NONE;
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return NONE;
  const clock = CLOCK.format(date);
  return date.toDateString() === new Date().toDateString() ? clock : `${isoDay(date)} ${clock}`;
}

/** The same with milliseconds, for single messages. */
export function preciseTime(at) {
  if (!isNumber(at)) return NONE;
  const part = String(Math.floor((at * 1000) % 1000)).padStart(3, "0");
  return `${time(at)}.${part}`;
}

export function minutes(at) {
  return CLOCK_MINUTES.format(new Date(at * 1000));
}

export function isoDay(date) {
  const month = String(date.getMonth() + 1).padStart(2, "0");
  return `${date.getFullYear()}-${month}-${String(date.getDate()).padStart(2, "0")}`;
}

/** "1 row", "2 rows". */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

// What is invisible or changes the order of other text: control characters, bidirectional marks
// and overrides, zero-width characters, line and paragraph separators, soft hyphen, byte order
// mark, tags, noncharacters and lone surrogates. A zero-width joiner is kept where it joins emoji.
const HIDDEN = new RegExp(
  "[\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160" +
    "\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u200b\\u200c\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0" +
    "\\ufff0-\\ufffb\\ufffe\\uffff\\u{e0000}-\\u{e0fff}\\p{Cs}]" +
    "|(?<!\\p{Extended_Pictographic}\\ufe0f?)\\u200d|\\u200d(?!\\p{Extended_Pictographic})",
  "gu",
);

function escaped(character) {
  const code = character.codePointAt(0);
  if (code === 9) return "\\t";
  if (code === 10) return "\\n";
  if (code === 13) return "\\r";
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  if (code < 0x10000) return `\\u${code.toString(16).padStart(4, "0")}`;
  return `\\u{${code.toString(16)}}`;
}

/** Foreign text in which every hidden character is written out, for labels and titles. */
export function visible(text, limit = 4096) {
  const whole = String(text ?? NONE);
  const cut = whole.length > limit;
  const shown = (cut ? whole.slice(0, limit) : whole).replace(HIDDEN, escaped);
  return cut ? `${shown}… (${count(whole.length)} characters)` : shown;
}

/** Put foreign text into an element; hidden characters are written out and set apart.
 *
 * With `lines`, line breaks and tabs stay as they are: for payloads in a <pre>. */
export function put(element, text, { limit = 4096, lines = false } = {}) {
  const whole = text === null || text === undefined ? NONE : String(text);
  const cut = whole.length > limit;
  const part = cut ? whole.slice(0, limit) : whole;
  const pieces = [];
  let end = 0;
  for (const match of part.matchAll(HIDDEN)) {
    if (lines && (match[0] === "\n" || match[0] === "\t")) continue;
    if (match.index > end) pieces.push(part.slice(end, match.index));
    pieces.push(mark(escaped(match[0])));
    end = match.index + match[0].length;
  }
  if (end === 0 && !cut) {
    // The ordinary case, and the one that repeats for thousands of rows.
    if (element.firstChild?.nodeType === 3 && !element.firstChild.nextSibling) {
      if (element.firstChild.data !== part) element.firstChild.data = part;
    } else {
      element.textContent = part;
    }
    return element;
  }
  pieces.push(part.slice(end));
  if (cut) pieces.push(mark(`… (${count(whole.length)} characters)`));
  element.replaceChildren(...pieces);
  return element;
}

function mark(content) {
  const span = document.createElement("span");
  span.className = "hidden-character";
  span.textContent = content;
  return span;
}

/** "a0b1…" as lines of a hex dump: offset, sixteen bytes, printable ASCII. */
export function hexDump(hex) {
  const clean = typeof hex === "string" ? hex.replace(/[^0-9a-f]/gi, "") : "";
  const lines = [];
  for (let start = 0; start < clean.length; start += 32) {
    const pairs = clean.slice(start, start + 32).match(/../g) ?? [];
    const columns = pairs.map((pair, index) => (index === 8 ? ` ${pair}` : pair)).join(" ");
    const characters = pairs.map((pair) => {
      const code = parseInt(pair, 16);
      return code >= 0x20 && code < 0x7f ? String.fromCharCode(code) : "·";
    });
    const offset = (start / 2).toString(16).padStart(4, "0");
    lines.push(`${offset}  ${columns.padEnd(48)}  ${characters.join("")}`);
  }
  return lines.join("\n");
}
