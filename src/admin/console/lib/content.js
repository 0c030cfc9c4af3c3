// Headers, keys, failures and positions, which messages and dead letters have alike.

import { count, lateness, span } from "./format.js";
import { h } from "./dom.js";
import { name, visible } from "./text.js";
import { empty, fullMoment, section, table, when } from "./widgets.js";

/** The headers, in their order. */
export function headersPanel(headers) {
  const rows = headers.map(({ name: title, value }, i) => ({ key: i, cells: [name(title), headerValue(value)] }));
  return section("Headers", { key: "headers" }, rows.length === 0
    ? empty("It has no headers.")
    : table({ caption: "Headers", columns: [{ title: "Name" }, { title: "Value", class: "words" }], rows }));
}

function headerValue(value) {
  if (typeof value === "string") return value === "" ? h("span", { class: "muted" }, "empty") : name(value);
  const isBytes = value !== null && typeof value === "object" && Object.keys(value).join() === "base64";
  if (isBytes) return [h("span", { class: "muted" }, "bytes, base64 "), name(value.base64)];
  return [h("span", { class: "muted" }, `${kindOf(value)} `), name(JSON.stringify(value))];
}

function kindOf(value) {
  if (value === null) return "nothing";
  if (Array.isArray(value)) return "list";
  return { number: "number", boolean: "truth value" }[typeof value] ?? "table";
}

/** The key of a message; one that is no text stands there as base64. */
export function keyWords({ key, key_is_base64: isBytes }) {
  return key !== undefined && [name(key), isBytes && h("small", null, " base64")];
}

/** The failures that a message remembers, newest first. */
export function failuresPanel(history) {
  if (!history?.length) return null;
  const rows = [...history].reverse().map(({ at_ms, reason, error }, i) => ({
    key: `${at_ms} ${i}`,
    cells: [when(at_ms), h("code", null, reason), visible(error)],
  }));
  const columns = [{ title: "When", class: "time" }, { title: "Reason" }, { title: "Error", class: "words" }];
  return section("Failures", { key: "failures", aside: h("span", { class: "muted" }, "the last ones, newest first") },
    table({ caption: "Failures, newest first", columns, rows, class: "cards" }));
}

/** What a message's trail tells of an event, beside its kind and its moment. */
export function eventDetails({ event, due_ms, late_ms, target, landed, attempt, by, because, position }) {
  return [
    event === "moved" && due_ms !== undefined && ["to ", when(due_ms)],
    event !== "moved" && due_ms !== undefined && ["due ", when(due_ms)],
    target && ["to ", name(target)],
    landed && `partition ${landed.partition}, offset ${landed.offset}`,
    late_ms !== undefined && `${lateness(late_ms)} late`,
    attempt > 1 && `attempt ${count(attempt)}`,
    by && ["by ", h("bdi", null, visible(by)), because && [": ", h("bdi", null, visible(because))]],
    positionWords(position),
  ].filter(Boolean).map((words, i) => h("span", { key: i, class: "apart" }, words));
}

export function positionWords(position) {
  return position && `${position.topic === undefined ? "" : `topic ${position.topic}, `}partition ${position.partition}, offset ${position.offset}`;
}

/** What the producer of a message asked for: a delay, or a moment. */
export function requestWords({ delay_ms, deliver_at_ms }) {
  if (delay_ms !== undefined) return `a delay of ${delay_ms < 1_000 ? `${delay_ms} ms` : span(delay_ms)}`;
  return deliver_at_ms !== undefined && ["delivery at ", fullMoment(deliver_at_ms)];
}
