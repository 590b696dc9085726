/* An action is confirmed over the page it was asked on. The same address is a page of its own: without this script, in
   another tab, and whenever the answer is not what was expected. Focus comes back to the button. */

import { wire } from "./confirm.js";
import { quoteForms } from "./forms.js";
import { render } from "./times.js";

let opening = null; // the address of the one that is on its way: a second click is the same one

export async function confirmOver(link) {
  const address = link.href;
  if (opening || document.querySelector("dialog.over")) {
    if (opening !== address) link.removeAttribute("aria-busy");
    return;
  }
  opening = address;
  busy();
  document.addEventListener("paceline:swapped", busy);
  const found = await fetch(address, { credentials: "same-origin" }).then(read).catch(() => null); // also one cut off in the middle
  document.removeEventListener("paceline:swapped", busy);
  opening = null;
  for (const one of document.querySelectorAll("a[aria-busy]")) one.removeAttribute("aria-busy");
  if (!found) {
    location.assign(address);
    return;
  }
  new Over(address, link).open(found);
}

/* The button says that it was taken, also when the part around it is made again meanwhile. */
function busy() {
  for (const one of document.querySelectorAll("a.act, a.btn")) if (one.href === opening) one.setAttribute("aria-busy", "true");
}

/* The form of an answer, with what went wrong above it; null where it holds none. */
async function read(answer) {
  if (!answer || answer.redirected) return null;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html"),
    form = page.querySelector("#confirm");
  return form && { form: document.adoptNode(form), banner: page.querySelector(".dlg-banner") };
}

class Over {
  constructor(address, link) {
    Object.assign(this, { address, link });
    this.box = Object.assign(document.createElement("dialog"), { className: "over" });
    this.box.setAttribute("aria-labelledby", "t");
    this.box.addEventListener("close", () => this.gone());
    this.back = () => {
      this.pushed = false; // the browser's Back: the entry is gone already
      this.box.close();
    };
  }
  open(found) {
    document.body.append(this.box);
    this.fill(found);
    history.pushState({ over: true }, "", location.href);
    this.pushed = true;
    addEventListener("popstate", this.back);
    this.box.showModal();
    this.box.querySelector("h1").focus();
  }
  fill({ form, banner }) {
    this.ends?.abort();
    this.ends = new AbortController();
    form.action = this.address;
    this.box.replaceChildren(form);
    if (banner) form.querySelector("header").after(document.adoptNode(banner));
    form.querySelector("h1").tabIndex = -1;
    form.querySelector("#cancel").addEventListener("click", e => {
      e.preventDefault();
      this.box.close();
    });
    form.addEventListener("submit", e => this.send(e));
    wire(form, { address: this.address, signal: this.ends.signal });
    window.htmx.process(this.box);
    render(this.box);
    quoteForms(this.box);
  }
  async send(e) {
    e.preventDefault();
    const form = e.target,
      body = new FormData(form, e.submitter || undefined);
    const answer = await fetch(this.address, {
      method: "POST",
      body,
      credentials: "same-origin",
      headers: { "HX-Request": "true", "HX-Current-URL": location.href },
    }).catch(() => null);
    const next = answer?.headers.get("HX-Redirect");
    if (next) {
      location.assign(next);
      return;
    }
    const found = await read(answer).catch(() => null);
    if (found) {
      this.fill(found);
      this.box.querySelector(".dlg-banner")?.scrollIntoView({ block: "nearest" });
    } else this.unsure(form);
  }
  /* No answer that says so: it may have been done. The same press again shows the same action, by its key. */
  unsure(form) {
    const said = Object.assign(document.createElement("p"), {
      className: "banner warn dlg-banner",
      textContent: "No answer came, so it is not known whether it was taken. Pressing again cannot do it twice.",
    });
    said.setAttribute("role", "alert");
    form.querySelector(".dlg-banner")?.remove();
    form.querySelector("header").after(said);
    dispatchEvent(new Event("pageshow"));
  }
  gone() {
    this.ends?.abort();
    window.htmx.trigger(this.box.querySelector("#figures"), "htmx:abort"); // what is still on its way has no place any more
    removeEventListener("popstate", this.back);
    this.box.remove();
    if (this.pushed) history.back();
    const here = this.link.isConnected
      ? this.link
      : [...document.querySelectorAll("a.act")].find(a => a.href === this.address);
    here?.focus();
  }
}
