// One route: its flow, what falls due, its configuration, and what is done to it by hand.

import { get, getPage, path, query } from "../lib/api.js";
import { count, lateness, rate, sentence, span } from "../lib/format.js";
import { h } from "../lib/dom.js";
import { dueChart } from "../lib/due_chart.js";
import { badge } from "../lib/icons.js";
import { freshness, overview, seriesOf } from "../lib/live.js";
import { progressView } from "../lib/many.js";
import { address } from "../lib/router.js";
import { purge, setPause, skip } from "../lib/route_actions.js";
import { staleNotice, troubleList, troubles } from "../lib/troubles.js";
import { lines, peak, roundPeak } from "../lib/charts.js";
import { empty, messageLink, pageHead, pausedBy, problemBox, section, table, way, when } from "../lib/widgets.js";
import { endpoint, messageState, pauseReason } from "../lib/words.js";

/** Time between two looks at what falls due. */
const DUE_MS = 2_000;

export function routePage(view) {
  const [, name] = view.segments;
  const state = { histogram: undefined, next: null, window: "minute", problem: null, purge: {} };
  const choose = (chosen) => {
    state.window = chosen;
    view.redraw();
  };
  const refresh = async () => {
    state.problem = await view.run(async (signal) => {
      [state.histogram, state.next] = await Promise.all([
        get(path("histogram") + query({ route: name }), signal),
        getPage(path("messages"), { route: name, limit: 10 }, signal),
      ]);
    });
    state.histogram ??= null;
  };
  view.show(() => {
    const now = overview();
    const route = now?.routes.find((one) => one.name === name);
    if (now === null) return [pageHead(name), problemBox(freshness().problem) ?? h("p", { class: "muted" }, "Asking the replica …")];
    if (route === undefined) return [pageHead(name), noRoute(now.routes)];
    const series = seriesOf(name);
    return [
      pageHead(name, view.mayWrite && h("a", { class: "button", href: address(["send"], { route: name }) }, "Send a test message"), way(route)),
      staleNotice() ?? troubleList(view, troubles(now, name)),
      tiles(route),
      h("div", { class: "columns" },
        rates(series, route), latenesses(series),
        h("div", { class: "stack" }, dueChart(state.histogram, state.window, choose), byHand(view, state, now, route)),
        dueNext(state, name)),
      configuration(route),
    ];
  });
  view.redrawLive();
  view.every(DUE_MS, refresh);
  refresh();
}

function noRoute(routes) {
  return empty("There is no such route.", h("p", null, "The configuration has: ",
    routes.map((route, i) => [i > 0 && ", ", h("a", { href: address(["routes", route.name]) }, route.name)])));
}

function tiles(route) {
  const shown = [
    ["In", rate(route.rate_in), "a second"],
    ["Out", rate(route.rate_out), "a second"],
    ["Pending", h("a", { href: address(["messages"], { route: route.name }) }, count(route.pending)), "wait in the store"],
    ["In flight", count(route.in_flight), "at this replica"],
    ["Dead", h("a", { href: address(["dead"], { route: route.name }) }, count(route.dead)), "dead letters"],
    ["Overdue", route.oldest_overdue_s >= 1 ? h("span", { class: "alarm" }, span(route.oldest_overdue_s * 1000)) : "–", "the oldest"],
    ["Late p50", lateness(route.late_p50_ms), "of the last seconds"],
    ["Late p99", lateness(route.late_p99_ms), "of the last seconds"],
  ];
  return h("dl", { class: "tiles" }, shown.map(([title, value, note]) =>
    h("div", { key: title }, h("dt", null, title), h("dd", null, value), h("dd", { class: "note" }, note))));
}

function rates({ rate_in, rate_out }) {
  const max = roundPeak(peak(rate_in, rate_out));
  const series = [{ points: rate_in, kind: "other" }, { points: rate_out, kind: "main" }];
  return section("Messages a second", { key: "rates", aside: h("span", { class: "legend" }, h("span", { class: "key other" }, "in"), h("span", { class: "key main" }, "out")) },
    chart(series, max, `${count(max)} a second`, `Rates over five minutes: in at most ${rate(peak(rate_in))}, out at most ${rate(peak(rate_out))} a second`));
}

function latenesses({ late_p99_ms }) {
  const max = roundPeak(peak(late_p99_ms));
  return section("Lateness p99", { key: "lateness" },
    chart([{ points: late_p99_ms, kind: "main" }], max, lateness(max).replace(".0", ""), `Lateness p99 over five minutes: at most ${lateness(peak(late_p99_ms))}`));
}

