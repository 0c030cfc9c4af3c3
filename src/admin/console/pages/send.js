// Send: to be written.

import { pageHead } from "../lib/widgets.js";

export function sendPage(view) {
  view.show(() => pageHead("Send"));
}
