// What is not well, in words: the parts that are not up, and what the counts and the replicas tell beside them.

import { h } from "./dom.js";
import { lateness, sentence, span } from "./format.js";
import { mark } from "./icons.js";
import { address } from "./router.js";
import { when } from "./widgets.js";
import { part, partState, pauseReason, targetName } from "./words.js";

/** Lateness that nobody needs to look at, seconds. */
const OVERDUE_S = 5;
/** Difference of clocks that is worth a word, ms: the default of `cluster.max_clock_skew`. */
const SKEW_MS = 500;

/** Everything in the overview that needs attention, the worst first; of one route, if it is given. */
export function troubles(now, route) {
  return [...ownState(now), ...partTroubles(now), ...routeTroubles(now), ...replicaTroubles(now), ...memoryTroubles(now)]
    .filter((trouble) => route === undefined || trouble.route === route)
    .map((trouble) => (trouble.route === undefined || route !== undefined ? trouble : { ...trouble, link: trouble.route }))
    .sort((a, b) => rank(a) - rank(b));
}

/** The troubles as a list; nothing if there are none. */
export function troubleList(found) {
  return found.length > 0 && h("ul", { class: "troubles" }, found.map(({ key, kind, what, why, since, link }) =>
    h("li", { key }, mark(kind),
      h("div", null, h("strong", null, what), why && h("p", null, why)),
      h("div", { class: "since" },
        since && h("span", null, "since ", when(since)),
        link && h("a", { href: address(["routes", link]) }, `Open ${link}`)))));
}

function rank({ kind }) {
  return ["bad", "warn", "paused"].indexOf(kind);
}

function* ownState({ draining, ready, replica, parts }) {
  if (draining) {
    yield { key: "draining", kind: "paused", what: `Replica ${replica} is draining`, why: "It finishes what it has in hand and takes nothing new." };
  } else if (!ready && parts.every(({ state }) => state === "up")) {
    yield { key: "ready", kind: "warn", what: `Replica ${replica} is not ready`, why: "It takes no work yet." };
  }
}

/** Reports whether the part `target:CONNECTION:TARGET` is the route's own target, or one that it allows. */
function isTarget({ to, allow_targets }, partName) {
  const connection = to.kafka ?? to.rabbitmq;
  return [targetName(to), ...allow_targets].some((target) => partName === `target:${connection}:${target}`);
}

function* partTroubles({ parts, routes }) {
  for (const { name, state, why, since } of parts) {
    if (state === "up") continue;
    const { words, route } = part(name);
    const { word, badge } = partState({ name, state });
    yield {
      key: name, kind: badge, what: `${words} ${word}`, why: why && sentence(why), since: since && Date.parse(since),
      route: route ?? routes.find((one) => isTarget(one, name))?.name,
    };
  }
}

function* routeTroubles({ routes, parts }) {
  const isKnown = (name) => parts.some((one) => one.name === name && one.state !== "up");
  for (const route of routes) {
    if (route.publishing_paused) {
      yield { key: `${route.name} publishing`, kind: "paused", what: `Publishing of ${route.name} is paused by hand`, route: route.name };
    }
    for (const reason of route.paused) {
      const { words, advice } = pauseReason(reason);
      yield { key: `${route.name} ${reason}`, kind: reason === "paused" ? "paused" : "warn", what: `Ingress of ${route.name} waits: ${words}`, why: advice, route: route.name };
    }
    if (route.oldest_overdue_s >= OVERDUE_S && !route.publishing_paused && !isKnown(`route:${route.name}`)) {
      yield { key: `${route.name} overdue`, kind: "warn", what: `Messages of ${route.name} are late`, why: `The oldest is ${span(route.oldest_overdue_s * 1000)} overdue.`, route: route.name };
    }
  }
}

function* replicaTroubles({ replicas }) {
  for (const { name, alive, ready, draining, silent_ms, clock_skew_ms, ...rest } of replicas) {
    if (!alive) {
      yield { key: `replica ${name}`, kind: "warn", what: `Replica ${name} is gone`, why: `No heartbeat for ${span(silent_ms ?? 0)}. The others serve its partitions; its claims come back by themselves.` };
    } else if (draining && !rest.this) {
      yield { key: `replica ${name}`, kind: "paused", what: `Replica ${name} is draining`, why: "It ends in order." };
    } else if (!ready && !rest.this) {
      yield { key: `replica ${name}`, kind: "warn", what: `Replica ${name} is not ready`, why: "Its own console says why." };
    }
    if (alive && Math.abs(clock_skew_ms ?? 0) > SKEW_MS) {
      yield { key: `clock ${name}`, kind: "warn", what: `Clock of ${name} is ${lateness(Math.abs(clock_skew_ms))} ${clock_skew_ms > 0 ? "ahead of" : "behind"} Redis's`, why: "Messages are late by the difference, never early. Synchronise the clocks." };
    }
  }
}

function* memoryTroubles({ redis, parts }) {
  if (!redis?.limit_bytes || parts.some(({ name, state }) => name === "store:room" && state !== "up")) return;
  const share = Math.round((redis.used_bytes / redis.limit_bytes) * 100);
  if (share >= 70) {
    yield { key: "memory", kind: share >= 85 ? "bad" : "warn", what: `Redis uses ${share} % of its memory`, why: "From 70 % on routes above their share wait, from 85 % on all ingress." };
  }
}
