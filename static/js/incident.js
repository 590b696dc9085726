/* The incident page: chips, zone, writing between rows, keys, who else is here. The timeline itself is the server's. */

import { bands } from "./band.js";
import { onKey } from "./keys.js";
import { format, localZone, serverNow, setZone, zone } from "./times.js";

const $ = q => document.querySelector(q),
  $$ = q => [...document.querySelectorAll(q)];
const GONE_MS = 30000,
  SAY_MS = 10000,
  TYPING_MS = 2000;

export function start({ feed }) {
  const form = $("#write"),
    rows = () => $$("#tl > li[data-at]:not(.hidden-row)");
  chips();
  zones();
  presence(feed, form);
  bands(document);
  for (const moment of ["paceline:swapped", "paceline:theme"]) document.addEventListener(moment, () => bands(document));
  if (form) compose(form, rows, feed);
  const move = by => {
    const all = rows(),
      i = all.indexOf(document.activeElement.closest?.("#tl > li"));
    all[Math.max(0, Math.min(all.length - 1, i + by))]?.focus();
  };
  onKey("j", () => move(1));
  onKey("k", () => move(-1));
  onKey("a", () => $("#acknowledge")?.click());
  onKey("o", () => $("[data-open-dialog='#assign']")?.click());
  onKey("x", () => {
    const off = $$("[data-chip]").filter(c => c.dataset.chip !== "people"),
      any = off.some(c => c.getAttribute("aria-pressed") === "true");
    for (const c of off) c.setAttribute("aria-pressed", String(!any));
    show();
  });
  arrivals();
}

/* ---- which rows show: by the chips, and what happened long before only where somebody opened it ---- */
let unfolded = new URLSearchParams(location.search).has("earlier");
const show = () => {
  const on = new Set($$('[data-chip][aria-pressed="true"]').map(c => c.dataset.chip)),
    fold = $("#earlier");
  let n = 0;
  for (const li of $$("#tl > li[data-group]")) {
    const wanted = on.has(li.dataset.group),
      early = "earlier" in li.dataset;
    n += wanted && early;
    li.classList.toggle("hidden-row", !wanted || (early && !unfolded));
  }
  if (!fold) return;
  fold.setAttribute("aria-expanded", String(unfolded));
  fold.querySelector("[data-earlier-count]").textContent = `${n} earlier row${n === 1 ? "" : "s"}`;
  fold.closest("li").classList.toggle("hidden-row", !n);
};
function chips() {
  if (document.getElementById(location.hash.slice(1))?.dataset.earlier !== undefined) unfolded = true;
  const hidden = new URLSearchParams(location.search).get("hide");
  if (hidden !== null)
    for (const c of $$("[data-chip]"))
      c.setAttribute("aria-pressed", String(!hidden.split(",").includes(c.dataset.chip)));
  document.addEventListener("click", e => {
    if (e.target.closest("#earlier")) {
      unfolded = !unfolded;
      show();
      const u = new URL(location.href);
      if (unfolded) u.searchParams.set("earlier", "1");
      else u.searchParams.delete("earlier");
      history.replaceState(null, "", u.href.replaceAll("%2C", ","));
    }
    const chip = e.target.closest("[data-chip]");
    if (!chip) return;
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
    show();
    const u = new URL(location.href),
      off = $$('[data-chip][aria-pressed="false"]')
        .map(c => c.dataset.chip)
        .join(",");
    if (off === "system") u.searchParams.delete("hide");
    else u.searchParams.set("hide", off);
    history.replaceState(null, "", u.href.replaceAll("%2C", ","));
  });
  document.addEventListener("paceline:swapped", show);
  // Settling gives a row that has a name the class that the server sent, after it was shown: it is shown again before a frame.
  document.body.addEventListener("htmx:afterSettle", e => e.detail.target?.id === "timeline" && show());
  show();
}
function zones() {
  const mark = () => {
    const choice = document.querySelector("[data-zones]");
    if (choice) choice.hidden = /^(UTC|GMT)$/.test(localZone()) && zone() !== "utc"; // one zone is no choice
    for (const b of $$("[data-zone]")) {
      b.setAttribute("aria-pressed", String(b.dataset.zone === zone()));
      if (b.dataset.zone === "local") b.textContent = localZone();
    }
  };
  document.addEventListener("click", e => {
    const b = e.target.closest("[data-zone]");
    if (b) {
      setZone(b.dataset.zone);
      mark();
    }
  });
  mark();
}

