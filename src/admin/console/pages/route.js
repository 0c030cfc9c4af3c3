// Route: to be written.

import { pageHead } from "../lib/widgets.js";

export function routePage(view) {
  view.show(() => pageHead("Route"));
}
