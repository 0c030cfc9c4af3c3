// What is not well, in words: the causes behind the parts that are not up, and what the counts and the replicas tell
// beside them.

import { h } from "./dom.js";
import { nowMs } from "./clock.js";
import { bothZones, counted, lateness, relative, sentence, span, timeOfDay, utc } from "./format.js";
import { mark } from "./icons.js";
import { freshness } from "./live.js";
import { setPause } from "./route_actions.js";
import { address } from "./router.js";
import { visible } from "./text.js";
import { pausedBy } from "./widgets.js";
import { part, partState, pauseReason, targetName } from "./words.js";

/** Lateness that nobody needs to look at, seconds. */
const OVERDUE_S = 5;
/** Where the runbooks are: the same address as in the alerts. */
const RUNBOOKS = "https://github.com/postdate/postdate/blob/main/docs/runbooks.md#";
/** Difference of clocks that is worth a word, ms: the default of `cluster.max_clock_skew`. */
const SKEW_MS = 500;

/** Everything in the overview that needs attention, the worst first; of one route, if it is given. */
export function troubles(now, route) {
  return [...ownState(now), ...partTroubles(now), ...routeTroubles(now), ...replicaTroubles(now), ...memoryTroubles(now)]
    .filter(({ routes = [] }) => route === undefined || routes.includes(route))
    .map((trouble) => (trouble.routes?.length !== 1 || route !== undefined ? trouble : { ...trouble, link: trouble.routes[0] }))
    .sort((a, b) => rank(a) - rank(b));
}

/** Takes the place of the troubles while nothing is heard; `null` otherwise. */
export function staleNotice() {
  const { isStale, silentMs } = freshness();
  if (!isStale) return null;
  return h("section", { key: "attention", class: "panel well", "aria-label": "Needs attention" },
    h("p", null, mark("bad"), `Nothing heard since ${timeOfDay(nowMs() - silentMs)}: what is shown below may be old, and what is wrong now is not known`));
}

/** The troubles as a list, each with what can be done about it; nothing if there are none. */
export function troubleList(view, found) {
  return found.length > 0 && h("ul", { class: "troubles" }, found.map(({ key, kind, what, why, by, hangs, since, link, resume, command, runbook, retries }) =>
    h("li", { key }, mark(kind),
      h("div", null, h("strong", null, visible(what)), why && h("p", null, visible(why)), by && pausedBy(by), hangs && h("p", null, hangs), command && h("p", null, "Try ", h("code", null, command))),
      h("div", { class: "since" },
        since && h("time", { datetime: utc(since), title: bothZones(since) }, `since ${timeOfDay(since)}, ${relative(since)}`),
        resume && view.mayWrite && h("button", { type: "button", "aria-label": `Resume ${resume.part} of ${resume.route}`, onclick: () => setPause(view, resume.route, { part: resume.part, isPaused: true }) }, "Resume"),
        link && h("a", { href: address(["routes", link]) }, `Open ${link}`),
        retries && h("a", { href: address(["retries"], { route: retries }) }, "Open in Retries"),
        runbook && h("a", { href: RUNBOOKS + runbook }, "Runbook")))));
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

/** The routes that these parts belong to. */
function routesOf(names, routes) {
  const own = names.map((name) => part(name).route);
  return routes.filter((one) => own.includes(one.name) || names.some((name) => isTarget(one, name))).map(({ name }) => name);
}

/** What hangs on a cause, in a sentence; nothing if nothing does. */
function hanging(follows, routes) {
  const number = (kind) => follows.filter((name) => part(name).kind === kind).length;
  const [sources, targets, late] = [number("source"), number("target"), number("route")];
  const told = [
    sources > 0 && `${counted(sources, "source")} ${sources === 1 ? "is" : "are"} not read`,
    targets > 0 && `${counted(targets, "target")} ${targets === 1 ? "gets" : "get"} nothing`,
    late > 0 && `messages of ${counted(late, "route")} are late`,
  ].filter(Boolean);
  return told.length > 0 && `So ${told.join(", ")}: ${routes.join(", ")}.`;
}

function* partTroubles({ parts, troubles: causes, routes }) {
  for (const { part: name, why, since, follows, command, runbook } of causes) {
    const { words, route } = part(name);
    // Told with who has paused it.
    if (name.startsWith("route:") && routes.some((one) => one.name === route && one.publishing_paused)) continue;
    const { word, badge } = partState(parts.find((one) => one.name === name) ?? { name });
    const concerned = routesOf([name, ...follows], routes);
    const retries = part(name).kind === "target" && concerned.length === 1 ? concerned[0] : undefined;
    const trouble = { key: name, hangs: hanging(follows, concerned), since: since && Date.parse(since), routes: concerned, command, runbook, retries };
    const reasons = name.startsWith("source:") ? routes.find((one) => one.name === route)?.paused ?? [] : [];
    if (reasons.length === 0) {
      yield { ...trouble, kind: badge, what: `${words} ${word}`, why: sentence(why) };
      continue;
    }
    const told = reasons.map(pauseReason);
    const advice = told.map((reason) => reason.advice).join(" ");
    yield {
      ...trouble,
      kind: reasons.includes("paused") ? "paused" : "warn",
      resume: reasons.includes("paused") && { route, part: "ingress" },
      by: routes.find((one) => one.name === route)?.pauses.find((pause) => pause.part === "ingress"),
      what: `Ingress of ${route} waits: ${told.map((reason) => reason.words).join(", ")}`,
      why: why.startsWith("ingress waits:") ? advice : `${sentence(why)} ${advice}`,
    };
  }
}

function* routeTroubles({ routes, parts }) {
  const isKnown = (name) => parts.some((one) => one.name === name && one.state !== "up");
  for (const route of routes) {
    if (route.publishing_paused) {
      const late = parts.find(({ name }) => name === `route:${route.name}`)?.why;
      yield { key: `${route.name} publishing`, kind: "paused", what: `Publishing of ${route.name} is paused by hand`, why: late && sentence(late), by: !late && route.pauses.find(({ part }) => part === "publishing"), routes: [route.name], resume: { route: route.name, part: "publishing" } };
    }
    if (route.oldest_overdue_s >= OVERDUE_S && !route.publishing_paused && !isKnown(`route:${route.name}`)) {
      yield { key: `${route.name} overdue`, kind: "warn", what: `Messages of ${route.name} are late`, why: `The oldest is ${span(route.oldest_overdue_s * 1000)} overdue.`, routes: [route.name] };
    }
  }
}

function* replicaTroubles({ replicas, parts }) {
  // Replicas are heard of through the store.
  if (parts.some(({ name, state }) => state !== "up" && /^(redis|store)/.test(name))) return;
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
