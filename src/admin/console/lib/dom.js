// Elements as plain values, and the least change of the page that shows them. A node that is the same in two drawings
// stays untouched, so focus, selection, scroll position and half-typed inputs survive a live update.

const SVG = "http://www.w3.org/2000/svg";

/** Attributes that are set as properties: the attribute is only their first value. */
const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate"]);

/**
 * Describes an element. Children may be nested arrays; `null`, `undefined` and `false` are left out.
 * Special attributes: `key` names a node among its siblings, `ref` is called with the new node,
 * `on…` is a listener.
 */
export function h(tag, attrs, ...children) {
  return { tag, attrs: attrs ?? {}, key: attrs?.key, children: children.flat(Infinity).filter(isShown).map(asNode) };
}

function isShown(child) {
  return child !== null && child !== undefined && child !== false && child !== "";
}

function asNode(child) {
  return typeof child === "object" ? child : { text: String(child) };
}

/** Shows `children` inside `parent`, which holds what the last call for it showed. */
export function render(parent, ...children) {
  const shown = h("", null, children).children;
  patchChildren(parent, parent.shownNodes ?? [], shown);
  parent.shownNodes = shown;
}

function patchChildren(parent, before, after) {
  const reusable = new Map();
  for (const old of before) {
    const slot = slotOf(old);
    reusable.has(slot) ? reusable.get(slot).push(old) : reusable.set(slot, [old]);
  }
  const kept = after.map((node) => reusable.get(slotOf(node))?.shift());
  for (const old of [...reusable.values()].flat()) old.dom.remove();
  let place = parent.firstChild;
  after.forEach((node, i) => {
    if (kept[i]) patch(kept[i], node);
    else create(node, parent);
    if (node.dom === place) place = place.nextSibling;
    else parent.insertBefore(node.dom, place);
  });
}

/** The siblings that a node may take the place of: those of its key, or else of its tag. */
function slotOf(node) {
  return node.key === undefined ? `<${node.tag}>` : `${node.tag} ${node.key}`;
}

function create(node, parent) {
  if (node.tag === undefined) {
    node.dom = document.createTextNode(node.text);
    return;
  }
  const isSvg = node.tag === "svg" || (parent.namespaceURI === SVG && parent.tagName !== "foreignObject");
  node.dom = isSvg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  // Children first: a `select` takes its value from options that are there.
  patchChildren(node.dom, [], node.children);
  for (const [name, value] of Object.entries(node.attrs)) setAttribute(node.dom, name, value);
  node.attrs.ref?.(node.dom);
}

function patch(old, node) {
  node.dom = old.dom;
  if (node.tag === undefined) {
    if (old.text !== node.text) node.dom.data = node.text;
    return;
  }
  patchChildren(node.dom, old.children, node.children);
  for (const name of Object.keys(old.attrs)) {
    if (!(name in node.attrs)) setAttribute(node.dom, name, null);
  }
  for (const [name, value] of Object.entries(node.attrs)) {
    if (old.attrs[name] !== value) setAttribute(node.dom, name, value);
  }
}

function setAttribute(dom, name, value) {
  if (name === "key" || name === "ref") return;
  if (name.startsWith("on")) dom[name] = value ?? null;
  else if (PROPERTIES.has(name)) dom[name] = value ?? (name === "value" ? "" : false);
  else if (value === null || value === undefined || value === false) dom.removeAttribute(name);
  else dom.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
}
