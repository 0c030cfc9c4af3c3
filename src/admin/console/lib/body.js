// Content of a message: as text, as indented JSON, or as hexadecimal.

import { bytes as size, counted } from "./format.js";
import { h } from "./dom.js";
import { visible, visibleText } from "./text.js";
import { empty, tabs } from "./widgets.js";

/** Most bytes that are drawn. */
const DRAWN_BYTES = 256 << 10;
/** Most bytes that are drawn as hexadecimal: it takes five times the room. */
const HEX_BYTES = 64 << 10;
/** Hidden characters above which they are escaped without a mark of their own. */
const MAX_MARKS = 2_000;

const TITLES = { text: "Text", json: "JSON", hex: "Hex" };

export function bytesOfBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** The forms in which a content can be shown, the best first. */
export function readBody(all, whole) {
  const bytes = all.subarray(0, DRAWN_BYTES);
  const text = decoded(bytes, bytes.length < whole);
  const json = text === null ? null : indented(text);
  const modes = [json !== null && "json", text !== null && "text", "hex"].filter(Boolean);
  return { bytes, text, json, modes, whole };
}

/**
 * The text that a field can hold as it is; `null` if there is none: the content is no text, was cut, or has carriage
 * returns, which a field would drop.
 */
export function editableText({ bytes, text, whole }) {
  return text !== null && bytes.length === whole && !text.includes("\r") ? text : null;
}

/** A content in its panel. `mode` is the chosen form; `choose` is called with another. */
export function bodyView(body, mode, choose) {
  const { bytes, text, json, modes, whole } = body;
  if (whole === 0) return empty("The body is empty.");
  const chosen = modes.includes(mode) ? mode : modes[0];
  const shown = chosen === "hex" ? Math.min(bytes.length, HEX_BYTES) : bytes.length;
  return [
    h("div", { class: "body-head" },
      tabs("Form", modes.map((one) => [one, TITLES[one]]), chosen, choose),
      h("span", { class: "muted" }, shown < whole ? `The first ${size(shown)} of ${counted(whole, "byte")}` : counted(whole, "byte"))),
    h("pre", { class: "body", tabindex: "0", "aria-label": "Body" },
      chosen === "hex" ? hex(bytes.subarray(0, shown)) : marked(chosen === "json" ? json : text)),
  ];
}

/** The text of UTF-8; `null` if it is none. A content that was cut may end within a character. */
function decoded(bytes, isCut) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  try {
    const text = decoder.decode(bytes, { stream: isCut });
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/** JSON with line breaks and indents; `null` if it is none. Its numbers and the order of its keys stay as they are. */
function indented(text) {
  try {
    if (typeof JSON.parse(text) !== "object") return null;
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gu) ?? [];
  let depth = 0;
  return tokens.map((token, i) => {
    if (token === "}" || token === "]") {
      depth -= 1;
      return tokens[i - 1] === "{" || tokens[i - 1] === "[" ? token : `\n${"  ".repeat(depth)}${token}`;
    }
    if (token === "{" || token === "[") {
      depth += 1;
      return tokens[i + 1] === "}" || tokens[i + 1] === "]" ? token : `${token}\n${"  ".repeat(depth)}`;
    }
    if (token === ",") return `,\n${"  ".repeat(depth)}`;
    return token === ":" ? ": " : token;
  }).join("");
}

function marked(text) {
  const nodes = visible(text, true);
  return nodes.length > 2 * MAX_MARKS ? text.replace(/[^\n\t]+/gu, visibleText) : nodes;
}

/** Sixteen bytes a line: offset, bytes, and what of them is printable. */
function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const codes = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const printed = part.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(47)}  ${printed}`);
  }
  return lines.join("\n");
}
