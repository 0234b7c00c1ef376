/* A job's buttons and its backfills, both through the API. htmx requests the rest of the page again. */
(() => {
  "use strict";

  const main = document.getElementById("main");
  const { ask, confirm, link, post, refuse, report, send } = window.ondot;
  const section = document.getElementById("backfills");
  const address = `/v1/jobs/${main.dataset.job}`;
  const AGAIN_MS = 300;

  const dialog_of = (what) => document.getElementById(`${what}-dialog`);

  /* The address with the reason, for the audit log. */
  function because(path, form) {
    const reason = (form.get("reason") || "").trim();
    return reason ? `${path}${path.includes("?") ? "&" : "?"}reason=${encodeURIComponent(reason)}` : path;
  }

  async function run() {
    const form = await ask(dialog_of("run"));
    if (!form) return;
    const field = dialog_of("run").querySelector("[name=payload]");
    // As text: parsing and writing it again would round numbers that are too large for JavaScript.
    const text = field && field.value !== field.defaultValue ? `{"payload": ${field.value}}` : undefined;
    const started = await post(because(`${address}/run`, form), text);
    report("The job is started: ", link(`/executions/${started.execution_id}`, "the new execution"));
  }

  async function pause() {
    const form = await ask(dialog_of("pause"));
    if (!form) return;
    await post(because(`${address}/pause`, form));
    report("The job is paused.");
  }

  async function resume() {
    const form = await ask(dialog_of("resume"));
    if (!form) return;
    await send("POST", because(`${address}/resume`, form), form.get("missed") ? { missed: form.get("missed") } : undefined);
    report("The job is resumed.");
  }

  async function remove() {
    const form = await ask(dialog_of("delete"));
    if (!form) return;
    await send("DELETE", because(form.get("cancel_runs") ? `${address}?cancel_runs=true` : address, form));
    report("The job is deleted. ", link("/jobs", "All jobs"));
  }

  // --- Backfill: a dry run counts while the range is entered ---

  const instant_of = (text) => (text ? new Date(text).toISOString() : "");

  function range_of(form) {
    const body = { from_at: instant_of(form.get("from")), to_at: instant_of(form.get("to")), order: form.get("order") };
    return { ...body, concurrency: Number(form.get("concurrency")) || 1 };
  }

  let counting = null;

  async function count_fires() {
    const dialog = dialog_of("backfill");
    const words = dialog.querySelector("[data-count]");
    const form = new FormData(dialog.querySelector("form"));
    if (!form.get("from") || !form.get("to")) return;
    try {
      const counted = await send("POST", `${address}/backfill`, { ...range_of(form), dry_run: true });
      const more = counted.existing ? `; ${counted.existing.toLocaleString("en")} more have run or are planned` : "";
      words.textContent = `${counted.to_run.toLocaleString("en")} of ${counted.total.toLocaleString("en")} fires would run${more}.`;
    } catch (error) {
      words.textContent = error.message;
    }
  }

  async function backfill() {
    const form = await ask(dialog_of("backfill"));
    if (!form) return;
    const started = await send("POST", because(`${address}/backfill`, form), range_of(form));
    report(`The backfill of ${started.total.toLocaleString("en")} fires has started: its progress is below.`);
  }

  const backfill_dialog = dialog_of("backfill");
  if (backfill_dialog) backfill_dialog.addEventListener("input", () => {
    clearTimeout(counting);
    counting = setTimeout(count_fires, AGAIN_MS);
  });

  async function cancel(button) {
    if (!await confirm("Cancel this backfill? Executions that have not started will not run.")) return;
    await post(button.dataset.path);
    report("The backfill is cancelled.");
  }

  async function reset() {
    const form = await ask(dialog_of("reset"));
    if (!form) return;
    const done = await post(because(`${address}/reset`, form));
    report(`The job is as the code declares it: version ${done.version}.`);
  }

  const ACTIONS = { run, pause, resume, reset, backfill, cancel, delete: remove };

  async function act(button) {
    try {
      await ACTIONS[button.dataset.act](button);
    } catch (error) {
      refuse(error);
    }
    window.htmx.trigger("#job", "changed");
    await show_backfills();
  }

  const cell = (tag, text, kind) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  function instant(written) {
    const shown = cell("time", "", "clock whole"); // live.js shows it
    shown.dateTime = written;
    shown.dataset.clock = "date";
    return shown;
  }

  function row_of(backfill) {
    const row = document.createElement("tr");
    const ended = backfill.succeeded + backfill.failed + backfill.stopped;
    const to_run = backfill.total - backfill.existing;
    const range = document.createElement("th");
    range.scope = "row";
    range.append(instant(backfill.from_at), " to ", instant(backfill.to_at), cell("span", `${backfill.order} first, ${backfill.concurrency} at a time`, "note"));
    const progress = cell("td", "", "progress");
    const bar = document.createElement("progress");
    bar.max = to_run || 1;
    bar.value = to_run ? ended : 1;
    bar.setAttribute("aria-label", "Progress of the backfill");
    progress.append(bar, cell("span", to_run ? ` ${ended} of ${to_run}` : " none to run", "percent"));
    if (backfill.existing) progress.append(cell("span", `${backfill.existing} more had already run or were planned`, "note"));
    const state = cell("td", "");
    state.append(cell("span", backfill.state[0] + backfill.state.slice(1).toLowerCase(), "state"));
    if ("mayRun" in section.dataset && (backfill.state === "RUNNING" || backfill.state === "HELD")) {
      const cancel = cell("button", "Cancel", "act");
      cancel.type = "button";
      cancel.id = `cancel-${backfill.id}`;
      cancel.dataset.act = "cancel";
      cancel.dataset.path = `${address}/backfills/${backfill.id}/cancel`;
      state.append(" ", cancel);
    }
    row.append(state, range, progress, cell("td", String(backfill.failed), "number wide"));
    return row;
  }

  async function show_backfills() {
    const response = await fetch(`${address}/backfills`, { headers: { accept: "application/json" } }).catch(() => null);
    if (!response || !response.ok) return;
    const { items } = await response.json();
    const focused = document.activeElement && document.activeElement.id;
    section.hidden = items.length === 0;
    section.querySelector("tbody").replaceChildren(...items.map(row_of));
    const target = focused && focused.startsWith("cancel-") && document.getElementById(focused);
    if (target) target.focus();
  }

  main.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act]");
    if (button) act(button);
  });
  document.body.addEventListener("htmx:afterSettle", show_backfills);
  show_backfills();
})();
