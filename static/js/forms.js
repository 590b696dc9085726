/* Small helps for forms and buttons; each page works without them. */

export function quoteForms(root) {
  for (const el of root.querySelectorAll("[data-copy]"))
    if (!el.dataset.wired) {
      el.dataset.wired = "1";
      el.hidden = false;
      el.addEventListener("click", async e => {
        e.preventDefault();
        await navigator.clipboard?.writeText(el.dataset.copy).catch(() => {});
        if (el.dataset.copied && el.form)
          fetch(el.dataset.copied, { method: "POST", body: new FormData(el.form), credentials: "same-origin" }).catch(
            () => {},
          ); // the log keeps who copied what
        const said = el.textContent;
        el.textContent = "Copied";
        setTimeout(() => {
          el.textContent = said;
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
