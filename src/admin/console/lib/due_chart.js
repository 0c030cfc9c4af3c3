// The histogram of what falls due: the next minute, hour, day or month.

import { bars, roundPeak } from "./charts.js";
import { count, counted, moment, timeOfDay } from "./format.js";
import { h } from "./dom.js";
import { section, tabs } from "./widgets.js";

const WINDOWS = {
  minute: { title: "Minute", step: 1_000, unit: "second", ticks: ["now", "15 s", "30 s", "45 s", "60 s"] },
  hour: { title: "Hour", step: 60_000, unit: "minute", ticks: ["now", "15 min", "30 min", "45 min", "60 min"] },
  day: { title: "Day", step: 3_600_000, unit: "hour", ticks: ["now", "6 h", "12 h", "18 h", "24 h"] },
  month: { title: "Month", step: 86_400_000, unit: "day", ticks: ["now", "7 days", "15 days", "22 days", "30 days"] },
};

/** The histogram in its panel, with tabs for its windows; `undefined` until it was read for the first time. */
export function dueChart(histogram, window, choose) {
  const choices = Object.entries(WINDOWS).map(([key, { title }]) => [key, title]);
  return section("Falling due", { key: "due", aside: tabs("Time ahead", choices, window, choose) },
    histogram ? chart(histogram, window) : h("p", { class: "muted" }, histogram === undefined ? "Asking …" : "Unknown while Redis is away."));
}

function chart(histogram, window) {
  const counts = histogram[window];
  const { step, unit, ticks } = WINDOWS[window];
  const total = counts.reduce((sum, n) => sum + n, 0);
  const most = Math.max(...counts);
  const at = (i) => histogram.now_ms + i * step;
  const title = (n, i) => `${counted(n, "message")} from ${unit === "second" ? timeOfDay(at(i)) : moment(at(i), false)}`;
  const summary = `${counted(total, "message")} due within the ${window}, at most ${count(most)} in one ${unit}`;
  return [
    h("div", { class: "chart-frame" },
      h("span", { class: "chart-top", "aria-hidden": "true" }, `${count(roundPeak(most))} a ${unit}`),
      bars(counts, { width: 600, height: 150, top: roundPeak(most), title, label: summary }),
      h("div", { class: "ticks", "aria-hidden": "true" }, ticks.map((tick) => h("span", null, tick)))),
    h("p", { class: "chart-note" },
      h("span", null, h("strong", null, count(total)), ` within the ${window}`),
      h("span", null, h("strong", { class: histogram.overdue > 0 ? "alarm" : "" }, count(histogram.overdue)), " due already, not claimed yet"),
      !(window === "month" ? histogram.month_exact : histogram.exact) && h("span", { class: "muted" }, "estimated from a part of what waits")),
  ];
}
