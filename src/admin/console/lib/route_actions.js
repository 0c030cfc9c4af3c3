// What is done by hand to a whole route: pause and resume it, purge what waits, and pass over a record that cannot be opened.

import { path, post } from "./api.js";
import { count, sentence } from "./format.js";
import { h } from "./dom.js";
import { actOnMany } from "./many.js";
import { ask, field, toast } from "./widgets.js";
import { readsSeveral } from "./words.js";

/** Cancels the messages of a route that wait, some at a time. */
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
  const request = { state: given.state || undefined, because: given.because };
  async function* calls(signal) {
    let cursor;
    do {
      const { messages, next } = await post(path("routes", name, "purge"), { ...request, cursor }, signal);
      yield { done: messages };
      cursor = next ?? undefined;
    } while (cursor !== undefined);
  }
  await actOnMany(view, progress, { word: "purged", noun: "message", calls });
}

/** Pauses a part of a route, or resumes it: `ingress` or `publishing`. `effect` says what a pause of it does. */
export async function setPause(view, route, { part, isPaused, effect }) {
  const after = isPaused
    ? "It goes on on every replica within a second. What is overdue leaves at once, as fast as the target takes it."
    : `${effect} It holds on every replica, and over restarts.`;
  const verb = isPaused ? "Resume" : "Pause";
  const given = await ask({ title: `${verb} ${part} of ${route}?`, draw: () => h("p", null, after), action: `${verb} ${part}` });
  if (given === null) return;
  const request = { only: part, because: given.because };
  const problem = await view.run((signal) => post(path("routes", route, isPaused ? "resume" : "pause"), request, signal));
  if (problem) toast("bad", problem.message);
  else toast("ok", `${sentence(part)} of ${route} is ${isPaused ? "resumed" : "paused"}`);
}

/** Passes over one record of a Kafka partition that stands. `why` says where it stands. */
export async function skip(view, { name, from }, why) {
  const number = (title, key) => field(title, h("input", { name: key, type: "number", min: 0, step: 1, required: true, autocomplete: "off" }));
  const draw = () => [
    why && h("p", null, why),
    h("p", null, "The record at this offset is lost to the route. Reading goes on behind it."),
    readsSeveral(from) && field("Topic", h("input", { name: "topic", required: true, maxlength: 249, autocomplete: "off", spellcheck: "false" })),
    h("div", { class: "row" }, number("Partition", "partition"), number("Offset", "offset")),
  ];
  const given = await ask({ title: `Skip an offset of ${name}?`, draw, action: "Skip the offset", isDangerous: true });
  if (given === null) return;
  const request = { topic: given.topic || undefined, partition: Number(given.partition), offset: Number(given.offset), because: given.because };
  let skipped = null;
  const problem = await view.run(async (signal) => {
    skipped = await post(path("routes", name, "skip"), request, signal);
  });
  if (problem) toast("bad", problem.message);
  else toast("ok", `Offset ${skipped.offset} of partition ${skipped.partition} is skipped`);
}

/** A pattern that this text alone matches. */
function literal(text) {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}
