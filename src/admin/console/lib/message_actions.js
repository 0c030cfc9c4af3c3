// What is done by hand to messages that were chosen from a list: cancel them, or move them by a span.

import { Problem, command, path } from "./api.js";
import { counted } from "./format.js";
import { h } from "./dom.js";
import { actOnMany } from "./many.js";
import { ask } from "./widgets.js";

const UNIT_MS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

export async function cancelMessages(view, messages, progress, load) {
  const words = counted(messages.length, "message");
  const draw = () => h("p", null, `${words} will not be published. This cannot be undone.`);
  const given = await ask({ title: `Cancel ${words}?`, draw, action: `Cancel ${words}`, isDangerous: true });
  if (given === null) return;
  const { because } = given;
  await each(view, messages, progress, load, "cancelled", () => ["DELETE", { because }]);
}

export async function moveMessages(view, messages, progress, load) {
  const words = counted(messages.length, "message");
  const draw = () => [
    h("p", null, "Each keeps its distance from the others. One that would be due before now is due at once."),
    h("div", { class: "row" },
      h("select", { name: "way", "aria-label": "Direction" }, h("option", { value: "1" }, "later by"), h("option", { value: "-1" }, "earlier by")),
      h("input", { type: "number", name: "amount", min: 1, step: 1, value: "1", required: true, "aria-label": "Amount" }),
      unitSelect("h")),
  ];
  const given = await ask({ title: `Move ${words}`, draw, action: `Move ${words}` });
  if (given === null) return;
  const spanMs = Number(given.way) * Number(given.amount) * UNIT_MS[given.unit];
  // The API takes no moment before 1973. Whatever is over means now.
  const moved = (message) => Math.max(1e11, message.due_ms + spanMs);
  await each(view, messages, progress, load, "moved", (message) => ["PATCH", { body: { due_ms: moved(message) }, because: given.because }]);
}

/** A choice of a unit of time, as a delay is written. */
export function unitSelect(chosen, attrs = {}) {
  return h("select", { name: "unit", value: chosen, "aria-label": "Unit", ...attrs },
    [["s", "seconds"], ["m", "minutes"], ["h", "hours"], ["d", "days"]].map(([unit, title]) => h("option", { value: unit }, title)));
}

/** One call for each message, which is still as the list shows it: another one that has taken its name meanwhile stays. */
function each(view, messages, progress, load, word, request) {
  async function* calls() {
    for (const message of messages) {
      const [method, what] = request(message);
      yield await endOf(() => command(method, path("routes", message.route, "messages", message.id), `"${message.version}"`, what));
    }
  }
  return actOnMany(view, progress, { word, noun: "message", total: messages.length, calls, load });
}

/** What became of a message: one that is gone or has changed is no reason to stop. */
async function endOf(call) {
  try {
    await call();
    return { done: 1 };
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    if (problem.status === 404) return { gone: 1 };
    if (problem.status === 409 || problem.status === 412 || problem.status === 400) return { stayed: [{ error: problem.message }] };
    throw problem;
  }
}
