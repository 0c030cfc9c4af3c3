// Marks of states. Each has a shape of its own, so that nobody depends on its colour.

import { h } from "./dom.js";

const SHAPES = {
  ok: [h("circle", { cx: 6, cy: 6, r: 5 }), h("path", { class: "cut", d: "M3.6 6.2 5.3 7.9 8.5 4.4" })],
  warn: [h("path", { d: "M6 .8 11.6 11H.4Z" }), h("path", { class: "cut", d: "M6 4.6v2.8M6 9.1v.3" })],
  bad: [h("path", { d: "M3.6.6h4.8l3 3v4.8l-3 3H3.6l-3-3V3.6Z" }), h("path", { class: "cut", d: "M4.2 4.2 7.8 7.8M7.8 4.2 4.2 7.8" })],
  paused: [h("rect", { x: 1, y: 1, width: 10, height: 10, rx: 2 }), h("path", { class: "cut", d: "M4.4 3.8v4.4M7.6 3.8v4.4" })],
  idle: [h("circle", { class: "hollow", cx: 6, cy: 6, r: 4.2 }), h("path", { class: "line", d: "M6 3.8V6l1.4 1" })],
  busy: [h("path", { d: "M2 1.2 11 6 2 10.8Z" })],
  gone: [h("circle", { class: "hollow", cx: 6, cy: 6, r: 4.2 }), h("path", { class: "line", d: "M3.6 6h4.8" })],
};

/** The mark of a state: `ok`, `warn`, `bad`, `paused`, `idle`, `busy` or `gone`. */
export function mark(kind) {
  return h("svg", { class: `mark ${kind}`, viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, copy(SHAPES[kind]));
}

/** A state in words, with its mark. */
export function badge(kind, ...words) {
  return h("span", { class: `badge ${kind}` }, mark(kind), h("span", null, words));
}

/** Descriptions remember their nodes, so each use needs its own. */
function copy(shapes) {
  return shapes.map(({ tag, attrs }) => h(tag, attrs));
}
