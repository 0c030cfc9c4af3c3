// The words for what the API names: parts, states, reasons.

/** States of a message: its word, and the badge that shows it. */
const MESSAGE_STATES = {
  pending: { word: "pending", badge: "idle" },
  retrying: { word: "pending, until its next try", badge: "warn" },
  in_flight: { word: "being published", badge: "busy" },
  published: { word: "published", badge: "ok" },
  delivered: { word: "delivered", badge: "ok" },
  cancelled: { word: "cancelled", badge: "gone" },
  moved: { word: "moved to another time", badge: "idle" },
  dead: { word: "dead letter", badge: "bad" },
  redriven: { word: "redriven", badge: "busy" },
  replaced: { word: "replaced by another of its name", badge: "gone" },
  dropped: { word: "dropped", badge: "gone" },
  deduplicated: { word: "dropped as a duplicate", badge: "gone" },
};

/** The state of a message. One that failed and waits has a state of its own. */
export function messageState({ state, failures }) {
  const shown = state === "pending" && failures > 0 ? "retrying" : state;
  return MESSAGE_STATES[shown] ?? { word: shown.replaceAll("_", " "), badge: "idle" };
}

/** An event of a message's trail. */
export function eventWord(event) {
  return MESSAGE_STATES[event]?.word ?? event.replaceAll("_", " ");
}

export function eventBadge(event) {
  return MESSAGE_STATES[event]?.badge ?? "idle";
}

/** Groups of parts, in the order in which they are shown. */
export const PART_GROUPS = [
  { title: "Store", kinds: ["store", "room"] },
  { title: "Connections", kinds: ["connection"] },
  { title: "Sources", kinds: ["source"] },
  { title: "Targets", kinds: ["target"] },
  { title: "Deliveries in time", kinds: ["route"] },
  { title: "Tokens", kinds: ["tokens"] },
];

/** A part of `/readyz`: its kind, its name within the kind, and the whole in words. */
export function part(name) {
  const [head, ...rest] = name.split(":");
  const [connection, ...own] = rest;
  switch (head) {
    case "redis":
      return { kind: "store", short: "Redis", words: "Redis" };
    case "store":
      return connection === "room"
        ? { kind: "room", short: "Free memory", words: "The store" }
        : { kind: "store", short: "Identity", words: "The store" };
    case "kafka":
    case "rabbitmq": {
      const short = `${head === "kafka" ? "Kafka" : "RabbitMQ"} ${connection}${own.length > 0 ? `, group ${own.join(":")}` : ""}`;
      return { kind: "connection", short, words: short };
    }
    case "source":
      return { kind: "source", short: connection, words: `The source of ${connection}`, route: connection };
    case "target":
      return { kind: "target", short: own.join(":"), words: `The target ${own.join(":")}` };
    case "route":
      return { kind: "route", short: connection, words: `Messages of ${connection}`, route: connection };
    case "admin": {
      const short = connection === "write_tokens" ? "Write tokens" : "Read tokens";
      return { kind: "tokens", short, words: `The file of ${short.toLowerCase()}` };
    }
    default:
      return { kind: "store", short: name, words: name };
  }
}

/** States of a part that is not up, by its kind: the end of a sentence that begins with the part. */
const PART_TROUBLES = {
  store: "cannot be used",
  room: "has little room",
  connection: "is away",
  source: "is not read",
  target: "does not take all messages",
  route: "are late",
  tokens: "has a fault",
};

/** States of a part: the word for it, and its mark. */
export function partState({ name, state }) {
  if (state === "up") return { word: "up", badge: "ok" };
  if (state === "waiting") return { word: "has not been reached yet", badge: "warn" };
  return { word: PART_TROUBLES[part(name).kind], badge: "bad" };
}

/** Reasons why the ingress of a route waits, and what to do. */
const PAUSE_REASONS = {
  paused: ["paused by hand", "Resume it on the page of the route."],
  store: ["the store takes nothing in", "Redis is away, full or read-only: its part says which."],
  store_memory: ["Redis is nearly full", "Give Redis more memory, or make room."],
  max_pending: ["as many messages wait as the route may have", "Wait until some fall due, or raise max_pending."],
  max_pending_bytes: ["as many bytes wait as the route may have", "Wait until some fall due, or raise max_pending_bytes."],
  dead_letters: ["its dead letters are full", "Redrive or drop some."],
  target: ["its target does not take messages that pass through", "Mend the target."],
  undecodable: ["a Kafka partition stands at records that cannot be opened", "Look at them, then skip the offset, here or by postdate skip."],
  open_transaction: ["a producer's transaction is open before the records", "End that producer, or abort its transaction with Kafka's own tools."],
};

export function pauseReason(reason) {
  const [words, advice] = PAUSE_REASONS[reason] ?? [reason.replaceAll("_", " "), ""];
  return { words, advice };
}

const MEND_PRODUCER = "Mend the producer. A redrive publishes at once, or after the delay that you give.";
const HOPELESS = "No try can succeed: mend the producer, then drop it.";

