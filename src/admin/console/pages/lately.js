// Lately: what became of a route's messages, newest first, as far back as its trail goes.

import { getPage, path } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { badge } from "../lib/icons.js";
import { onLive, overview } from "../lib/live.js";
import { go } from "../lib/router.js";
import { eventDetails } from "../lib/content.js";
import { announceList, empty, field, messageLink, pageHead, problemBox, routeSelect, section, table, when } from "../lib/widgets.js";
import { eventBadge, eventWord } from "../lib/words.js";

/** Time between two looks at the list. */
const REFRESH_MS = 5_000;

export function latelyPage(view) {
  const state = { page: null, problem: null };
  const { refresh } = view.looks(async () => {
    const route = routeOf(view);
    if (route === undefined) return;
    state.problem = await view.run(async (signal) => {
      state.page = await getPage(path("routes", route, "trail"), {}, signal);
    });
  });
  view.show(() => [
    pageHead("Lately"),
    section("What became of messages, newest first", { key: "lately" }, filter(view), list(routeOf(view), state)),
  ]);
  view.redrawLive();
  view.every(REFRESH_MS, refresh);
  // Which route is the first is known a little later than the page.
  view.signal.addEventListener("abort", onLive(() => state.page === null && refresh()));
  refresh().then(() => state.page && announceList(state.page, "event"));
}

/** The route that is shown: the chosen one, else the first. Unknown before the routes are. */
function routeOf({ params }) {
  return params.route ?? overview()?.routes[0]?.name;
}

function filter(view) {
  const choose = (event) => go(["lately"], { route: event.currentTarget.value });
  return h("div", { class: "row" }, field("Route", routeSelect({ routes: overview()?.routes ?? [], value: routeOf(view) ?? "", onchange: choose })));
}

function list(route, { page, problem }) {
  if (problem) return problemBox(problem);
  if (page === null) return h("p", { class: "muted" }, "Asking …");
  if (page.items.length === 0) {
    return empty("The trail of this route is empty.", h("p", null, "It keeps what left for as long as ", h("code", null, "history"), " says, an hour by default."));
  }
  const columns = [{ title: "Message" }, { title: "When", class: "time" }, { title: "Event" }, { title: "Details", class: "words" }];
  const rows = page.items.map((event, i) => ({
    key: `${event.id} ${event.at_ms} ${event.event} ${i}`,
    cells: [messageLink(route, event.id), when(event.at_ms), badge(eventBadge(event.event), eventWord(event.event)), eventDetails(event)],
  }));
  return table({ caption: "What became of messages, newest first", columns, rows, class: "cards" });
}