/* ---- writing ---- */
function compose(form, rows, feed) {
  const home = form.parentElement,
    text = form.elements.text,
    at = form.elements.at,
    atRow = form.querySelector("[data-at-row]"),
    cancel = form.querySelector("[data-cancel]"),
    earlier = form.querySelector("[data-backdate]"),
    add = form.querySelector("[type=submit]"),
    plain = form.getAttribute("hx-post");
  const holder = Object.assign(document.createElement("li"), { className: "writing" });
  let place = null,
    editing = null;
  form.querySelector("#zone").textContent = zone() === "utc" ? "UTC" : localZone();
  const two = n => String(n).padStart(2, "0");
  const stamp = date => {
    const u = zone() === "utc",
      g = k => (u ? date[`getUTC${k}`]() : date[`get${k}`]());
    const today = serverNow(),
      same = date.toDateString() === today.toDateString();
    const clock = `${two(g("Hours"))}:${two(g("Minutes"))}:${two(g("Seconds"))}`;
    return same ? clock : `${g("FullYear")}-${two(g("Month") + 1)}-${two(g("Date"))} ${clock}`;
  };
  const target = address => {
    form.setAttribute("hx-post", address);
    form.setAttribute("action", address);
    window.htmx.process(form);
  };
  const put = () => {
    // between the rows, where its time is
    if (!place) return;
    const li = $$("#tl > li[data-at]").find(r => r.id === place.before);
    const tl = $("#tl");
    holder.replaceChildren(
      Object.assign(document.createElement("div"), { className: "when" }),
      Object.assign(document.createElement("span"), { className: "dot person late" }),
      form,
    );
    tl.insertBefore(holder, li || null);
  };
  const open = (moment, before) => {
    place = { before };
    atRow.hidden = cancel.hidden = false;
    earlier.hidden = true;
    at.value = stamp(moment);
    put();
    text.focus();
  };
  const close = () => {
    place = null;
    editing = null;
    holder.remove();
    home.insertBefore(form, home.querySelector("#timeline").nextSibling);
    atRow.hidden = cancel.hidden = true;
    earlier.hidden = false;
    at.value = "";
    text.value = "";
    form.classList.remove("filled");
    add.textContent = "Add note";
    form.elements.version.value = "";
    if (form.getAttribute("hx-post") !== plain) target(plain);
    preview();
  };
  const insertBefore = li => {
    const list = rows(),
      i = list.indexOf(li),
      a = list[i - 1]?.dataset.at,
      b = li?.dataset.at;
    const moment =
      a && b ? new Date((+new Date(a) + +new Date(b)) / 2) : b ? new Date(+new Date(b) - 1000) : serverNow();
    open(moment, li?.id);
  };

  document.addEventListener("click", e => {
    const insert = e.target.closest("[data-insert]"),
      edit = e.target.closest("[data-edit]");
    if (insert) insertBefore(insert.closest("li"));
    if (edit) change(edit.closest("li"));
    if (e.target.closest("[data-cancel]")) close();
    if (e.target.closest("[data-backdate]")) {
      atRow.hidden = cancel.hidden = false;
      earlier.hidden = true;
      at.value = stamp(serverNow());
      at.focus();
      at.select();
    }
  });
  function change(li) {
    const words = li.querySelector(".note-text");
    close();
    editing = li.dataset.note;
    open(new Date(li.dataset.at), li.id);
    text.value = words.innerText;
    add.textContent = "Keep changes";
    form.elements.version.value = li.dataset.version;
    target(`${plain}/${editing}`);
  }
  const preview = () => {
    const box = $("#paste-preview"),
      lines = text.value.split("\n").filter(l => l.trim()),
      found = lines.map(l => /^\s*(\d{1,2}:\d{2}(?::\d{2})?)\s+(.+)$/.exec(l));
    box.hidden = !(lines.length > 1 && found.every(Boolean));
    if (!box.hidden)
      box.textContent = `${lines.length} notes, of the newest ${found[0][1]} that has passed: ${found.map(f => f[1]).join(", ")} (${zone() === "utc" ? "UTC" : localZone()})`;
  };
  text.addEventListener("input", () => {
    form.classList.toggle("filled", Boolean(text.value));
    preview();
  });
  form.addEventListener("htmx:configRequest", e => {
    e.detail.parameters.offset_min = zone() === "utc" ? "0" : String(-new Date().getTimezoneOffset());
  });
  form.addEventListener("submit", () => {
    form.elements.offset_min.value = zone() === "utc" ? "0" : String(-new Date().getTimezoneOffset());
  });
  form.addEventListener("htmx:afterRequest", e => {
    if (e.detail.successful && e.target === form) close();
  });
  form.addEventListener("keydown", e => {
    if (e.key === "Escape") {
      close();
    }
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) form.requestSubmit();
  });

  /* A refresh of the timeline takes the composer along: out before, back in after, the cursor where it was. */
  let caret = null;
  document.body.addEventListener("htmx:beforeSwap", e => {
    if (e.detail.target?.id !== "timeline" || !place) return;
    caret = document.activeElement === text ? [text.selectionStart, text.selectionEnd] : null;
    home.append(form);
  });
  document.body.addEventListener("htmx:afterSwap", e => {
    if (e.detail.target?.id !== "timeline" || !place) return;
    put();
    if (caret) {
      text.focus();
      text.setSelectionRange(...caret);
    }
  });
  onKey("i", () => {
    const li = document.activeElement.closest?.("#tl > li[data-at]");
    if (li) insertBefore(li);
  });
  onKey("w", () => {
    close();
    text.focus();
  });
  onKey("e", () => {
    const li = document.activeElement.closest?.("#tl > li[data-own]");
    if (li) change(li);
  });
  if (location.hash === "#write" || text.value) text.focus();
}

