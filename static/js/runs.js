/* The fleet of runs: `a` on a focused row goes to its incident to acknowledge it. */
import { onKey } from "./keys.js";

export function start() {
  onKey("a", () => document.activeElement?.closest("[data-row]")?.querySelector('a[href^="/incidents/"]')?.click());
}
