// The last 24 hours: what all replicas delivered, and what went wrong, in slots of ten minutes.

import { count, counted, timeOfDay } from "./format.js";
import { h } from "./dom.js";
import { round, roundPeak } from "./charts.js";
import { section, table } from "./widgets.js";

const DAY_MS = 86_400_000;
const [WIDTH, HEIGHT, MARKS] = [720, 72, 8];

/** What is told of a slot: its key, its noun, the noun of more, and which mark it has below the bars. */
const FACTS = [
  ["delivered", "delivered", "delivered"],
  ["late", "late", "late"],
  ["failed", "publish failed", "publishes failed"],
  ["dead", "dead letter", "dead letters"],
  ["started", "replica started", "replicas started", "start"],
  ["paused", "pause", "pauses", "pause"],
  ["resumed", "resumption", "resumptions", "pause"],
  ["store_changed", "replica saw the store change", "replicas saw the store change", "store"],
];

/** The strip in its panel; `activity` is `undefined` until it was read, and `null` while that fails. */
export function dayStrip(activity) {
  return section("Last 24 hours", { key: "day", aside: activity && legend() },
    activity ? strip(activity) : h("p", { class: "muted" }, activity === undefined ? "Asking …" : "Unknown while Redis is away."));
}

function legend() {
  const keys = [["ok", "delivered"], ["warn", "late, or a publish failed"], ["bad", "dead letters"], ["start", "a start"], ["pause", "a pause"], ["store", "the store changed"]];
  return h("span", { class: "legend day", "aria-hidden": "true" }, keys.map(([kind, words]) => h("span", { class: `key ${kind}` }, words)));
}

function strip({ now_ms: now, slot_ms: step, slots }) {
  const first = Math.floor(now / step) * step - DAY_MS + step;
  const width = WIDTH / (DAY_MS / step);
  const top = roundPeak(Math.max(...slots.map(({ delivered }) => delivered), 0));
  const x = ({ at_ms: at }) => round(((at - first) / step) * width);
  const drawn = slots.map((slot) => h("g", { key: slot.at_ms, class: "bar" },
    h("rect", { class: "hit", x: x(slot), y: 0, width: round(width), height: HEIGHT }, h("title", null, told(slot))),
    bar(slot, x(slot), width, top),
    marksOf(slot).map((mark) => h("rect", { key: mark, class: `mark ${mark}`, x: x(slot), y: HEIGHT + 2, width: round(width - 1), height: MARKS - 2 }))));
  const total = Object.fromEntries(FACTS.map(([key]) => [key, slots.reduce((sum, slot) => sum + slot[key], 0)]));
  const label = `The last 24 hours: ${facts(total)}`;
  return [
    h("div", { class: "chart-frame" },
      h("span", { class: "chart-top", "aria-hidden": "true" }, `${count(top)} in ${step / 60_000} min`),
      h("svg", { class: "bar-chart day", viewBox: `0 0 ${WIDTH} ${HEIGHT + MARKS}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, drawn),
      h("div", { class: "ticks", "aria-hidden": "true" }, ["24 h ago", "18 h", "12 h", "6 h", "now"].map((tick) => h("span", null, tick)))),
    h("p", { class: "chart-note" }, facts(total), h("span", { class: "muted" }, "about a minute old; gaps: no replica reported")),
    notable(slots),
  ];
}

function bar(slot, x, width, top) {
  const { delivered, late, failed, dead } = slot;
  const kind = dead > 0 ? "bad" : late > 0 || failed > 0 ? "warn" : "ok";
  const least = kind === "ok" ? 1 : 4;
  const tall = Math.max(least, (delivered / top) * HEIGHT);
  return h("rect", { class: `fill ${kind}`, x, y: round(HEIGHT - tall), width: round(width - 1), height: round(tall) });
}

function marksOf(slot) {
  return [...new Set(FACTS.filter(([key, , , mark]) => mark && slot[key] > 0).map(([, , , mark]) => mark))];
}

function facts(slot) {
  const told = FACTS.filter(([key]) => slot[key] > 0).map(([key, one, more]) => counted(slot[key], one, more));
  return told.length > 0 ? told.join(", ") : "nothing was delivered";
}

function told(slot) {
  return `${timeOfDay(slot.at_ms)}: ${facts(slot)}`;
}

/** The slots in which something else than deliveries happened, newest first, for who cannot see or hover. */
function notable(slots) {
  const those = slots.filter((slot) => FACTS.some(([key]) => key !== "delivered" && slot[key] > 0)).reverse();
  if (those.length === 0) return null;
  const columns = [{ title: "From", class: "time" }, { title: "What", class: "words" }];
  const rows = those.map((slot) => ({ key: slot.at_ms, cells: [timeOfDay(slot.at_ms), facts(slot)] }));
  return h("details", { key: "notable" }, h("summary", null, "What stands out"),
    table({ caption: "What stands out in the last 24 hours", columns, rows, class: "cards" }));
}
