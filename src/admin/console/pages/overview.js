// Overview: what is not well, how each route flows, what falls due, and who serves it.

import { get, path } from "../lib/api.js";
import { bytes, count, counted, lateness, rate, span } from "../lib/format.js";
import { h } from "../lib/dom.js";
import { badge, mark } from "../lib/icons.js";
import { freshness, overview, seriesOf } from "../lib/live.js";
import { address } from "../lib/router.js";
import { name, visible } from "../lib/text.js";
import { ago, pageHead, pauseMarks, problemBox, routeLink, section, table, way } from "../lib/widgets.js";
import { dayStrip } from "../lib/day_strip.js";
import { dueChart } from "../lib/due_chart.js";
import { staleNotice, troubleList, troubles } from "../lib/troubles.js";
import { gauge, lines, peak } from "../lib/charts.js";
import { PART_GROUPS, part, partState } from "../lib/words.js";

/** Time between two looks at the last 24 hours, which replicas report once a minute. */
const DAY_REFRESH_MS = 60_000;

export function overviewPage(view) {
  let window = "minute";
  let activity;
  const { refresh } = view.looks(async () => {
    const problem = await view.run(async (signal) => {
      activity = await get(path("activity"), signal);
    });
    if (problem) activity = null;
  });
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
        staleNotice() ?? attention(view, troubles(now), now.histogram),
        routes(now.routes, now.unconfigured_routes),
        h("div", { class: "columns" },
          h("div", { class: "stack" }, dueChart(now.histogram, window, choose), replicas(now.replicas)),
          parts(now)),
        dayStrip(activity),
      ],
    ];
  });
  view.redrawLive();
  view.every(DAY_REFRESH_MS, refresh);
  refresh();
}

/** What is wrong. That nothing is, is said only where the store has answered too. */
function attention(view, found, histogram) {
  if (found.length === 0 && !histogram) {
    return h("section", { key: "attention", class: "panel well", "aria-label": "Needs attention" },
      h("p", null, mark("warn"), "The store has not answered for a second: nothing is known to be wrong yet"));
  }
  if (found.length === 0) {
    return h("section", { key: "attention", class: "panel well", "aria-label": "Needs attention" },
      h("p", null, mark("ok"), "All is well"));
  }
  return section("Needs attention", { key: "attention", aside: h("span", { class: "muted" }, counted(found.length, "trouble")) },
    troubleList(view, found));
}

function routes(all, unconfigured) {
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
        spark(rate_out, `Rate out of ${route.name} over five minutes: at most ${rate(peak(rate_out))} a second`),
        count(route.pending),
        count(route.in_flight),
        route.dead > 0 ? h("a", { class: "alarm", href: address(["dead"], { route: route.name }) }, count(route.dead)) : "0",
        route.oldest_overdue_s >= 1 ? h("span", { class: "alarm" }, span(route.oldest_overdue_s * 1000)) : "–",
        lateness(route.late_p50_ms),
        lateness(route.late_p99_ms),
        spark(late_p99_ms, `Lateness p99 of ${route.name} over five minutes: at most ${lateness(peak(late_p99_ms))}`),
      ],
    };
  });
  return section("Routes", { key: "routes" }, table({ caption: "Routes", columns, rows, class: "routes cards" }),
    unconfigured.length > 0 && h("p", { class: "muted" }, "The store also has messages of routes that are not configured here: ",
      unconfigured.map((route, i) => [i > 0 && ", ", name(route)])));
}

function spark(points, label) {
  return lines([{ points, kind: "main" }], { width: 120, height: 28, max: peak(points), label });
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
  return section("Parts", { key: "parts", aside: h("span", { class: "muted" }, "as ", h("bdi", null, replica), " sees them") },
    memory(redis),
    h("div", { class: "parts" }, PART_GROUPS.map(({ title, kinds }) => {
      const those = all.filter(({ name }) => kinds.includes(part(name).kind));
      return those.length > 0 && h("div", { key: title }, h("h3", null, title), h("ul", null, those.map(onePart)));
    })));
}

/** A part and its state. The reason is among what needs attention. */
function onePart({ name, state, since }) {
  const { word, badge: kind } = partState({ name, state });
  return h("li", { key: name }, mark(kind), h("bdi", null, visible(part(name).short)), " ",
    state === "up" ? h("span", { class: "for-readers" }, word) : h("p", null, word, since && [", since ", ago(Date.parse(since))]));
}

/** Redis's memory against its limit. */
function memory(redis) {
  if (!redis) return null;
  const { used_bytes: used, limit_bytes: limit } = redis;
  if (!limit) return h("p", { class: "memory" }, "Redis memory ", h("span", null, `${bytes(used)}, no limit is set`));
  const share = used / limit;
  const kind = share >= 0.85 ? "bad" : share >= 0.7 ? "warn" : "ok";
  const words = `${bytes(used)} of ${bytes(limit)}, ${Math.round(share * 100)} %`;
  return h("p", { class: "memory" }, "Redis memory ", gauge(share, kind, `Redis memory: ${words}`), h("span", null, words));
}
