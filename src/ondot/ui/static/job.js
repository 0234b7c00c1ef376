/* A job's buttons and its backfills, both through the API. htmx requests the rest of the page again. */
(() => {
  "use strict";

  const main = document.getElementById("main");
  const refusal = document.getElementById("refusal");
  const announce = document.getElementById("announce");
  const section = document.getElementById("backfills");
  const address = `/v1/jobs/${main.dataset.job}`;
  const DONE = { run: "The job is started.", pause: "The job is paused.", resume: "The job is resumed.", cancel: "The backfill is cancelled." };

  function refuse(words) {
    refusal.textContent = words;
    refusal.hidden = words === "";
  }

  async function post(path, body) {
    const options = { method: "POST", headers: { accept: "application/json" } };
    if (body) {
      options.body = JSON.stringify(body);
      options.headers["content-type"] = "application/json";
    }
    const response = await fetch(path, options);
    if (response.ok) return;
    const problem = await response.json().catch(() => ({}));
    throw new Error(problem.detail || problem.title || `The server returned ${response.status}.`);
  }

  async function act(button) {
    const what = button.dataset.act;
    if (button.dataset.ask && !window.confirm(button.dataset.ask)) return;
    const missed = what === "resume" ? document.getElementById("missed").value : "";
    button.disabled = true;
    try {
      await post(button.dataset.path || `${address}/${what}`, missed ? { missed } : undefined);
      refuse("");
      announce.textContent = DONE[what];
    } catch (error) {
      refuse(error instanceof TypeError ? "The server cannot be reached. The action may not have been done: reload the page to check." : error.message);
    } finally {
      button.disabled = false;
      window.htmx.trigger("#job", "changed");
      await show_backfills();
    }
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
      cancel.dataset.ask = "Cancel this backfill? Executions that have not started will not run.";
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
