// The overview, live: the server's stream while the page is visible, one call every two seconds where streaming fails.

import { events, get, path } from "./api.js";
import { noteServerTime } from "./clock.js";

const OVERVIEW = path("overview");
const STREAM = path("overview", "stream");
const POLL_MS = 2_000;
/** Longest wait for the answer to a call. */
const ANSWER_MS = 8_000;
/** Time of polling after a stream that brought nothing. */
const STREAM_AGAIN_MS = 30_000;
/** Time without news after which the page says that it is stale. */
const STALE_MS = 5_000;
/** Points of a series: five minutes. */
const MAX_POINTS = 150;

const listeners = new Set();

/** The last overview; `null` before the first. */
let latest = null;
let series = { step_ms: 2_000, end_ms: null, routes: {} };
let heardAt = 0;
/** The problem of the last call, while there is no news. */
let problem = null;
let running = null;

/** Has `listener` called with each overview. Returns the function that ends it. */
export function onLive(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function overview() {
  return latest;
}

export function seriesOf(route) {
  return series.routes[route] ?? { rate_in: [], rate_out: [], late_p99_ms: [] };
}

/** How fresh the overview is. */
export function freshness() {
  const silentMs = performance.now() - heardAt;
  return { isStale: latest !== null && silentMs > STALE_MS, silentMs, problem };
}

/** Begins to listen, while the page is visible. */
export function startLive() {
  stopLive();
  running = new AbortController();
  if (!document.hidden) follow(running.signal);
}

export function stopLive() {
  running?.abort();
  running = null;
}

document.addEventListener("visibilitychange", () => {
  if (running === null) return;
  if (document.hidden) running.abort();
  else startLive();
});

async function follow(signal) {
  let streamFrom = 0;
  while (!signal.aborted) {
    try {
      accept(await get(OVERVIEW, AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)])));
      if (performance.now() >= streamFrom) {
        const heard = await streamOnce(signal);
        // A stream that lasted ends in order: open the next at once.
        if (heard > 1) continue;
        if (heard === 0) streamFrom = performance.now() + STREAM_AGAIN_MS;
      }
    } catch (error) {
      if (signal.aborted) return;
      problem = error;
      if (error.status === 401) return;
      tell();
    }
    await pause(POLL_MS, signal);
  }
}

/** Reads one stream to its end, and returns the number of its events. A stream that falls silent is given up. */
async function streamOnce(signal) {
  const silence = new AbortController();
  const watchdog = () => setTimeout(() => silence.abort(), STALE_MS);
  let timer = watchdog();
  let heard = 0;
  try {
    for await (const next of events(STREAM, AbortSignal.any([signal, silence.signal]))) {
      clearTimeout(timer);
      timer = watchdog();
      heard += 1;
      accept(next);
    }
  } catch (error) {
    if (signal.aborted || error.status === 401) throw error;
  } finally {
    clearTimeout(timer);
  }
  return heard;
}

function accept(next) {
  noteServerTime(next.now_ms);
  heardAt = performance.now();
  problem = null;
  latest = next;
  if (next.series) series = next.series;
  else extendSeries(next);
  tell();
}

/** Adds the current flow to the series, once a step. */
function extendSeries({ now_ms, routes }) {
  if (series.end_ms !== null && now_ms - series.end_ms < series.step_ms) return;
  series.end_ms = now_ms;
  for (const route of routes) {
    const points = (series.routes[route.name] ??= { rate_in: [], rate_out: [], late_p99_ms: [] });
    for (const name of ["rate_in", "rate_out", "late_p99_ms"]) {
      points[name] = [...points[name], route[name]].slice(-MAX_POINTS);
    }
  }
}

function tell() {
  for (const listener of listeners) listener(latest);
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
