// Overview: what is not well, how each route flows, what falls due, and who serves it.

import { count, counted, bytes, lateness, rate, relative, span } from "../lib/format.js";
import { h } from "../lib/dom.js";
import { badge, mark } from "../lib/icons.js";
import { freshness, overview, seriesOf } from "../lib/live.js";
import { address } from "../lib/router.js";
import { ago, empty, pageHead, problemBox, routeLink, section, table, when } from "../lib/widgets.js";
import { dueChart } from "../lib/due_chart.js";
import { troubles } from "../lib/troubles.js";
import { line, peak } from "../lib/charts.js";
import { PART_KINDS, PART_STATES, endpoint, part } from "../lib/words.js";

export function overviewPage(view) {
  let window = "minute";
  const choose = (chosen) => {
    window = chosen;
    view.redraw();
  };
  view.show(() => {
    const now = overview();
    return [
      pageHead("Overview"),
      now === null && problemBox(freshness().problem),
      now === null ? h("p", { class: "muted" }, "Asking the replica …") : [
        attention(troubles(now)),
        routes(now.routes),
        h("div", { class: "columns" },
          dueChart(now.histogram, window, choose),
          h("div", { class: "stack" }, replicas(now.replicas), parts(now))),
      ],
    ];
  });
  view.redrawLive();
}

function attention(found) {
  if (found.length === 0) {
    return h("section", { key: "attention", class: "panel well", "aria-label": "Needs attention" },
      h("p", null, mark("ok"), " All is well"));
  }
  return section("Needs attention", { key: "attention", aside: h("span", { class: "muted" }, counted(found.length, "trouble")) },
    h("ul", { class: "troubles" }, found.map(({ key, kind, what, why, since, href, act }) =>
      h("li", { key }, mark(kind),
        h("div", null,
          h("strong", null, what), why && [" ", h("span", { class: "why" }, why)],
          href && [" ", h("a", { href }, act)]),
        h("span", { class: "since" }, since ? ["since ", when(since)] : "")))));
}

function routes(all) {
  const columns = [
    { title: "Route", class: "route" },
    { title: "In / s", class: "num" },
    { title: "Out / s", class: "num" },
    { title: "Out, last 5 min", class: "spark" },
    { title: "Pending", class: "num wide" },
    { title: "In flight", class: "num" },
    { title: "Dead", class: "num" },
    { title: "Overdue", class: "num" },
    { title: "Late p50", class: "num" },
    { title: "Late p99", class: "num" },
    { title: "Late p99, last 5 min", class: "spark" },
  ];
  const rows = all.map((route) => {
    const { rate_out, late_p99_ms } = seriesOf(route.name);
    return {
      key: route.name,
      cells: [
        h("div", { class: "route-name" }, routeLink(route.name), way(route), pauseMarks(route)),
        rate(route.rate_in),
        rate(route.rate_out),
        line(rate_out, { width: 120, height: 28, label: `Rate out of ${route.name}: now ${rate(route.rate_out)} a second, at most ${rate(peak(rate_out))}` }),
        count(route.pending),
        count(route.in_flight),
        route.dead > 0 ? h("a", { class: "alarm", href: address(["dead"], { route: route.name }) }, count(route.dead)) : "0",
        route.oldest_overdue_s >= 1 ? h("span", { class: "alarm" }, span(route.oldest_overdue_s * 1000)) : "–",
        lateness(route.late_p50_ms),
        lateness(route.late_p99_ms),
        line(late_p99_ms, { width: 120, height: 28, label: `Lateness p99 of ${route.name}: now ${lateness(route.late_p99_ms)}` }),
      ],
    };
  });
  return section("Routes", { key: "routes" }, table({ caption: "Routes", columns, rows, class: "routes cards" }));
}

/** From where to where a route goes. */
export function way({ from, to }) {
  const [source, target] = [endpoint(from), endpoint(to)];
  return h("span", { class: "way", title: `${source.at} to ${target.at}` },
    h("bdi", null, source.place), h("span", { "aria-hidden": "true" }, " → "), h("span", { class: "for-readers" }, " to "),
    h("bdi", null, target.place));
}

/** What of a route is paused. */
export function pauseMarks({ paused, publishing_paused }) {
  return [
    publishing_paused && badge("paused", "publishing paused"),
    paused.length > 0 && badge("paused", paused.includes("paused") ? "ingress paused" : "ingress waits"),
  ];
}

function replicas(all) {
  const columns = [
    { title: "Replica" }, { title: "State" }, { title: "Partitions", class: "num" },
    { title: "Heartbeat", class: "num" }, { title: "Clock", class: "num" }, { title: "Version" },
  ];
  const rows = all.map((replica) => ({
    key: replica.name,
    cells: [
      [h("bdi", null, replica.name), replica.this && h("small", { class: "muted" }, " (answers)")],
      replicaState(replica),
      count(replica.partitions),
      replica.silent_ms === undefined ? "–" : lateness(replica.silent_ms),
      replica.clock_skew_ms === undefined ? "–" : `${replica.clock_skew_ms > 0 ? "+" : ""}${replica.clock_skew_ms} ms`,
      replica.version,
    ],
  }));
  return section("Replicas", { key: "replicas" }, table({ caption: "Replicas", columns, rows, class: "cards" }));
}

function replicaState({ alive, ready, draining }) {
  if (!alive) return badge("bad", "gone");
  if (draining) return badge("paused", "draining");
  return ready ? badge("ok", "ready") : badge("warn", "not ready");
}

function parts({ parts: all, redis, replica }) {
  const named = all.map((one) => ({ ...one, ...part(one.name), id: one.name }));
  return section("Parts", { key: "parts", aside: h("span", { class: "muted" }, "as ", h("bdi", null, replica), " sees them") },
    memory(redis),
    h("div", { class: "parts" }, PART_KINDS.map(({ kind, title }) => {
      const those = named.filter((one) => one.kind === kind);
      return those.length > 0 && h("div", { key: kind, class: "part-kind" },
        h("h3", null, title),
        h("ul", null, those.map(({ id, short, state, why, since }) => {
          const { word, badge: kind } = PART_STATES[state] ?? PART_STATES.waiting;
          return h("li", { key: id, class: state },
            mark(kind), h("bdi", null, short), h("span", { class: state === "up" ? "for-readers" : "" }, ` ${word}`),
            why && h("p", null, why, since && [", since ", ago(Date.parse(since))]));
        })));
    })));
}

/** Redis's memory against its limit. */
function memory(redis) {
  if (!redis) return null;
  const { used_bytes: used, limit_bytes: limit } = redis;
  const share = limit ? used / limit : null;
  const kind = share === null ? "" : share >= 0.85 ? "bad" : share >= 0.7 ? "warn" : "ok";
  return h("div", { class: "memory" },
    h("span", null, "Redis memory"),
    h("meter", { class: kind, min: 0, max: 1, low: 0.7, high: 0.85, optimum: 0, value: share ?? 0, "aria-label": "Redis memory in use" }),
    h("span", { class: "num" }, limit ? `${bytes(used)} of ${bytes(limit)} (${Math.round(share * 100)} %)` : `${bytes(used)}, no limit set`));
}
