// Messages: find one by its id, or look through those that wait in the order in which they fall due.

import { Problem, get, getPage, path } from "../lib/api.js";
import { bytes, inputMoment, momentOfInput } from "../lib/format.js";
import { h } from "../lib/dom.js";
import { badge } from "../lib/icons.js";
import { overview } from "../lib/live.js";
import { go } from "../lib/router.js";
import { name, visibleText } from "../lib/text.js";
import { announceList, delayExample, empty, field, messageLink, pageHead, pager, problemBox, routeLink, routeSelect, section, table, when } from "../lib/widgets.js";
import { messageState } from "../lib/words.js";

export function messagesPage(view) {
  const state = { page: null, problem: null, found: null, notFound: null };
  view.show(() => [
    pageHead("Messages"),
    search(view, state),
    section("Waiting, by due time", { key: "waiting", aside: h("button", { type: "button", class: "quiet", onclick: () => load(view, state) }, "Refresh") }, filters(view.params), list(view.params, state)),
  ]);
  view.redrawLive();
  load(view, state);
}

async function load(view, state) {
  state.problem = await view.run(async (signal) => {
    state.page = await getPage(path("messages"), view.params, signal);
    announceList(state.page, "message");
  });
}

function search(view, state) {
  const submit = async (event) => {
    event.preventDefault();
    const { id, route } = Object.fromEntries(new FormData(event.currentTarget));
    if (id === "") return;
    if (route !== "") return go(["messages", route, id]);
    state.notFound = await view.run(async (signal) => {
      state.found = await findEverywhere(id, signal);
    });
    if (state.notFound === null && state.found.length === 1) go(["messages", state.found[0].route, id]);
  };
  return section("Find a message", { key: "search" },
    h("form", { class: "row", role: "search", onsubmit: submit },
      field("Id", h("input", { type: "search", name: "id", class: "id-input", autocomplete: "off", spellcheck: "false", placeholder: "order-7, or a ~ id" })),
      field("Route", routeSelect({ routes: overview()?.routes ?? [], value: "", all: "All routes" })),
      h("button", { type: "submit", class: "primary" }, "Find")),
    problemBox(state.notFound),
    state.found?.length > 1 && h("div", { role: "status" }, h("p", null, "Several routes have a message of this id:"),
      h("ul", { class: "found" }, state.found.map((message) =>
        h("li", { key: message.route }, messageLink(message.route, message.id), " on ", routeLink(message.route), " ", badge(messageState(message).badge, messageState(message).word))))));
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

function filters({ route, from, to }) {
  const submit = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.currentTarget));
    go(["messages"], { route: given.route, from: momentOfInput(given.from), to: momentOfInput(given.to) });
  };
  const input = (name, value) => h("input", { type: "datetime-local", step: 1, name, value: value ? inputMoment(Number(value)) : "" });
  return h("form", { class: "row", onsubmit: submit },
    field("Route", routeSelect({ routes: overview()?.routes ?? [], value: route ?? "", all: "All routes" })),
    field("Due from", input("from", from)),
    field("Due to", input("to", to)),
    h("button", { type: "submit" }, "Filter"),
    (route || from || to) && h("a", { class: "button quiet", href: "#/messages" }, "Clear"));
}

function list(params, { page, problem }) {
  if (problem) return problemBox(problem);
  if (page === null) return h("p", { class: "muted" }, "Asking …");
  if (page.items.length === 0 && !page.next) return nothing(params);
  const columns = [
    { title: "Message" }, { title: "Route" }, { title: "Due", class: "time" }, { title: "State" },
    { title: "Attempt", class: "num" }, { title: "Key" }, { title: "Size", class: "num" }, { title: "Target" },
  ];
  const rows = page.items.map((message) => {
    const { word, badge: kind } = messageState(message);
    return {
      key: `${message.route} ${message.id}`,
      cells: [
        messageLink(message.route, message.id),
        routeLink(message.route),
        when(message.due_ms),
        badge(kind, word),
        message.attempt,
        message.key ? name(message.key) : "–",
        bytes(message.size),
        name(message.target),
      ],
    };
  });
  return [
    table({ caption: "Messages that wait, in due order", columns, rows, class: "cards" }),
    pager({ segments: ["messages"], params, next: page.next, shown: page.items.length, noun: "message" }),
  ];
}

function nothing({ route, from, to }) {
  if (route || from || to) return empty("No message waits that fits the filter.", h("p", null, h("a", { href: "#/messages" }, "Show all that wait")));
  return empty("No message waits.", delayExample());
}
