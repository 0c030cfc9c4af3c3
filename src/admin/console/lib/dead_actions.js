// Redrive and drop: of dead letters that were chosen, or of all that a filter selects. A call acts on a hundred at most,
// so many calls are made, one after the other, until all is done or somebody stops it.

import { path, post } from "./api.js";
import { counted } from "./format.js";
import { h } from "./dom.js";
import { visible } from "./text.js";
import { targetName } from "./words.js";
import { ask, field, progressLine, toast } from "./widgets.js";

/** Dead letters of one call. */
const BATCH = 100;

const DONE = { redrive: "redriven", drop: "dropped" };

/**
 * What an action is for: `ids`, or all that `filter` selects. `words` names them (`3 dead letters`), `routes` are the
 * routes that they are of.
 */
export async function redrive(view, choice, progress, load) {
  const draw = () => [
    h("p", null, `${choice.words} become due now and are published by the route's rules as they are now, without their delay. One that fails again is a new dead letter.`),
    targetField(choice.routes),
  ];
  const given = await ask({ title: `Redrive ${choice.words}?`, draw, action: "Redrive" });
  if (given !== null) await act(view, "redrive", choice, given.target || undefined, progress, load);
}

export async function drop(view, choice, progress, load) {
  const draw = () => h("p", null, `${choice.words} are deleted for good. This cannot be undone. Export them first if anybody may need them.`);
  if (await ask({ title: `Drop ${choice.words}?`, draw, action: `Drop ${choice.words}`, isDangerous: true }) !== null) {
    await act(view, "drop", choice, undefined, progress, load);
  }
}

/** A choice among the targets that the route allows. Without one route there is no choice. */
function targetField(routes) {
  if (routes.length !== 1) return null;
  const [{ to, allow_targets }] = routes;
  const names = [...new Set([targetName(to), ...allow_targets])];
  return field("Target", h("select", { name: "target" },
    h("option", { value: "" }, "the one that each was for"),
    names.map((name) => h("option", { key: name, value: name }, name))));
}

/**
 * Makes the calls, then has the page load its list anew. `progress` has what was done so far, for the page to show, and
 * `isStopped` once somebody stops it.
 */
async function act(view, verb, choice, target, progress, load) {
  Object.assign(progress, { verb, done: 0, total: choice.total, refused: [], isRunning: true, isStopped: false });
  const problem = await view.run(async (signal) => {
    for (const request of choice.ids ? batches(choice.ids) : pages(choice.filter, progress)) {
      view.redraw();
      const answer = await post(path("dead", verb), { ...request, target }, signal);
      progress.next = answer.next;
      progress.done += answer.items.filter(({ result }) => result === DONE[verb]).length;
      progress.refused.push(...answer.items.filter(({ result }) => result === "refused" || result === "ambiguous"));
      if (progress.isStopped) break;
    }
  });
  // The page shows what is left before the result is told: the next choice is among that.
  await load();
  progress.isRunning = false;
  view.redraw();
  const done = `${counted(progress.done, "dead letter")} ${DONE[verb]}`;
  if (problem) toast("bad", `${problem.message} (${done} before that)`);
  else toast(progress.refused.length > 0 ? "warn" : "ok", done);
}

function* batches(ids) {
  for (let at = 0; at < ids.length; at += BATCH) yield { ids: ids.slice(at, at + BATCH) };
}

function* pages(filter, progress) {
  yield { filter };
  while (progress.next) yield { filter, cursor: progress.next };
}

/** How far an action is, and what it was refused. */
export function progressView(progress, redraw) {
  if (progress.verb === undefined) return null;
  const of = progress.total ? ` of ${progress.total}` : "";
  return [
    progress.isRunning && progressLine(`${progress.done}${of} ${DONE[progress.verb]}`, progress, redraw),
    progress.refused.length > 0 && h("div", { class: "problem", role: "alert" }, h("div", null,
      h("strong", null, `${counted(progress.refused.length, "dead letter")} stayed`),
      h("ul", null, reasons(progress.refused).map(([why, n]) => h("li", { key: why }, `${n} × `, visible(why)))))),
  ];
}

/** Why items were refused, with how many for each reason. */
function reasons(refused) {
  const counts = new Map();
  for (const { error = "no reason was given" } of refused) counts.set(error, (counts.get(error) ?? 0) + 1);
  return [...counts];
}
