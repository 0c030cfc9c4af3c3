// Dead letter: to be written.

import { pageHead } from "../lib/widgets.js";

export function deadLetterPage(view) {
  view.show(() => pageHead("Dead letter"));
}