/* ---- who is here ---- */
function presence(feed, form) {
  if (!feed) return;
  const list = $("#here"),
    self = list.firstElementChild,
    others = new Map();
  let doing = "reading",
    typing = 0;
  const say = () => feed.say({ type: "presence", doing });
  const draw = () => {
    const now = Date.now(),
      lines = [self];
    for (const [who, at] of others) {
      const away = at.doing === "left" || now - at.heard > GONE_MS;
      if (away && now - at.heard > 10 * 60 * 1000) {
        others.delete(who);
        continue;
      }
      const li = Object.assign(document.createElement("li"), { className: away ? "away" : "" });
      li.append(
        `${who} `,
        Object.assign(document.createElement("span"), {
          className: "faint sm",
          textContent: away ? `left ${format(new Date(at.heard), "hm")}` : at.doing,
        }),
      );
      lines.push(li);
    }
    list.replaceChildren(...lines);
  };
  const me = self.textContent.replace(/\s+you\s*$/, "").trim();
  feed.on("presence", m => {
    if (m.who === me) return;
    const known = others.get(m.who);
    others.set(m.who, { doing: m.doing, heard: Date.now() });
    draw();
    if (!known || known.doing === "left") say();
  });
  setInterval(() => {
    say();
    draw();
  }, SAY_MS);
  form?.elements.text.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      const at = form.elements.at.value;
      doing = form.elements.text.value ? (at ? `inserting at ${at.slice(0, 5)}` : "writing") : "reading";
      say();
    }, TYPING_MS);
  });
  form?.addEventListener("htmx:afterRequest", () => {
    doing = "reading";
    say();
  });
}

/* Rows that arrived with a refresh are marked; a chip says so when they are out of sight. */
function arrivals() {
  let known = new Set($$("#tl > li[id]").map(li => li.id));
  document.body.addEventListener("htmx:afterSwap", e => {
    if (e.detail.target?.id !== "timeline") return;
    const fresh = $$("#tl > li[id]").filter(li => !known.has(li.id));
    known = new Set($$("#tl > li[id]").map(li => li.id));
    for (const li of fresh) {
      li.classList.add("new-row");
      setTimeout(() => li.classList.remove("new-row"), 2000);
    }
    const above = fresh.filter(li => !li.classList.contains("hidden-row") && li.getBoundingClientRect().bottom < 0);
    if (above.length) chip(above);
  });
  function chip(rows) {
    document.querySelector(".above")?.remove();
    const b = Object.assign(document.createElement("button"), {
      className: "chip above",
      type: "button",
      textContent: `${rows.length} new row${rows.length > 1 ? "s" : ""} above`,
    });
    b.setAttribute("aria-pressed", "true");
    b.onclick = () => {
      rows[0].scrollIntoView({ block: "center" });
      rows[0].focus();
      b.remove();
    };
    $("#timeline-box").prepend(b);
    setTimeout(() => b.remove(), 15000);
  }
}
