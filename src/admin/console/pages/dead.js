// Dead letters: why they are dead, in groups; the list; redrive, drop and export.

import { getPage, path } from "../lib/api.js";
import { drop, redrive } from "../lib/dead_actions.js";
import { bytes, count, counted, inputMoment, momentOfInput, sentence, timeOfDay } from "../lib/format.js";
import { nowMs } from "../lib/clock.js";
import { h } from "../lib/dom.js";
import { overview } from "../lib/live.js";
import { progressView } from "../lib/many.js";
import { address, go } from "../lib/router.js";
import { name, visible } from "../lib/text.js";
import { CONDITIONS, ago, announceList, conditionFields, empty, field, pageHead, problemBox, routeLink, routeSelect, section, table, when } from "../lib/widgets.js";
import { DEAD_REASON_WORDS, deadReason } from "../lib/words.js";

/** Dead letters that are loaded at once. */
const LOADED = 1_000;
/** Rows that are drawn at once. */
const DRAWN = 100;

export function deadPage(view) {
  const state = { items: null, next: null, asOf: null, drawn: DRAWN, problem: null, chosen: new Set(), group: null, progress: {}, export: null, isLoading: false };
  const page = { view, state, filter: filterOf(view.params), cursor: null };
  const { refresh, load } = view.looks(() => look(page));
  page.load = () => {
    page.cursor = null;
    return load();
  };
  // The same page, asked for twice, would be listed twice.
  page.loadNext = () => {
    if (state.isLoading) return;
    page.cursor = state.next;
    refresh();
  };
  view.show(() => [
    pageHead("Dead letters"),
    filters(view),
    problemBox(state.problem),
    progressView(state.progress, () => view.redraw()),
    state.items === null ? !state.problem && h("p", { class: "muted" }, "Asking …")
      : state.items.length === 0 && state.next === null ? nothing(view.params)
        : [groups(page), letters(page)],
  ]);
  view.redrawLive();
  page.load();
}

function filterOf(params) {
  return Object.fromEntries(["route", "reason", "from", "to", ...CONDITIONS].filter((name) => params[name]).map((name) => [name, params[name]]));
}

/** The filter of an action: there may be several headers. */
function actionFilter({ header, ...filter }) {
  return header ? { ...filter, header: [header] } : filter;
}

/** Loads what comes after the page's cursor, or all anew if there is none. */
async function look({ view, state, filter, cursor }) {
  state.isLoading = true;
  view.redraw();
  state.problem = await view.run(async (signal) => {
    const page = await getPage(path("dead"), { ...filter, order: "newest", cursor, limit: LOADED }, signal);
    if (cursor === null) Object.assign(state, { items: [], chosen: new Set(), asOf: nowMs() });
    state.items.push(...page.items);
    state.next = page.next;
    announceList(state, "dead letter");
  });
  state.isLoading = false;
}

function filters({ params, mayWrite }) {
  const { route, reason, from, to } = params;
  const submit = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.currentTarget));
    go(["dead"], { ...given, from: momentOfInput(given.from), to: momentOfInput(given.to) });
  };
  const input = (name, value) => h("input", { type: "datetime-local", step: 1, name, value: value ? inputMoment(Number(value)) : "" });
  return h("form", { key: "filters", class: "row panel", onsubmit: submit, "aria-label": "Filter" },
    field("Route", routeSelect({ routes: overview()?.routes ?? [], value: route ?? "", all: "All routes" })),
    field("Reason", h("select", { name: "reason", value: reason ?? "" }, h("option", { value: "" }, "All reasons"),
      DEAD_REASON_WORDS.map((word) => h("option", { value: word }, word)))),
    conditionFields(params, mayWrite),
    field("Dead from", input("from", from)),
    field("Dead to", input("to", to)),
    h("button", { type: "submit" }, "Filter"),
    Object.keys(filterOf(params)).length > 0 && h("a", { class: "button quiet", href: "#/dead" }, "Clear"));
}

function nothing(params) {
  if (Object.keys(filterOf(params)).length > 0) return empty("No dead letter fits the filter.", h("p", null, h("a", { href: "#/dead" }, "Show all")));
  return empty("There are no dead letters.", h("p", null, "A message that cannot be delivered after all its tries, or that cannot be understood, is kept here with its history until somebody redrives or drops it."));
}

