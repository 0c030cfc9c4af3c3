// Dead letters: to be written.

import { pageHead } from "../lib/widgets.js";

export function deadPage(view) {
  view.show(() => pageHead("Dead letters"));
}
