// Messages: to be written.

import { pageHead } from "../lib/widgets.js";

export function messagesPage(view) {
  view.show(() => pageHead("Messages"));
}
