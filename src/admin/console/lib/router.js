// Addresses within the console: `#/messages/orders/a%2Fb?from=…`.

/** The address of the page with these segments and filters. */
export function address(segments, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const filters = given.length === 0 ? "" : `?${new URLSearchParams(given)}`;
  return `#/${segments.map(encodeURIComponent).join("/")}${filters}`;
}

/** The address that is shown now: its segments and its filters. */
export function location() {
  const [path, filters] = split(window.location.hash.replace(/^#\/?/, ""));
  const segments = path === "" ? [] : path.split("/").map(decoded);
  return { segments, params: Object.fromEntries(new URLSearchParams(filters)) };
}

export function go(segments, params) {
  window.location.hash = address(segments, params);
}

/** The same, in place of the page that is shown: *Back* does not lead to it again. */
export function goInstead(segments, params) {
  window.location.replace(address(segments, params));
}

function split(text) {
  const at = text.indexOf("?");
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function decoded(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
