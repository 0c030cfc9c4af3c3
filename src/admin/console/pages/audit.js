// Audit: to be written.

import { pageHead } from "../lib/widgets.js";

export function auditPage(view) {
  view.show(() => pageHead("Audit"));
}
