// Calls of the API. An answer that is no success becomes a `Problem`, with the sentence that the server wrote for it.

import { noteServerDate, noteServerTime } from "./clock.js";

const TOKEN_KEY = "postdate.token";

/** Pages that are asked for, one after the other, to fill one page of the list. */
const MAX_SHORT_PAGES = 20;

let onUnauthorized = () => {};

/** An answer that is no success (RFC 9457), or a call without an answer. */
export class Problem extends Error {
  constructor(fields, status) {
    super(fields.detail ?? fields.title ?? "The call failed");
    this.title = fields.title ?? "Error";
    this.status = status;
    this.result = fields.result;
    this.reason = fields.reason;
    this.nearest = fields.nearest;
    this.id = fields.id;
  }
}

/** The token of this tab; `null` if none was given. */
export function token() {
  return sessionStorage.getItem(TOKEN_KEY);
}

export function setToken(value) {
  if (value === null) sessionStorage.removeItem(TOKEN_KEY);
  else sessionStorage.setItem(TOKEN_KEY, value);
}

/** Has `listener` called whenever a call is refused for want of a token. */
export function whenUnauthorized(listener) {
  onUnauthorized = listener;
}

/** The path of the API with these segments, each encoded. */
export function path(...segments) {
  // Every browser takes these two for steps through the path, even if they are encoded.
  const step = segments.find((segment) => segment === "." || segment === "..");
  if (step !== undefined) {
    throw new Problem({ title: "No address", detail: `a browser cannot ask for the name ${step}: use the command line` }, 0);
  }
  return `/api/v1/${segments.map(encodeURIComponent).join("/")}`;
}

/** The query string of those parameters that have a value. */
export function query(params) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length === 0 ? "" : `?${new URLSearchParams(given)}`;
}

/** Sends a request, and returns its answer if that is a success. */
async function send(method, url, { body, headers, signal } = {}) {
  const request = { method, signal, cache: "no-store", headers: { ...headers } };
  if (token() !== null) request.headers.authorization = `Bearer ${token()}`;
  if (body !== undefined) {
    request.headers["content-type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(url, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "No answer", detail: "the replica cannot be reached: is it running, and the network up?" }, 0);
  }
  noteServerDate(response.headers.get("date"));
  if (response.ok) return response;
  const fields = await response.json().catch(() => ({ title: `Status ${response.status}` }));
  const problem = new Problem(fields, response.status);
  if (problem.status === 401) onUnauthorized(problem);
  throw problem;
}

async function sendForJson(method, url, options) {
  const response = await send(method, url, options);
  const json = await response.json();
  if (json.now_ms !== undefined) noteServerTime(json.now_ms);
  return json;
}

export const get = (url, signal) => sendForJson("GET", url, { signal });
export const post = (url, body, signal) => sendForJson("POST", url, { body, signal });

/** The message, with the tag that a command on it needs. */
export async function getTagged(url, signal) {
  const response = await send("GET", url, { signal });
  return { message: await response.json(), tag: response.headers.get("etag") };
}

/** A command on the message that is still as `tag` says. `because` is the reason that somebody gave for it. */
export function command(method, url, tag, { body, because } = {}) {
  const headers = {};
  if (tag) headers["if-match"] = tag;
  if (because) headers["postdate-because"] = encodeURIComponent(because);
  return sendForJson(method, url, { body, headers });
}

/** A page of a list. The server may answer with short pages: they are asked for until this one is full. */
export async function getPage(url, params, signal) {
  const limit = params.limit ?? 100;
  const items = [];
  let cursor = params.cursor;
  for (let asked = 0; asked < MAX_SHORT_PAGES; asked += 1) {
    const page = await get(url + query({ ...params, cursor, limit: limit - items.length }), signal);
    items.push(...page.items);
    cursor = page.next;
    if (cursor === null || items.length >= limit) break;
  }
  return { items, next: cursor ?? null };
}

/** The events of a stream, one after the other: the data of each, read as JSON. */
export async function* events(url, signal) {
  const response = await send("GET", url, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5));
      if (data.length > 0) yield JSON.parse(data.join("\n"));
    }
  }
}