function chart(series, max, top, label) {
  return h("div", { class: "chart-frame tall" },
    h("span", { class: "chart-top", "aria-hidden": "true" }, top),
    lines(series, { width: 600, height: 120, max, label }),
    h("div", { class: "ticks", "aria-hidden": "true" }, ["5 min ago", "4", "3", "2", "1", "now"].map((tick) => h("span", null, tick))));
}

/** What is done to the route by hand: pauses, purge, and skipping where a partition stands. */
function byHand(view, state, now, route) {
  return section("By hand", { key: "by-hand" },
    h("ul", { class: "switches" },
      pauses(view, route),
      standing(view, now, route),
      action("Waiting", badge("idle", `${count(route.pending)} pending`),
        view.mayWrite && h("button", { type: "button", disabled: state.purge.isRunning, onclick: () => purge(view, route, state.purge) }, "Purge …"))),
    progressView(state.purge, () => view.redraw()));
}

function action(title, shown, button) {
  return h("li", { key: title }, h("h3", null, title), shown, button);
}

function pauses(view, route) {
  const isPausedByHand = route.paused.includes("paused");
  const others = route.paused.filter((reason) => reason !== "paused");
  const { place } = endpoint(route.from);
  const rows = [
    {
      part: "ingress", isPaused: isPausedByHand, title: "Ingress",
      state: isPausedByHand ? badge("paused", "paused by hand") : others.length > 0 ? badge("warn", "waits: ", others.map((reason) => pauseReason(reason).words).join(", ")) : badge("ok", "reads ", place),
      effect: `Nothing is read from ${place} until it is resumed. Producers can go on: the broker keeps what they send.`,
    },
    {
      part: "publishing", isPaused: route.publishing_paused, title: "Publishing",
      state: route.publishing_paused ? badge("paused", "paused by hand") : badge("ok", "running"),
      effect: "Nothing of the route is published until it is resumed. What falls due waits in the store.",
    },
  ];
  const by = (part) => route.pauses.filter((pause) => pause.part === part).map(pausedBy);
  return rows.map(({ part, isPaused, title, state, effect }) => action(title, [state, by(part)],
    view.mayWrite && h("button", { type: "button", onclick: () => setPause(view, route.name, { part, isPaused, effect }) },
      `${isPaused ? "Resume" : "Pause"} ${part}`)));
}

/** A partition that stands at a record which cannot be opened. */
function standing(view, now, route) {
  if (!route.paused.includes("undecodable")) return null;
  const why = now.parts.find(({ name }) => name === `source:${route.name}`)?.why;
  return action("Standing", badge("bad", "a record cannot be opened"),
    view.mayWrite && h("button", { type: "button", onclick: () => skip(view, route, why && sentence(why)) }, "Skip …"));
}

function dueNext({ next, problem }, route) {
  const columns = [{ title: "Message" }, { title: "Due", class: "time" }, { title: "State" }];
  const rows = next?.items.map((message) => {
    const { word, badge: kind } = messageState(message);
    return { key: message.id, cells: [messageLink(route, message.id), when(message.due_ms), badge(kind, word)] };
  });
  return section("Due next", { key: "next", aside: h("a", { href: address(["messages"], { route }) }, "All messages") },
    problemBox(problem),
    next === null ? !problem && h("p", { class: "muted" }, "Asking …")
      : rows.length === 0 ? empty("Nothing waits.", h("p", null, "Messages with a delay header wait here until they are due."))
        : table({ caption: "Messages due next", columns, rows }));
}

function configuration(route) {
  const [source, target] = [endpoint(route.from), endpoint(route.to)];
  const pairs = [
    ["from", `${source.place}, ${source.at}`],
    route.from.group !== undefined && ["from.group", route.from.group],
    route.from.start !== undefined && ["from.start", route.from.start],
    route.from.prefetch !== undefined && ["from.prefetch", route.from.prefetch],
    ["to", `${target.place}, ${target.at}`],
    ["allow_targets", route.allow_targets.join(", ") || "none"],
    route.dead_letter_to && ["dead_letter_to", route.dead_letter_to],
    ...flattened(route.policy),
  ].filter(Boolean);
  return section("Configuration", { key: "configuration" },
    h("dl", { class: "settings" }, pairs.map(([key, value]) =>
      h("div", { key }, h("dt", null, h("code", null, key)), h("dd", null, String(value))))));
}

/** The keys of a policy with their values: `retry.attempts`, `16`. */
function flattened(policy, prefix = "") {
  return Object.entries(policy).flatMap(([key, value]) =>
    value !== null && typeof value === "object" ? flattened(value, `${prefix}${key}.`) : [[prefix + key, value]]);
}
