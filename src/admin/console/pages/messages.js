// Messages: those that wait, in the order in which they fall due; and those of an id that was looked for.

import { Problem, get, getPage, path } from "../lib/api.js";
import { keyWords } from "../lib/content.js";
import { bytes, count, inputMoment, momentOfInput, timeOfDay } from "../lib/format.js";
import { h } from "../lib/dom.js";
import { badge } from "../lib/icons.js";
import { overview } from "../lib/live.js";
import { nowMs } from "../lib/clock.js";
import { progressView } from "../lib/many.js";
import { cancelMessages, moveMessages } from "../lib/message_actions.js";
import { go, goInstead } from "../lib/router.js";
import { name, visibleText } from "../lib/text.js";
import { CONDITIONS, announceList, conditionFields, delayExample, empty, field, messageLink, pageHead, pager, problemBox, routeLink, routeSelect, section, table, when } from "../lib/widgets.js";
import { messageState } from "../lib/words.js";

/** Time between two looks at the list. */
const REFRESH_MS = 5_000;
/** Messages that are shown for the beginning of an id, and for a key. */
const MOST_ALIKE = 20;

export function messagesPage(view) {
  const state = { page: null, asOf: null, problem: null, chosen: new Map(), progress: {}, found: null, notFound: null, alike: [] };
  const { find, ...shown } = view.params;
  const { refresh, load } = view.looks(async () => {
    state.problem = await view.run(async (signal) => {
      state.page = await getPage(path("messages"), shown, signal);
      state.asOf = nowMs();
      keepChosen(state);
    });
  });
  view.show(() => [
    pageHead("Messages"),
    find !== undefined && foundOf(find, state),
    section("Waiting, by due time", { key: "waiting", aside: state.asOf !== null && h("small", null, `as of ${timeOfDay(state.asOf)}`) },
      filters(view, shown), progressView(state.progress, () => view.redraw()), list(view, shown, state, load)),
  ]);
  view.redrawLive();
  // Each search in bodies is noted in the audit: none is made unasked.
  if (!shown.contains) view.every(REFRESH_MS, refresh);
  refresh().then(() => state.page && announceList(state.page, "message"));
  if (find !== undefined) findMessage(view, find, state);
}

/** Of the chosen messages those that still wait as they did when they were chosen. */
function keepChosen({ page, chosen }) {
  const versions = new Map(page.items.map((message) => [keyOf(message), message.version]));
  for (const [key, { version }] of chosen) {
    if (versions.get(key) !== version) chosen.delete(key);
  }
}

function keyOf({ route, id }) {
  return JSON.stringify([route, id]);
}

/** Looks for an id on all routes, and opens its message if there is one alone. */
async function findMessage(view, id, state) {
  state.notFound = await view.run(async (signal) => {
    state.found = await findEverywhere(id, signal);
  });
  if (state.found?.length === 1) goInstead(["messages", state.found[0].route, id]);
  else if (state.notFound?.status === 404) await findAlike(view, id, state);
}

/** Looks for what waits and whose id begins so, or whose key it is. */
async function findAlike(view, text, state) {
  const problem = await view.run(async (signal) => {
    for (const filter of [{ id_prefix: text }, { key: text }]) {
      const { items } = await getPage(path("messages"), { ...filter, limit: MOST_ALIKE }, signal);
      state.alike.push(...items);
    }
  });
  if (problem) state.notFound = problem;
}

/** The messages of this id, of all routes. Each route is asked at the same time. */
async function findEverywhere(id, signal) {
  const { items: routes } = await get(path("routes"), signal);
  const answers = await Promise.allSettled(routes.map((route) => get(path("routes", route.name, "messages", id), signal)));
  const found = answers.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
  if (found.length > 0) return found;
  const problems = answers.map(({ reason }) => reason);
  const unlike = problems.find((problem) => problem.status !== 404);
  if (unlike) throw unlike;
  const nearest = problems.find((problem) => problem.nearest)?.nearest;
  const hint = nearest ? ` Did you mean ${visibleText(nearest)}?` : "";
  throw new Problem({ title: "Not found", detail: `no route has the message ${visibleText(id)}: it was never there, or is gone.${hint}` }, 404);
}

function foundOf(id, { found, notFound, alike }) {
  return section(["Found for ", name(id)], { key: "found" },
    alike.length === 0 && problemBox(notFound),
    alike.length > 0 && h("div", { role: "status" }, h("p", null, "No message has this id. It is the beginning of these, or their key:"), messageList(alike)),
    found === null && notFound === null && h("p", { class: "muted" }, "Asking …"),
    found !== null && h("div", { role: "status" }, h("p", null, "Several routes have a message of this id:"),
      messageList(found)));
}

