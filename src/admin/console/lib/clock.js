// The server's clock. A wrong clock in the browser changes nothing: "now" is the last moment that the server told, and
// the time since then by a clock that nobody sets.

let toldMs = Date.now();
let toldAt = performance.now();
let isTold = false;

/** Notes that the server's clock shows `ms` now. */
export function noteServerTime(ms) {
  if (!Number.isFinite(ms)) return;
  toldMs = ms;
  toldAt = performance.now();
  isTold = true;
}

/** Notes the time of an answer's `date` header, unless a finer one is known. */
export function noteServerDate(date) {
  if (!isTold && date) noteServerTime(Date.parse(date));
}

/** The server's time, Unix milliseconds. */
export function nowMs() {
  return Math.round(toldMs + performance.now() - toldAt);
}
