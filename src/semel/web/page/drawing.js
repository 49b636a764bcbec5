// When charts are drawn: in an animation frame, only if visible, at most once per second each.
//
// Colors come from the style sheet and are read once per theme, because reading a computed style
// in each frame forces the browser to compute it.

const SHORTEST_PAUSE = 950;

const waiting = new Set();
let frame = 0;
let colors = new Map();

function drawAll(now) {
  frame = 0;
  let isEarly = false;
  for (const chart of waiting) {
    if (!chart.isForced && now - (chart.drawnAt ?? -Infinity) < SHORTEST_PAUSE) {
      isEarly = true;
      continue;
    }
    waiting.delete(chart);
    chart.drawnAt = now;
    chart.isForced = false;
    chart.draw();
  }
  // A chart that came too early waits for a timer, not for sixty empty frames.
  if (isEarly) setTimeout(wake, 200);
}

function wake() {
  if (!frame && waiting.size && !document.hidden) frame = requestAnimationFrame(drawAll);
}

/** Draw a chart soon. `isForced`: its size, its colors or the kind of its data have changed. */
export function schedule(chart, { isForced = false } = {}) {
  if (isForced) chart.isForced = true;
  waiting.add(chart);
  wake();
}

export function forget(chart) {
  waiting.delete(chart);
}

document.addEventListener("visibilitychange", wake);

/** A color of the style sheet as a canvas takes it: color("--series-1"). */
export function color(name) {
  if (!colors.has(name)) {
    // A canvas does not know light-dark(): an element computes it.
    const probe = document.createElement("i");
    probe.hidden = true;
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    colors.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return colors.get(name);
}

/** The theme has changed: charts listen for "semel:theme" and draw again. */
export function forgetColors() {
  colors = new Map();
  document.dispatchEvent(new CustomEvent("semel:theme"));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forgetColors);

/** Make a canvas as sharp as the screen, and return its context in CSS pixels. */
export function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const wide = Math.round(width * ratio);
  const high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