function messageList(messages) {
  return h("ul", { class: "found" }, messages.map((message) =>
    h("li", { key: keyOf(message) }, messageLink(message.route, message.id), " on ", routeLink(message.route), " ", badge(messageState(message).badge, messageState(message).word),
      message.key && [" key ", keyWords(message)])));
}

function filters(view, params) {
  const { route, from, to } = params;
  const submit = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.currentTarget));
    go(["messages"], { ...given, from: momentOfInput(given.from), to: momentOfInput(given.to) });
  };
  const input = (name, value) => h("input", { type: "datetime-local", step: 1, name, value: value ? inputMoment(Number(value)) : "" });
  return h("form", { class: "row", onsubmit: submit },
    field("Route", routeSelect({ routes: overview()?.routes ?? [], value: route ?? "", all: "All routes" })),
    conditionFields(params, view.mayWrite),
    field("Due from", input("from", from)),
    field("Due to", input("to", to)),
    h("button", { type: "submit" }, "Filter"),
    isFiltered(params) && h("a", { class: "button quiet", href: "#/messages" }, "Clear"));
}

function list(view, params, state, load) {
  const { page, problem } = state;
  if (page === null) return problem ? problemBox(problem) : h("p", { class: "muted" }, "Asking …");
  if (page.items.length === 0 && !page.next) return [problemBox(problem), nothing(params)];
  return [
    problemBox(problem),
    view.mayWrite && actions(view, state, load),
    table({ caption: "Messages that wait, in due order", columns: columnsOf(view, state), rows: page.items.map((message) => row(view, state, message)), head: view.mayWrite ? 1 : 0, class: "cards" }),
    pager({ segments: ["messages"], params, next: page.next, shown: page.items.length, noun: "message" }),
  ];
}

function actions(view, { chosen, progress }, load) {
  const messages = [...chosen.values()];
  const none = messages.length === 0 || progress.isRunning;
  const run = (act) => () => act(view, messages, progress, load);
  return h("div", { class: "action-bar" },
    h("strong", { class: "chosen-count", "aria-live": "polite" }, `${count(messages.length)} selected`),
    h("button", { type: "button", disabled: none, onclick: run(moveMessages) }, "Move …"),
    h("button", { type: "button", class: "danger", disabled: none, onclick: run(cancelMessages) }, "Cancel messages …"));
}

/** Only what waits can be moved or cancelled. */
function canBeChosen({ state }) {
  return state === "pending";
}

function columnsOf(view, { page, chosen }) {
  const choosable = page.items.filter(canBeChosen);
  const all = choosable.length > 0 && choosable.every((message) => chosen.has(keyOf(message)));
  const toggle = () => {
    chosen.clear();
    if (!all) choosable.forEach((message) => chosen.set(keyOf(message), message));
    view.redraw();
  };
  return [
    ...(view.mayWrite ? [{ title: h("input", { type: "checkbox", checked: all, "aria-label": `Select all ${choosable.length}`, onchange: toggle }), class: "check" }] : []),
    { title: "Message" }, { title: "Route" }, { title: "Due", class: "time" }, { title: "State" },
    { title: "Attempt", class: "num" }, { title: "Key" }, { title: "Size", class: "num" }, { title: "Target" },
  ];
}

function row(view, { chosen }, message) {
  const key = keyOf(message);
  const { word, badge: kind } = messageState(message);
  const toggle = () => {
    chosen.delete(key) || chosen.set(key, message);
    view.redraw();
  };
  return {
    key,
    class: chosen.has(key) ? "chosen" : null,
    cells: [
      ...(view.mayWrite ? [h("input", { type: "checkbox", checked: chosen.has(key), disabled: !canBeChosen(message), "aria-label": `Select ${message.id}`, onchange: toggle })] : []),
      messageLink(message.route, message.id),
      routeLink(message.route),
      when(message.due_ms),
      badge(kind, word),
      message.attempt,
      message.key ? keyWords(message) : "–",
      bytes(message.size),
      name(message.target),
    ],
  };
}

function isFiltered(params) {
  return ["route", "from", "to", ...CONDITIONS].some((name) => params[name]);
}

function nothing(params) {
  if (isFiltered(params)) return empty("No message waits that fits the filter.", h("p", null, h("a", { href: "#/messages" }, "Show all that wait")));
  return empty("No message waits.", delayExample());
}
