/* The confirm page: the button is on only when everything is said; a run that moved on is looked at again. The server checks all of it too. */

const LEAST = 10;

/* The page of its own: Esc and Cancel go back to where it was asked. */
export function start() {
  const form = document.querySelector("#confirm");
  if (!form) return;
  wire(form, { address: location.href });
  document.addEventListener("keydown", e => {
    if (e.key === "Escape" && !document.querySelector("dialog[open]"))
      location.assign(form.querySelector("#cancel").href);
  });
}

/* Makes a confirm form work, on its own page or in a dialog over another one. `signal` ends what listens outside it. */
export function wire(form, { address, signal } = {}) {
  const $ = q => form.querySelector(q);
  const go = $("#go"),
    lack = $("#lack"),
    reason = $("#reason"),
    typed = $("#typed"),
    name = form.dataset.name,
    seen = { attempt: form.elements.expected_attempt.value, state: form.elements.expected_state.value };
  let moved = false,
    sent = false,
    asked = false,
    touched = new URL(address, location.href).searchParams.has("when"); // a moment that somebody chose stays chosen

  const picked = () => form.querySelector('input[name="when"]:checked');
  const open = () => {
    if (!form.dataset.may) return "You may look, not act here.";
    if (moved) return "The run moved on: look at the figures again.";
    if (form.querySelector("[data-shut]")) return `Off: ${form.querySelector("[data-shut]").textContent}`;
    const short = LEAST - reason.value.trim().length;
    if (short > 0) return `Say why: ${short} more character${short > 1 ? "s" : ""}.`;
    const from = $("#from-step");
    if (from?.required && !from.value) return "Choose from which checkpoint to go on.";
    if (name && typed.value.trim() !== name) return off(typed.value.trim());
    return "";
  };
  const off = text =>
    !text
      ? `Type ${name} to confirm.`
      : name.startsWith(text)
        ? `${name.length - text.length} ${name.length - text.length === 1 ? "letter is" : "letters are"} missing.`
        : `That is not ${name}.`;
  const check = () => {
    if (!go) return;
    const why = open();
    go.disabled = Boolean(why) || sent;
    go.setAttribute("aria-busy", String(sent));
    lack.textContent = sent ? "" : why;
  };
  const choose = () => {
    const radio = picked(),
      cell = radio?.closest("th");
    if (!radio) return;
    if (go) go.textContent = radio.dataset.button;
    if (!cell) return;
    const i = [...cell.parentElement.children].indexOf(cell);
    for (const row of form.querySelectorAll(".opts tr"))
      [...row.children].forEach((c, k) => c.classList.toggle("on", k === i && k > 0));
  };
  form.addEventListener("input", check);
  form.addEventListener("change", e => {
    if (e.target.name === "when") {
      touched = true;
      kept = e.target.value;
      choose();
      again();
    }
    if (e.target.name === "requeued") {
      queued = e.target.value;
      again();
    }
    if (e.target.id === "from-step") {
      from = e.target.value;
      again();
    }
  });
  /* The figures, and what would happen, are made again for what is chosen. */
  const again = () => {
    asked = true;
    const u = new URL(address, location.href);
    if (kept) u.searchParams.set("when", kept);
    if (from) u.searchParams.set("from_step", from);
    else u.searchParams.delete("from_step");
    if (queued) u.searchParams.set("requeued", queued);
    if (queued === "RELEASE") u.searchParams.delete("from_step"); // a job that goes on cannot be told one
    $("#figures").setAttribute("hx-get", `${u.pathname}?${u.searchParams}&part=figures`);
    window.htmx.process($("#figures"));
    window.htmx.ajax("GET", `${u.pathname}?${u.searchParams}&part=figures`, { target: "#figures", swap: "innerHTML" });
  };
  form.addEventListener("keydown", e => {
    if (e.key === "Enter" && e.target.tagName === "INPUT") e.preventDefault();
  });
  form.addEventListener("submit", () => {
    sent = true;
    setTimeout(check, 0);
  });
  addEventListener(
    "pageshow",
    () => {
      sent = false;
      check();
    },
    { signal },
  );

  /* All that is said is of one look. What somebody chose is kept; else the cheapest moment stays chosen until words are
     written for it: nothing changes under the hand that is about to press. */
  let kept = picked()?.value,
    from = $("#from-step")?.value,
    queued = form.querySelector('input[name="requeued"]:checked')?.value;
  /* Nothing is made again while somebody chooses in the list of saves, but for what they chose. */
  const before = e => {
    if (e.detail.target?.id !== "figures") return;
    if (!asked && form.querySelector("select:focus")) e.detail.shouldSwap = false;
    asked = false;
  };
  const settled = () => {
    const same = kept && form.querySelector(`input[name="when"][value="${CSS.escape(kept)}"]`);
    if (same && (touched || reason.value)) same.checked = true;
    kept = picked()?.value;
    queued = form.querySelector('input[name="requeued"]:checked')?.value;
    const save = $("#from-step");
    if (save && from !== undefined && [...save.options].some(o => o.value === from)) save.value = from;
    else if (save || !queued) from = save?.value;
    const now = $("#seen-state")?.dataset;
    if (now && (now.attempt !== seen.attempt || now.state !== seen.state) && !moved) {
      moved = true;
      $("#changed").hidden = false;
      if (typed) typed.value = "";
    }
    choose();
    check();
  };
  document.body.addEventListener("htmx:beforeSwap", before, { signal });
  document.body.addEventListener("htmx:afterSettle", settled, { signal });
  $("#looked").addEventListener("click", () => {
    const now = $("#seen-state").dataset;
    Object.assign(seen, { attempt: now.attempt, state: now.state });
    form.elements.expected_attempt.value = seen.attempt;
    form.elements.expected_state.value = seen.state;
    moved = false;
    $("#changed").hidden = true;
    check();
  });
  choose();
  check();
}
