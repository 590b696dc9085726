/* Small helps for forms and buttons; each page works without them. */

/* Puts a text on the clipboard; returns whether it is there. Browsers offer their clipboard to https and localhost alone. */
export async function copy(text) {
  if (navigator.clipboard)
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  const area = Object.assign(document.createElement("textarea"), { value: text, className: "vh" });
  (document.querySelector("dialog[open]") || document.body).append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

export function quoteForms(root) {
  for (const el of root.querySelectorAll("[data-copy]"))
    if (!el.dataset.wired) {
      el.dataset.wired = "1";
      el.hidden = false;
      el.addEventListener("click", async e => {
        e.preventDefault();
        const done = await copy(el.dataset.copy);
        if (done && el.dataset.copied && el.form)
          fetch(el.dataset.copied, { method: "POST", body: new FormData(el.form), credentials: "same-origin" }).catch(
            () => {},
          ); // the log keeps who copied what
        el.dataset.words ||= el.textContent;
        el.textContent = done ? "Copied" : "Not copied: select it by hand";
        setTimeout(() => {
          el.textContent = el.dataset.words;
        }, 1600);
      });
    }
  for (const el of root.querySelectorAll("select[data-go]"))
    if (!el.dataset.wired) {
      el.dataset.wired = "1";
      el.addEventListener("change", () => (el.form ? el.form.requestSubmit() : location.assign(el.value)));
    }
  for (const el of root.querySelectorAll("[data-open-dialog]"))
    if (!el.dataset.wired) {
      el.dataset.wired = "1";
      el.addEventListener("click", e => {
        const d = document.querySelector(el.dataset.openDialog);
        if (d) {
          e.preventDefault();
          d.showModal();
        }
      });
    }
}
