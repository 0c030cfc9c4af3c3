// Charts as SVG: lines of a series over time, and bars of what falls due.

import { h } from "./dom.js";

/**
 * A line of `points` from left to right; `null` is a gap. The last point stands at the right edge, however few there
 * are, and `max` is the top.
 */
export function line(points, { width, height, capacity = 150, max = peak(points), label }) {
  const y = (value) => round(height - 1.5 - (value / max) * (height - 3));
  const x = (i) => round(width - ((points.length - 1 - i) / (capacity - 1)) * width);
  let d = "";
  let area = "";
  let begin = null;
  points.forEach((value, i) => {
    if (value === null) return;
    const isFirst = i === 0 || points[i - 1] === null;
    const isLast = i === points.length - 1 || points[i + 1] === null;
    if (isFirst) begin = x(i);
    d += `${isFirst ? "M" : "L"}${x(i)} ${y(value)}`;
    area += `${isFirst ? `M${x(i)} ${height}L` : "L"}${x(i)} ${y(value)}`;
    // A single point is drawn as a short line.
    if (isFirst && isLast) d += `h1`;
    if (isLast) area += `L${x(i)} ${height}L${begin} ${height}Z`;
  });
  return h("svg", { class: "line-chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("path", { class: "area", d: area }),
    h("path", { class: "stroke", d }));
}

/** The largest of the points, at least a little above nothing. */
export function peak(points) {
  return Math.max(...points.map((value) => value ?? 0), 1e-9);
}

/** A round number not below `value`: 1, 2 or 5 times a power of ten. */
export function roundPeak(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/** Bars of `counts`, each with its title; `top` is the height of the tallest possible one. */
export function bars(counts, { width, height, top, title, label }) {
  const step = width / counts.length;
  const gap = step > 6 ? 2 : 1;
  return h("svg", { class: "bar-chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    counts.map((n, i) => {
      const tall = n === 0 ? 0 : Math.max(2, (n / top) * height);
      return h("g", { class: "bar" },
        h("rect", { class: "hit", x: round(i * step), y: 0, width: round(step), height }, h("title", null, title(n, i))),
        h("rect", { class: "fill", x: round(i * step + gap / 2), y: round(height - tall), width: round(step - gap), height: round(tall) }));
    }));
}

function round(value) {
  return Math.round(value * 10) / 10;
}