/** The loaded dead letters by reason and target, those with the latest death first. */
function groupsOf(items) {
  const found = new Map();
  for (const item of items) {
    const key = JSON.stringify([item.route, item.reason, item.target ?? ""]);
    const group = found.get(key) ?? { key, route: item.route, reason: item.reason, target: item.target ?? "", ids: [], last: item };
    group.ids.push(item.dead_id);
    if (item.dead_at_ms >= group.last.dead_at_ms) group.last = item;
    found.set(key, group);
  }
  return [...found.values()].sort((a, b) => b.last.dead_at_ms - a.last.dead_at_ms);
}

function groups(page) {
  const { view, state } = page;
  const columns = [
    { title: "Reason", class: "words" }, { title: "Route" }, { title: "Target" }, { title: "Count", class: "num" },
    { title: "Last", class: "time" }, { title: "Last error", class: "words" }, { title: "Choose", hidden: true, class: "act" },
  ];
  const choose = (group) => {
    state.chosen = new Set(group.ids);
    state.group = group.key;
    state.drawn = DRAWN;
    view.redraw();
  };
  const rows = groupsOf(state.items).map((group) => {
    const { words, advice } = deadReason(group.reason);
    return {
      key: group.key,
      cells: [
        [h("strong", null, sentence(words)), " ", h("code", { class: "muted" }, group.reason), advice && h("p", { class: "subject" }, advice)],
        routeLink(group.route),
        group.target === "" ? h("span", { class: "muted" }, "the route's own") : name(group.target),
        count(group.ids.length),
        ago(group.last.dead_at_ms),
        h("span", { class: "error-words" }, visible(group.last.error ?? "–")),
        h("button", { type: "button", "aria-pressed": String(state.group === group.key), onclick: () => choose(group) }, "Select"),
      ],
    };
  });
  return section("Why", { key: "groups", aside: h("div", null, h("small", null, ofTheShown(state)), " ", h("button", { type: "button", class: "quiet", onclick: () => page.load() }, "Refresh")) },
    table({ caption: "Dead letters by reason and target", columns, rows, class: "cards" }));
}

function ofTheShown({ items, next, asOf }) {
  const shown = next === null ? `all ${counted(items.length, "dead letter")}` : `of the ${count(items.length)} loaded, the newest; there are more`;
  return `${shown}, as of ${timeOfDay(asOf)}`;
}

function letters(page) {
  const { view, state } = page;
  const isChosenGroup = state.group !== null;
  const listed = isChosenGroup ? groupsOf(state.items).find(({ key }) => key === state.group)?.ids : null;
  const items = listed ? state.items.filter(({ dead_id }) => listed.includes(dead_id)) : state.items;
  const shown = items.slice(0, state.drawn);
  const more = () => {
    state.drawn += DRAWN;
    view.redraw();
  };
  const showAll = () => {
    state.group = null;
    view.redraw();
  };
  return section(listed ? "Dead letters of this group" : "Dead letters", { key: "letters", aside: listed && h("button", { type: "button", class: "quiet", onclick: showAll }, "Show all groups") },
    actions(page, items),
    table({ caption: "Dead letters, newest first", columns: columnsOf(page, items), rows: shown.map((item) => row(page, item)), head: 1, class: "cards" }),
    h("div", { class: "pager" },
      h("span", { class: "muted" }, `${count(shown.length)} of ${count(items.length)} shown`),
      shown.length < items.length && h("button", { type: "button", onclick: more }, `Show ${Math.min(DRAWN, items.length - shown.length)} more`),
      state.next !== null && h("button", { type: "button", disabled: state.isLoading, onclick: page.loadNext }, `Load the next ${count(LOADED)}`)));
}

function columnsOf({ view, state }, items) {
  const all = items.length > 0 && items.every(({ dead_id }) => state.chosen.has(dead_id));
  const toggle = () => {
    state.chosen = new Set(all ? [] : items.map(({ dead_id }) => dead_id));
    view.redraw();
  };
  return [
    { title: h("input", { type: "checkbox", checked: all, "aria-label": `Select all ${items.length}`, onchange: toggle }), class: "check" },
    { title: "Message" }, { title: "Route" }, { title: "Reason" }, { title: "Dead since", class: "time" }, { title: "Attempts", class: "num" }, { title: "Size", class: "num" }, { title: "Error", class: "words" },
  ];
}

