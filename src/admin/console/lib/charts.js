// Charts as SVG: lines of series over time, and bars of what falls due.

import { h } from "./dom.js";

/**
 * Lines of `series` from left to right, each with its `points` and its `kind`; `null` is a gap. The last point stands at
 * the right edge, however few there are; `capacity` points fill the width, and `max` is the top.
 */
export function lines(series, { width, height, capacity = 150, max, label }) {
  return h("svg", { class: "line-chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    series.map(({ points, kind }) => h("path", { key: kind, class: `stroke ${kind}`, d: outline(points, { width, height, capacity, max }) })));
}

function outline(points, { width, height, capacity, max }) {
  const first = capacity - points.length;
  const x = (i) => round(((first + i) / (capacity - 1)) * width);
  const y = (value) => round(height - 1 - (value / max) * (height - 2));
  let isGap = true;
  return points.map((value, i) => {
    if (value === null) {
      isGap = true;
      return "";
    }
    // A point between two gaps is drawn as a short line.
    const isAlone = isGap && (points[i + 1] ?? null) === null;
    const drawn = `${isGap ? "M" : "L"}${x(i)} ${y(value)}${isAlone ? "h1" : ""}`;
    isGap = false;
    return drawn;
  }).join("");
}

/** The largest of the points; more than nothing, so that it can be divided by. */
export function peak(...series) {
  return Math.max(...series.flat().map((value) => value ?? 0), 1e-9);
}

/** A round number not below `value`: 1, 2 or 5 times a power of ten. */
export function roundPeak(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/** Bars of `counts`, each with its title; `top` is the height of the tallest possible one. */
export function bars(counts, { width, height, top, title, label }) {
  const step = width / counts.length;
  return h("svg", { class: "bar-chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    counts.map((n, i) => {
      const tall = n === 0 ? 0 : Math.max(2, (n / top) * height);
      return h("g", { class: "bar" },
        h("rect", { class: "hit", x: round(i * step), y: 0, width: round(step), height }, h("title", null, title(n, i))),
        h("rect", { class: "fill", x: round(i * step + 1), y: round(height - tall), width: round(step - 2), height: round(tall) }));
    }));
}

/** A bar that is filled up to `share`, 0 to 1. */
export function gauge(share, kind, label) {
  const filled = Math.min(1, Math.max(0, share));
  return h("svg", { class: `gauge ${kind}`, viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("rect", { class: "fill", width: round(filled * 100), height: 8 }));
}

/** A coordinate, to a tenth. */
export function round(value) {
  return Math.round(value * 10) / 10;
}
