/* Keys that work anywhere; one-letter keys are off while typing. `?` shows the list, which stands in the page's template. */

const typing = el => el.closest?.("input, textarea, select, [contenteditable]");
const GO = { r: "/runs", i: "/incidents", n: "/nodes" };
const local = new Map();

/* A page's own letters. */
export const onKey = (letter, act) => local.set(letter, act);

export function keys(extra) {
  let g = 0;
  document.addEventListener("keydown", e => {
    if (e.defaultPrevented || e.altKey || e.ctrlKey || e.metaKey || typing(e.target)) return;
    const sheet = document.querySelector("#keys");
    if (e.key === "?" && sheet) {
      e.preventDefault();
      sheet.open ? sheet.close() : sheet.showModal();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    if (Date.now() - g < 1200 && GO[e.key]) {
      location.assign(GO[e.key]);
      return;
    }
    g = e.key === "g" ? Date.now() : 0;
    if (e.key === "/") {
      const find = document.querySelector("#find");
      if (find) {
        e.preventDefault();
        find.closest("dialog")?.showModal();
        find.focus();
      }
      return;
    }
    const act = local.get(e.key) || extra[e.key];
    if (act) {
      e.preventDefault();
      act(e);
    }
  });
  document.addEventListener("keydown", moveRows);
  document.addEventListener("click", e => {
    const d = e.target.closest("dialog.sheet");
    if (d && (e.target === d || e.target.closest("[data-close]"))) d.close();
  });
}

/* Tables and tiles: arrows move between rows that can be focused, Enter opens. */
function moveRows(e) {
  const row = e.target.closest?.("[data-row]");
  if (!row || typing(e.target)) return;
  const rows = [...row.parentElement.querySelectorAll(":scope > [data-row]")],
    i = rows.indexOf(row),
    to = { ArrowDown: i + 1, ArrowUp: i - 1 }[e.key];
  if (to !== undefined && rows[to]) {
    e.preventDefault();
    rows[to].focus();
  }
  if (e.key === "Enter" && e.target === row) row.querySelector("a[href]")?.click();
}
