// Retries: messages whose publish failed, and that will be tried again.

import { command, getPage, path } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { overview } from "../lib/live.js";
import { go } from "../lib/router.js";
import { name, visible } from "../lib/text.js";
import { ago, announceList, empty, field, messageLink, pageHead, pager, problemBox, routeLink, routeSelect, section, table, toast, when } from "../lib/widgets.js";

/** Time between two looks at the list. */
const REFRESH_MS = 5_000;

export function retriesPage(view) {
  const state = { page: null, problem: null };
  const { refresh, load } = view.looks(async () => {
    state.problem = await view.run(async (signal) => {
      state.page = await getPage(path("retries"), view.params, signal);
    });
  });
  view.show(() => [
    pageHead("Retries"),
    section("Failed, and tried again", { key: "retries" }, filter(view.params), list(view, state, load)),
  ]);
  view.redrawLive();
  view.every(REFRESH_MS, refresh);
  refresh().then(() => state.page && announceList(state.page, "message"));
}

function filter({ route }) {
  return h("div", { class: "row" },
    field("Route", routeSelect({ routes: overview()?.routes ?? [], value: route ?? "", all: "All routes", onchange: (event) => go(["retries"], { route: event.currentTarget.value }) })));
}

function list(view, { page, problem }, load) {
  if (problem) return problemBox(problem);
  if (page === null) return h("p", { class: "muted" }, "Asking …");
  if (page.items.length === 0 && !page.next) {
    return empty("Nothing waits for another try.", h("p", null, "A message that its target refuses is tried again, later each time. After retry.attempts failures it is a ", h("a", { href: "#/dead" }, "dead letter"), "."));
  }
  const columns = [
    { title: "Message" }, { title: "Route" }, { title: "Next try", class: "time" }, { title: "Failures", class: "num" },
    { title: "Last error", class: "words" }, { title: "Target" }, ...(view.mayWrite ? [{ title: "Action", hidden: true, class: "act" }] : []),
  ];
  const rows = page.items.map((message) => ({
    key: `${message.route} ${message.id}`,
    cells: [
      messageLink(message.route, message.id),
      routeLink(message.route),
      when(message.due_ms),
      message.failures,
      lastError(message),
      name(message.target),
      ...(view.mayWrite ? [h("button", { type: "button", "aria-label": `Try ${message.id} now`, onclick: () => tryNow(view, message, load) }, "Try now")] : []),
    ],
  }));
  return [
    table({ caption: "Messages that failed and wait for their next try", columns, rows, class: "cards" }),
    pager({ segments: ["retries"], params: view.params, next: page.next, shown: page.items.length, noun: "message" }),
  ];
}

function lastError({ last_error: error }) {
  if (!error) return "–";
  return [h("code", null, error.reason), " ", ago(error.at_ms), h("p", { class: "error-words" }, visible(error.error))];
}

/** Makes this very message due now: another one that has taken its name meanwhile stays. */
async function tryNow(view, { route, id, version }, load) {
  const problem = await view.run(() => command("PATCH", path("routes", route, "messages", id), `"${version}"`, { body: { delay: 0 } }));
  await load();
  if (problem) toast("bad", problem.message);
  else toast("ok", "It is tried now");
}
