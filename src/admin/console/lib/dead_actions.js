// Redrive and drop: of dead letters that were chosen, or of all that a filter selects. A call acts on a hundred at most,
// so many calls are made, one after the other, until all is done or somebody stops it.

import { path, post } from "./api.js";
import { h } from "./dom.js";
import { actOnMany } from "./many.js";
import { targetName } from "./words.js";
import { ask, field } from "./widgets.js";

/** Dead letters of one call. */
const BATCH = 100;

const DONE = { redrive: "redriven", drop: "dropped" };

/**
 * What an action is for: `ids`, or all that `filter` selects. `words` names them (`3 dead letters`), `routes` are the
 * routes that they are of.
 */
export async function redrive(view, choice, progress, load) {
  const draw = () => [
    h("p", null, `${choice.words} are published again by the route's rules as they are now, without their former delay. One that fails again is a new dead letter.`),
    field("After", h("input", { name: "delay", placeholder: "at once", autocomplete: "off" }), "10m, 2h30m, or milliseconds"),
    choice.total > 1 && field("Spread over", h("input", { name: "spread", placeholder: "all together", autocomplete: "off" }), "due one after the other over so long: 10m, 2h30m"),
    targetField(choice.routes),
  ];
  const given = await ask({ title: `Redrive ${choice.words}?`, draw, action: "Redrive" });
  if (given !== null) await act(view, "redrive", choice, howOf(given, choice), progress, load);
}

/** Where redriven ones go, and when. */
function howOf({ target, delay, spread = "", because }, { total }) {
  const how = { target: target || undefined, delay: delay.trim() || undefined, because };
  return spread.trim() ? { ...how, spread: spread.trim(), spread_over: total } : how;
}

export async function drop(view, choice, progress, load) {
  const draw = () => h("p", null, `${choice.words} are deleted for good. This cannot be undone. Export them first if anybody may need them.`);
  const given = await ask({ title: `Drop ${choice.words}?`, draw, action: `Drop ${choice.words}`, isDangerous: true });
  if (given !== null) await act(view, "drop", choice, { because: given.because }, progress, load);
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

function act(view, verb, choice, how, progress, load) {
  const word = DONE[verb];
  let taken = 0;
  const call = async (request, signal) => {
    const begins = how.spread ? { spread_begins: taken } : {};
    const answer = await post(path("dead", verb), { ...request, ...how, ...begins }, signal);
    taken += answer.items.length;
    return answer;
  };
  async function* calls(signal) {
    if (choice.ids) {
      for (let at = 0; at < choice.ids.length; at += BATCH) {
        const { items } = await call({ ids: choice.ids.slice(at, at + BATCH) }, signal);
        yield endsOf(items, word);
      }
      return;
    }
    let cursor;
    do {
      const { items, next } = await call({ filter: choice.filter, cursor }, signal);
      yield endsOf(items, word);
      cursor = next;
    } while (cursor);
  }
  return actOnMany(view, progress, { word, noun: "dead letter", total: choice.total, calls, load });
}

function endsOf(items, word) {
  const of = (...results) => items.filter(({ result }) => results.includes(result));
  return { done: of(word).length, gone: of("unknown").length, stayed: of("refused", "ambiguous") };
}
