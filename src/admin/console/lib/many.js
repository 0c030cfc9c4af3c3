// An action on many items, call by call: how far it is, what stayed, and how it ended.

import { count, counted } from "./format.js";
import { h } from "./dom.js";
import { visible } from "./text.js";
import { progressLine, toast } from "./widgets.js";

/**
 * Makes the calls of `calls`, then has the page load its list anew. After each call that generator tells how many items it
 * has `done`, how many were `gone` before, and which ones `stayed`: `{ error }` each. `word` says what is done to a `noun`;
 * `total` is the number of items, if that is known. The page shows `progress`, and stops by `progress.isStopped`.
 */
export async function actOnMany(view, progress, { word, noun, total, calls, load = () => {} }) {
  Object.assign(progress, { word, noun, total, done: 0, gone: 0, stayed: [], isRunning: true, isStopped: false });
  const problem = await view.run(async (signal) => {
    for await (const { done = 0, gone = 0, stayed = [] } of calls(signal)) {
      progress.done += done;
      progress.gone += gone;
      progress.stayed.push(...stayed);
      view.redraw();
      if (progress.isStopped) break;
    }
  });
  // The page shows what is left before the result is told: the next choice is among that.
  await load();
  progress.isRunning = false;
  view.redraw();
  const done = `${counted(progress.done, noun)} ${word}`;
  if (problem) toast("bad", `${problem.message} (${done} before that)`);
  else if (progress.gone > 0) toast("warn", `${done}; ${count(progress.gone)} ${progress.gone === 1 ? "was" : "were"} no longer there`);
  else toast(progress.stayed.length > 0 ? "warn" : "ok", done);
}

/** How far an action is, and what stayed. */
export function progressView(progress, redraw) {
  if (progress.word === undefined) return null;
  const of = progress.total ? ` of ${count(progress.total)}` : "";
  return [
    progress.isRunning && progressLine(`${count(progress.done)}${of} ${progress.word}`, progress, redraw),
    progress.stayed.length > 0 && h("div", { class: "problem", role: "alert" }, h("div", null,
      h("strong", null, `${counted(progress.stayed.length, progress.noun)} stayed`),
      h("ul", null, reasons(progress.stayed).map(([why, n]) => h("li", { key: why }, `${n} × `, visible(why)))))),
  ];
}

/** Why items stayed, with how many for each reason. */
function reasons(stayed) {
  const counts = new Map();
  for (const { error = "no reason was given" } of stayed) counts.set(error, (counts.get(error) ?? 0) + 1);
  return [...counts];
}