/** Reasons of dead letters, and what to do before a redrive. */
const DEAD_REASONS = {
  attempts: ["every try failed", "Mend the target first: the last error says what is wrong with it."],
  unroutable: ["nothing is bound to its routing key", "Create the binding, exchange or topic, then redrive."],
  unknown_target: ["its target does not exist", "Create the exchange or topic, then redrive."],
  not_allowed: ["its target may not be used", "Grant the right or add it to allow_targets, or redrive to another target."],
  too_big_for_target: ["larger than its target takes", HOPELESS],
  unpublishable: ["can never be published", HOPELESS],
  bad_delay: ["its delay cannot be read", MEND_PRODUCER],
  bad_time: ["its time cannot be read", MEND_PRODUCER],
  ambiguous: ["it has a delay and a time", MEND_PRODUCER],
  too_far: ["due further ahead than max_delay", MEND_PRODUCER],
  too_big: ["larger than max_size", MEND_PRODUCER],
  bad_id: ["its id cannot be used", MEND_PRODUCER],
  bad_op: ["its command cannot be read", MEND_PRODUCER],
  bad_expiry: ["how long it is wanted cannot be read, or ends before it is due", MEND_PRODUCER],
  bad_retry: ["how often it was given back cannot be read", MEND_PRODUCER],
  forbidden_target: ["asks for a target that is not allowed", "Mend the producer, or add the target to allow_targets."],
  bad_headers: ["its headers cannot be read", MEND_PRODUCER],
  undecodable: ["a Kafka record that cannot be opened", "Look at its offset with Kafka's own tools, then drop it: there is nothing to redrive."],
  expired: ["nobody wanted it any more when it could be published", "Redrive what is still worth something: it does not expire again."],
  retries: ["its consumers gave it back too often", "Their logs say why. Redriven it has all its tries anew."],
  loop: ["came back from its own target", "Remove the binding that leads the target back to the source."],
  crashes: ["ended the process that handled it", "Export it and report it."],
  corrupt: ["cannot be read any more", "Export it and report it."],
};

/** The words that the API takes as `reason`. */
export const DEAD_REASON_WORDS = Object.keys(DEAD_REASONS);

export function deadReason(reason) {
  const [words, advice] = DEAD_REASONS[reason] ?? [reason.replaceAll("_", " "), ""];
  return { words, advice };
}

/** A source or a target of a route: `topic orders at kafka main`. */
export function endpoint({ kafka, topic, topics, topic_pattern, rabbitmq, queue, exchange, routing_key }) {
  const place = topic ?? topics?.join(", ") ?? topic_pattern;
  if (kafka !== undefined) return { place, at: `Kafka ${kafka}` };
  if (queue !== undefined) return { place: queue, at: `RabbitMQ ${rabbitmq}` };
  return { place: `${exchange || "(default exchange)"}/${routing_key}`, at: `RabbitMQ ${rabbitmq}` };
}

/** Whether a route reads several topics, of which one has to be said. */
export function readsSeveral(source) {
  return source?.kafka !== undefined && source.topic === undefined;
}

/** A target as `allow_targets` writes it. */
export function targetName({ topic, exchange, routing_key }) {
  return topic ?? `${exchange}/${routing_key === "preserve" || routing_key === "key" ? "" : routing_key}`;
}

/** Calls of the audit log in words. */
const CALLS = [
  [/^POST routes\/([^/]+)\/pause$/, "paused", "route"],
  [/^POST routes\/([^/]+)\/resume$/, "resumed", "route"],
  [/^POST routes\/([^/]+)\/purge$/, "purged", "route"],
  [/^POST routes\/([^/]+)\/skip$/, "skipped an offset of", "route"],
  [/^POST routes\/([^/]+)\/messages$/, "sent a test message to", "route"],
  [/^DELETE routes\/([^/]+)\/messages\/([^/]+)$/, "cancelled", "message"],
  [/^PATCH routes\/([^/]+)\/messages\/([^/]+)$/, "moved", "message"],
  [/^PUT routes\/([^/]+)\/messages\/([^/]+)$/, "replaced", "message"],
  [/^POST routes\/([^/]+)\/messages\/cancel$/, "cancelled messages of", "route"],
  [/^GET routes\/([^/]+)\/messages\/([^/]+)\/body$/, "asked for the body of", "message"],
  [/^GET dead\/[^/]+$/, "asked for the body of a dead letter"],
  [/^POST dead\/redrive$/, "redrove dead letters"],
  [/^POST dead\/drop$/, "dropped dead letters"],
];

/** A call of the audit log: what was done, and to which route or message. `null` if it is none of the known ones. */
export function auditedCall(call) {
  const short = call.replace("/api/v1/", "").replace(/\?.*$/, "");
  for (const [pattern, words, kind] of CALLS) {
    const found = pattern.exec(short);
    if (found === null) continue;
    try {
      return { words, kind, route: found[1] && decodeURIComponent(found[1]), id: found[2] && decodeURIComponent(found[2]) };
    } catch {
      return null;
    }
  }
  return null;
}
