/* Changes many rows of a list through the API: a dry run counts them, a dialog asks, then the operation starts. Shows
   the progress of operations, with buttons to stop or undo them. */
(() => {
  "use strict";

  const { ask, link, post, refuse, report } = window.ondot;
  const API = "/v1/bulk";
  const POLL_MS = 1000;
  const SHOWN_MS = 10 * 60 * 1000; // how long an ended operation is shown
  const main = document.getElementById("main");
  const section = document.getElementById("operations");
  const of = section.dataset.of;
  const noun = of.replace(/s$/, "");
  let timer = null;
  let was_running = false;

  const count_words = (number, least) =>
    `${least ? "at least " : ""}${number.toLocaleString("en")} ${number === 1 ? noun : of}`;
  const boxes = () => [...main.querySelectorAll("input.picked")];
  const list_picked = () => boxes().filter((box) => box.checked).map((box) => box.value);

  function show_picked() {
    const count = list_picked().length;
    const words = document.getElementById("picked");
    if (!words) return;
    words.textContent = count ? `${count} selected` : "None selected";
    for (const button of main.querySelectorAll("[data-picked]")) button.disabled = count === 0;
    const all = document.getElementById("pick-all");
    if (!all) return;
    all.checked = count > 0 && count === boxes().length;
    all.indeterminate = count > 0 && !all.checked;
  }

  /* "team=bi, old=" as {team: "bi", old: null}. */
  function read_labels(text) {
    const labels = {};
    for (const part of text.split(",").map((one) => one.trim()).filter(Boolean)) {
      const at = part.indexOf("=");
      if (at < 1) throw new Error(`${part} is not NAME=VALUE. To remove a label, write ${part}=`);
      labels[part.slice(0, at)] = part.slice(at + 1) || null;
    }
    return labels;
  }

  async function act(button) {
    const action = button.dataset.act;
    const selection = button.dataset.q ? { q: button.dataset.q } : { ids: list_picked() };
    const is_update = action === "update";
    const trial = { of, action, ...selection, dry_run: true };
    if (is_update) trial.set = { priority: "normal" };
    const counted = await post(API, JSON.stringify(trial));
    if (counted.count === 0) throw new Error(`No ${noun} matches any more.`);
    const dialog = document.getElementById("many-dialog");
    dialog.querySelector("[data-action]").textContent = button.textContent.trim();
    dialog.querySelector("[data-count]").textContent = count_words(counted.count, counted.count_is_least);
    const refused = dialog.querySelector("[data-refused]");
    refused.hidden = counted.refused === 0;
    if (counted.refused) refused.textContent = `${counted.refused.toLocaleString("en")} would be refused: ${counted.refusals[0].detail}`;
    dialog.querySelector("[data-change]").hidden = !is_update;
    const form = await ask(dialog);
    if (!form) return;
    const body = { of, action, ...selection, per_s: Number(form.get("per_s")) };
    const reason = (form.get("reason") || "").trim();
    if (reason) body.reason = reason;
    if (is_update) {
      body.set = {};
      const labels = read_labels(form.get("labels") || "");
      if (Object.keys(labels).length) body.set.labels = labels;
      if (form.get("priority")) body.set.priority = form.get("priority");
    }
    const started = await post(API, JSON.stringify(body));
    report("The operation has started. ", link(`/bulk/${started.id}`, "See its progress and results"));
  }

  function make(tag, kind, text) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    element.textContent = text;
    return element;
  }

  function button_of(words, what, id) {
    const button = make("button", "act", words);
    button.type = "button";
    button.id = `${what}-${id}`;
    button.dataset[what] = id;
    return button;
  }

  function row_of(operation) {
    const row = make("li", "bulk", "");
    const reached = operation.done + operation.refused + operation.unchanged;
    const bar = document.createElement("progress");
    bar.max = Math.max(operation.total, reached, 1);
    bar.value = operation.total ? reached : 1;
    bar.setAttribute("aria-label", `Progress of the operation: ${operation.action}`);
    const words = [`${operation.done.toLocaleString("en")} of ${count_words(operation.total, operation.total_is_least)}`];
    if (operation.refused) words.push(`${operation.refused.toLocaleString("en")} refused`);
    const name = make("b", "", "");
    name.append(link(`/bulk/${operation.id}`, operation.action));
    row.append(name, bar, make("span", "far", words.join(", ")), make("span", "state", operation.state.toLowerCase()));
    if (operation.refused) {
      const why = link(`/bulk/${operation.id}?result=refused`, "why?");
      why.className = "far";
      row.append(why);
    }
    if (operation.stopped_because) row.append(make("span", "quiet breaks", operation.stopped_because));
    if ("mayRun" in section.dataset) {
      if (operation.state === "RUNNING") row.append(button_of("Stop", "stop", operation.id));
      else if (operation.can_be_undone) row.append(button_of("Undo", "undo", operation.id));
    }
    return row;
  }

  async function show_operations() {
    clearTimeout(timer);
    const response = await fetch(`${API}?of=${of}&limit=5`, { headers: { accept: "application/json" } }).catch(() => null);
    const items = response && response.ok ? (await response.json()).items : [];
    const now = document.querySelector("[data-now]");
    const now_ms = now ? Date.parse(now.dateTime || now.dataset.now) : Date.now();
    const recent = items.filter((item) => !item.ended_at || now_ms - Date.parse(item.ended_at) < SHOWN_MS);
    const is_running = recent.some((item) => item.state === "RUNNING");
    section.hidden = recent.length === 0;
    section.querySelector("h2").textContent = is_running ? "In progress" : "Recently done";
    section.querySelector("ul").replaceChildren(...recent.map(row_of));
    if (was_running && !is_running) refresh(); // the list shows what changed
    was_running = is_running;
    if (is_running) timer = setTimeout(show_operations, POLL_MS);
  }

  function refresh() {
    const list = main.querySelector("[hx-get]");
    if (list) window.htmx.trigger(list, "changed");
    else window.location.reload();
  }

  async function handle_click(button) {
    try {
      if (button.dataset.stop) {
        await post(`${API}/${button.dataset.stop}/stop`);
        report("The operation is stopped. What it has changed stays changed.");
      } else if (button.dataset.undo) {
        await post(`${API}/${button.dataset.undo}/undo`);
      } else await act(button);
    } catch (error) {
      refuse(error);
    }
    await show_operations();
  }

  main.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act], button[data-stop], button[data-undo]");
    if (button) handle_click(button);
  });
  main.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") for (const box of boxes()) box.checked = event.target.checked;
    show_picked();
  });
  document.body.addEventListener("htmx:afterSettle", show_picked);
  show_picked();
  show_operations();
})();
