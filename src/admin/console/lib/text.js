// Texts of producers, shown so that they can neither hide nor reorder what stands beside them.

import { h } from "./dom.js";

/** Characters that show nothing, or change the order of what is shown. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Cn}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]|^ | $/gu;

/** The text with every hidden character escaped, as nodes. Line breaks stay in a text of `lines`. */
export function visible(text, lines = false) {
  const shown = [];
  let end = 0;
  for (const { 0: found, index } of text.matchAll(HIDDEN)) {
    if (lines && (found === "\n" || found === "\t" || found === " ")) continue;
    shown.push(text.slice(end, index), h("span", { class: "escaped" }, escaped(found)));
    end = index + found.length;
  }
  shown.push(text.slice(end));
  return shown;
}

/** The text with every hidden character escaped, as text: for titles and labels. */
export function visibleText(text) {
  return text.replace(HIDDEN, escaped);
}

function escaped(character) {
  const hex = character.codePointAt(0).toString(16);
  if (character === " ") return "\u2423";
  return hex.length > 4 ? `\\u{${hex}}` : `\\u${hex.padStart(4, "0")}`;
}

/** A name that a producer chose, isolated from the direction of the text around it. */
export function name(text, attrs) {
  return h("bdi", { class: "name", ...attrs }, visible(text));
}
