/* The fleet of runs: rows stay where they are while one looks; a new order is announced and applied on a click. */
import { onKey } from "./keys.js";

const slugs = root =>
  [...root.querySelectorAll("table.runs tbody tr")].map(row => row.querySelector("a[href]")?.getAttribute("href"));

export function start() {
  onKey("a", () => document.activeElement?.closest("[data-row]")?.querySelector('a[href^="/incidents/"]')?.click());
  const list = document.querySelector("#runs-list");
  let wanted = false;
  list?.addEventListener("htmx:beforeSwap", e => {
    if (e.detail.target !== list || wanted) {
      wanted = false;
      return;
    }
    const before = slugs(list),
      page = new DOMParser().parseFromString(`<div>${e.detail.serverResponse}</div>`, "text/html").body.firstChild,
      body = page.querySelector("table.runs tbody"),
      after = slugs(page);
    if (
      !body ||
      !before.length ||
      after.filter(s => before.includes(s)).join() === before.filter(s => after.includes(s)).join()
    )
      return;
    const place = row => {
      const i = before.indexOf(row.querySelector("a[href]")?.getAttribute("href"));
      return i < 0 ? before.length : i;
    };
    body.append(...[...body.rows].sort((a, b) => place(a) - place(b)));
    const chip = document.createElement("button");
    chip.className = "chip order-changed";
    chip.type = "button";
    chip.setAttribute("aria-pressed", "true");
    chip.textContent = "order changed, sort";
    page.querySelector("table.runs").before(chip);
    e.detail.serverResponse = page.innerHTML;
  });
  list?.addEventListener("click", e => {
    if (e.target.closest(".order-changed")) {
      wanted = true;
      window.htmx.trigger(list, "poke");
    }
  });
}
