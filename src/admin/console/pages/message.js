// Message: to be written.

import { pageHead } from "../lib/widgets.js";

export function messagePage(view) {
  view.show(() => pageHead("Message"));
}
