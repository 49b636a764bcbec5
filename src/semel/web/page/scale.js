// Ticks of axes: round numbers and round times.

/** Round values that cover low to high in about `wanted` steps. */
export function ticks(low, high, wanted = 4) {
  if (!(high > low)) high = low + 1;
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  const found = [];
  for (let index = first; index <= last; index += 1) found.push(index * step);
  return found;
}

const TIME_STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
  172_800, 604_800, 2_592_000, 7_776_000, 31_536_000,
];

/** Round times between two epoch seconds, in local time. */
export function timeTicks(low, high, wanted = 5) {
  const span = Math.max(1, high - low);
  const step = TIME_STEPS.find((each) => span / each <= wanted) ?? TIME_STEPS.at(-1);
  // Days begin at local midnight, not at that of UTC.
  const shift = new Date(low * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((low - shift) / step) * step + shift; at <= high; at += step)
    found.push(at);
  return { step, found };
}