function row({ view, state }, item) {
  const toggle = () => {
    state.chosen.delete(item.dead_id) || state.chosen.add(item.dead_id);
    view.redraw();
  };
  const label = item.id ?? item.dead_id;
  return {
    key: item.dead_id,
    class: state.chosen.has(item.dead_id) ? "chosen" : null,
    cells: [
      h("input", { type: "checkbox", checked: state.chosen.has(item.dead_id), "aria-label": `Select ${label}`, onchange: toggle }),
      h("a", { href: address(["dead", item.dead_id]) }, name(label)),
      routeLink(item.route),
      h("code", null, item.reason),
      when(item.dead_at_ms),
      count(item.attempt),
      bytes(item.size),
      h("span", { class: "error-words" }, visible(item.error ?? "–")),
    ],
  };
}

function actions(page, items) {
  const { view, state, filter } = page;
  const ids = [...state.chosen];
  const chosen = { ids, total: ids.length, words: counted(ids.length, "dead letter"), routes: routesOf(state.items.filter(({ dead_id }) => state.chosen.has(dead_id))) };
  const isWhole = state.next === null;
  const everything = {
    filter: actionFilter(filter), total: isWhole ? state.items.length : undefined, routes: routesOf(isWhole || filter.route ? state.items : []),
    words: `all ${isWhole ? counted(state.items.length, "dead letter") : `dead letters that fit the filter (more than ${count(state.items.length)})`}`,
  };
  const reload = () => {
    state.group = null;
    return page.load();
  };
  const run = (act, choice) => () => act(view, choice, state.progress, reload);
  const none = ids.length === 0 || state.progress.isRunning;
  return h("div", { class: "action-bar" },
    h("strong", { class: "chosen-count", "aria-live": "polite" }, `${count(ids.length)} selected`),
    view.mayWrite && [
      h("button", { type: "button", disabled: none, onclick: run(redrive, chosen) }, "Redrive …"),
      h("button", { type: "button", class: "danger", disabled: none, onclick: run(drop, chosen) }, "Drop …"),
    ],
    h("span", { class: "grow" }),
    exportMenu(page, ids.length > 0 ? state.items.filter(({ dead_id }) => state.chosen.has(dead_id)) : items),
    view.mayWrite && !isWhole && [
      h("button", { type: "button", disabled: state.progress.isRunning, onclick: run(redrive, everything) }, "Redrive all that fit …"),
      h("button", { type: "button", class: "danger", disabled: state.progress.isRunning, onclick: run(drop, everything) }, "Drop all that fit …"),
    ]);
}

function routesOf(items) {
  const names = new Set(items.map(({ route }) => route));
  return (overview()?.routes ?? []).filter((route) => names.has(route.name));
}

/** Saves what is loaded as JSON Lines, or reads it again with headers and bodies first. */
function exportMenu({ view, state, filter }, items) {
  const plain = () => save(items);
  const whole = async () => {
    if (state.export !== null) return;
    const wanted = new Set(items.map(({ dead_id }) => dead_id));
    state.export = 0;
    view.redraw();
    state.problem = await view.run(async (signal) => {
      const full = [];
      let cursor = null;
      do {
        const page = await getPage(path("dead"), { ...filter, order: "newest", body: true, cursor, limit: 100 }, signal);
        full.push(...page.items.filter(({ dead_id }) => wanted.has(dead_id)));
        cursor = page.next;
        state.export = full.length;
        view.redraw();
      } while (cursor !== null && full.length < wanted.size);
      save(full);
    });
    state.export = null;
    view.redraw();
  };
  if (state.export !== null) return h("span", { class: "muted", role: "status" }, `read ${count(state.export)} of ${count(items.length)} …`);
  return [
    h("button", { type: "button", onclick: plain }, `Export ${count(items.length)}`),
    view.mayWrite && h("button", { type: "button", onclick: whole }, "Export with bodies"),
  ];
}

function save(items) {
  const lines = items.map((item) => `${JSON.stringify(item)}\n`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  link.download = "dead-letters.jsonl";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
