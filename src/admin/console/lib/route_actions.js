// What is done by hand to the messages of a whole route: purge them, and pass over a record that cannot be opened.

import { path, post } from "./api.js";
import { count, counted } from "./format.js";
import { h } from "./dom.js";
import { ask, field, progressLine, toast } from "./widgets.js";

/**
 * Cancels the messages of a route that wait, some at a time. `progress` has how many were cancelled so far, for the page to
 * show, and `isStopped` once somebody stops it.
 */
export async function purge(view, { name, pending }, progress) {
  const draw = () => [
    h("p", null, `${count(pending)} messages wait now. Those that are purged are never published. This cannot be undone.`),
    h("p", null, "What is in flight stays, and so do dead letters. Pause the ingress before, if producers still send."),
    field("Which", h("select", { name: "state" },
      h("option", { value: "" }, "all that wait"),
      h("option", { value: "waiting" }, "those that were never tried"),
      h("option", { value: "retrying" }, "those of which a try has failed"))),
    field("Name of the route", h("input", { name: "name", required: true, pattern: literal(name), autocomplete: "off", spellcheck: "false" }), `Type ${name}, to be sure.`),
  ];
  const given = await ask({ title: `Purge ${name}?`, draw, action: "Purge", isDangerous: true });
  if (given === null) return;
  Object.assign(progress, { done: 0, isRunning: true, isStopped: false });
  const request = given.state ? { state: given.state } : {};
  const problem = await view.run(async (signal) => {
    let cursor;
    do {
      view.redraw();
      const answer = await post(path("routes", name, "purge"), { ...request, cursor }, signal);
      progress.done += answer.messages;
      cursor = answer.next ?? undefined;
    } while (cursor !== undefined && !progress.isStopped);
  });
  progress.isRunning = false;
  view.redraw();
  const done = `${counted(progress.done, "message")} purged`;
  if (problem) toast("bad", `${problem.message} (${done} before that)`);
  else toast("ok", done);
}

/** How far a purge is. */
export function purgeProgress(progress, redraw) {
  return progress.isRunning ? progressLine(`${count(progress.done)} purged`, progress, redraw) : null;
}

/** Passes over one record of a Kafka partition that stands. `why` says where it stands. */
export async function skip(view, name, why) {
  const number = (title, key) => field(title, h("input", { name: key, type: "number", min: 0, step: 1, required: true, autocomplete: "off" }));
  const draw = () => [
    why && h("p", null, why),
    h("p", null, "The record at this offset is lost to the route. Reading goes on behind it."),
    h("div", { class: "row" }, number("Partition", "partition"), number("Offset", "offset")),
  ];
  const given = await ask({ title: `Skip an offset of ${name}?`, draw, action: "Skip the offset", isDangerous: true });
  if (given === null) return;
  const position = { partition: Number(given.partition), offset: Number(given.offset) };
  let skipped = null;
  const problem = await view.run(async (signal) => {
    skipped = await post(path("routes", name, "skip"), position, signal);
  });
  if (problem) toast("bad", problem.message);
  else toast("ok", `Offset ${skipped.offset} of partition ${skipped.partition} is skipped`);
}

/** A pattern that this text alone matches. */
function literal(text) {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}
