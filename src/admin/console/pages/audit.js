// Audit: who did what through the API, newest first.

import { getPage, path } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { badge } from "../lib/icons.js";
import { name, visible, visibleText } from "../lib/text.js";
import { announceList, empty, messageLink, pageHead, pager, problemBox, routeLink, section, table, when } from "../lib/widgets.js";
import { auditedCall } from "../lib/words.js";

export function auditPage(view) {
  const state = { page: null, problem: null };
  view.show(() => [
    pageHead("Audit"),
    section("What was done, what was refused, and whose bodies were shown", { key: "audit", aside: h("span", { class: "muted" }, "newest first, over all replicas") }, list(view.params, state)),
  ]);
  view.redrawLive();
  view.run(async (signal) => {
    state.page = await getPage(path("audit"), view.params, signal);
    announceList(state.page, "entry", "entries");
  }).then((problem) => {
    state.problem = problem;
  });
}

function list(params, { page, problem }) {
  if (problem) return problemBox(problem);
  if (page === null) return h("p", { class: "muted" }, "Asking …");
  if (page.items.length === 0) return empty("Nobody has changed anything yet.", h("p", null, "Each cancel, move, pause, redrive and look at a body is noted here, by the console, the command line or the API."));
  const columns = [
    { title: "When", class: "time" }, { title: "Who" }, { title: "What", class: "words" }, { title: "Result", class: "words" }, { title: "Status" }, { title: "From" },
  ];
  const rows = page.items.map((entry, i) => ({
    key: `${entry.at_ms} ${entry.call} ${i}`,
    cells: [when(entry.at_ms), entry.who, what(entry), visible(entry.result), status(entry.status), h("bdi", null, entry.from)],
  }));
  return [
    table({ caption: "Audited calls, newest first", columns, rows, class: "cards" }),
    pager({ segments: ["audit"], params, next: page.next, shown: page.items.length, noun: "entry", plural: "entries" }),
  ];
}

function what({ call, subject, because }) {
  const known = auditedCall(call);
  const words = known === null ? h("code", null, visible(call)) : [
    known.words, " ",
    known.kind === "message" && [messageLink(known.route, known.id), " of "],
    known.route && routeLink(known.route),
  ];
  return h("span", { title: visibleText(call) }, words, subject && h("p", { class: "subject" }, name(subject)), because && h("p", { class: "because" }, visible(because)));
}

function status(text) {
  if (text === "") return badge("warn", "no end");
  return badge(text.startsWith("2") ? "ok" : "bad", text);
}
