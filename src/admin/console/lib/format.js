// Numbers and times for people. Every number has a fixed form, so that columns do not move when it changes.

import { nowMs } from "./clock.js";
import { setting } from "./settings.js";

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000]];

/** A count: `12,345`. */
export function count(n) {
  return n === null || n === undefined ? "–" : WHOLE.format(n);
}

/** Messages a second: one digit after the point below a hundred. */
export function rate(n) {
  if (n === null || n === undefined) return "–";
  return n < 99.95 ? n.toFixed(1) : WHOLE.format(n);
}

/** A count with its noun: `1 message`, `3 messages`. */
export function counted(n, noun, plural = `${noun}s`) {
  return `${count(n)} ${n === 1 ? noun : plural}`;
}

/** A sentence of the server, with its capital. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Bytes in binary units: `1.5 MiB`. */
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (n >= 1024 && power < units.length - 1) {
    n /= 1024;
    power += 1;
  }
  return `${power === 0 || n >= 99.95 ? Math.round(n) : n.toFixed(1)} ${units[power]}`;
}

/** A lateness: `0.4 ms`, `31 ms`, `2.4 s`, `3 min 5 s`. */
export function lateness(ms) {
  if (ms === null || ms === undefined) return "–";
  if (Math.abs(ms) < 9.95) return `${ms.toFixed(1)} ms`;
  if (Math.abs(ms) < 999.5) return `${Math.round(ms)} ms`;
  if (Math.abs(ms) < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  return span(ms);
}

/** A length of time in its two largest units: `3 min 5 s`. */
export function span(ms) {
  let rest = Math.floor(Math.abs(ms) / 1000) * 1000;
  const shown = [];
  for (const [unit, length] of UNITS) {
    const n = Math.floor(rest / length);
    rest -= n * length;
    if (n > 0 || (shown.length === 0 && unit === "s")) shown.push(`${n} ${unit}`);
    else if (shown.length > 0) break;
    if (shown.length === 2) break;
  }
  return shown.join(" ");
}

/** A moment as a distance from now: `in 3 min 5 s`, `12 s ago`, `now`. */
export function relative(ms, now = nowMs()) {
  const away = ms - now;
  if (Math.abs(away) < 1000) return "now";
  return away > 0 ? `in ${span(away)}` : `${span(away)} ago`;
}

/** The name of the zone that times are shown in. */
export function zoneName() {
  return setting("zone") === "utc" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone ?? "local time";
}

/** A moment in the chosen zone: `2026-11-25 14:03:22.512`. */
export function moment(ms, withMillis = true) {
  const at = new Date(ms);
  if (!isWritable(at)) return "beyond the calendar";
  const text = setting("zone") === "utc" ? at.toISOString() : new Date(ms - offsetMs(at)).toISOString();
  return text.slice(0, withMillis ? 23 : 19).replace("T", " ");
}

/** The time of day in the chosen zone, with its date unless that is today: `14:03:22`. */
export function timeOfDay(ms) {
  const text = moment(ms, false);
  return text.slice(0, 10) === moment(nowMs()).slice(0, 10) ? text.slice(11) : text;
}

/** A moment in UTC: `2026-11-25T13:03:22.512Z`. */
export function utc(ms) {
  const at = new Date(ms);
  return isWritable(at) ? at.toISOString() : String(ms);
}

/** A moment in the chosen zone, and in UTC where that is another. */
export function bothZones(ms) {
  return setting("zone") === "utc" ? utc(ms) : `${moment(ms)} ${zoneName()}, ${utc(ms)}`;
}

/** The value of a `datetime-local` input for a moment, in the chosen zone. */
export function inputMoment(ms) {
  return moment(ms, false).replace(" ", "T");
}

/** The moment that a `datetime-local` input holds, Unix milliseconds; `null` if it is empty. */
export function momentOfInput(value) {
  if (!value) return null;
  const ms = Date.parse(setting("zone") === "utc" ? `${value}Z` : value);
  return Number.isNaN(ms) ? null : ms;
}

function isWritable(at) {
  const year = at.getUTCFullYear();
  return year >= 0 && year <= 9998;
}

function offsetMs(at) {
  return at.getTimezoneOffset() * 60_000;
}
