// Retries: to be written.

import { pageHead } from "../lib/widgets.js";

export function retriesPage(view) {
  view.show(() => pageHead("Retries"));
}
