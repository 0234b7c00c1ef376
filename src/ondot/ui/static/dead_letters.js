/* Replays and discards dead letters through the API: a dry run counts them, a dialog asks, then it is done. Also shows
   the progress of bulk operations. htmx requests the letters themselves again. */
(() => {
  "use strict";

  const { ask, link, post, refuse, report } = window.ondot;
  const API = "/v1/dead-letters";
  const main = document.getElementById("main");
  const section = document.getElementById("operations");
  const POLL_MS = 1000;
  const SHOWN_MS = 10 * 60 * 1000; // how long an ended operation is shown
  const DONE = { replay: "replayed", discard: "discarded" };
  let timer = null;

  const pluralize = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
  const boxes = () => [...main.querySelectorAll(".letter-list input[type=checkbox]")];
  const list_picked = () => boxes().filter((box) => box.checked).map((box) => box.value);

  function show_picked() {
    const count = list_picked().length;
    const words = document.getElementById("picked");
    if (!words) return;
    words.textContent = count ? `${count} selected` : "None selected";
    document.getElementById("replay-picked").disabled = count === 0;
    document.getElementById("discard-picked").disabled = count === 0;
    const all = document.getElementById("pick-all");
    all.checked = count > 0 && count === boxes().length;
    all.indeterminate = count > 0 && !all.checked;
  }

  async function act(button) {
    const what = button.dataset.act;
    const selection = button.dataset.selection ? JSON.parse(button.dataset.selection) : { ids: list_picked() };
    const trial = { ...selection, dry_run: true, reason: "a count" };
    const { count } = await post(`${API}/${what}`, JSON.stringify(trial));
    if (count === 0) throw new Error("None of these letters is open any more: they were replayed or discarded meanwhile.");
    const dialog = document.getElementById(`${what}-dialog`);
    dialog.querySelector("[data-count]").textContent = count === 1 ? "this letter" : pluralize(count, "letter", "letters");
    for (const field of dialog.querySelectorAll("[data-bulk]")) {
      field.hidden = Boolean(selection.ids);
      field.querySelector("input").disabled = Boolean(selection.ids);
    }
    const form = await ask(dialog);
    if (!form) return;
    const reason = (form.get("reason") || "").trim();
    const body = { ...selection };
    if (reason) body.reason = reason;
    if (form.get("version")) body.version = form.get("version");
    if (form.get("rate")) body.rate = Number(form.get("rate"));
    report_done(what, await post(`${API}/${what}`, JSON.stringify(body)));
  }

  function report_done(what, answer) {
    if (answer.action) {
      const words = `${pluralize(answer.total, "letter is", "letters are")} being ${DONE[what]}. `;
      report(words, link(`/bulk/${answer.id}`, "See the progress and results"));
      return;
    }
    const refused = answer.items.filter((item) => item.detail).map((item) => item.detail);
    const parts = [`${pluralize(answer.done, "letter was", "letters were")} ${DONE[what]}.`];
    const replays = answer.items.filter((item) => item.replay_id && !item.detail);
    if (replays.length === 1) parts.push(" ", link(`/executions/${replays[0].replay_id}`, "Open the new execution"));
    if (refused.length) parts.push(` ${pluralize(refused.length, "letter was", "letters were")} not changed: ${refused[0]}`);
    report(...parts);
  }

  // --- Operations ---

  function make(tag, kind, text) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    element.textContent = text;
    return element;
  }

  function row_of(operation) {
    const row = make("li", "bulk", "");
    const action = operation.action === "replay" ? "Replay" : "Discard";
    const bar = document.createElement("progress");
    bar.max = operation.total || 1;
    bar.value = operation.total ? operation.done : 1;
    bar.setAttribute("aria-label", `Progress of the ${operation.action}`);
    const words = `${operation.done.toLocaleString("en")} of ${pluralize(operation.total, "letter", "letters")}, ${operation.rate} a second`;
    const name = make("b", "", "");
    name.append(link(`/bulk/${operation.id}`, action));
    row.append(name, bar, make("span", "far", words), make("span", "state", operation.state.toLowerCase()));
    if (operation.reason) row.append(make("span", "quiet breaks", operation.reason));
    if (operation.state === "RUNNING" && "mayRun" in section.dataset) {
      const stop = make("button", "act", "Stop");
      stop.type = "button";
      stop.id = `stop-${operation.id}`;
      stop.dataset.stop = operation.id;
      row.append(stop);
    }
    return row;
  }

  async function show_operations() {
    clearTimeout(timer);
    const response = await fetch(`${API}/operations?limit=5`, { headers: { accept: "application/json" } }).catch(() => null);
    const items = response && response.ok ? (await response.json()).items : [];
    const now = document.querySelector("[data-now]");
    const now_ms = now ? Date.parse(now.dateTime) : Date.now();
    const recent = items.filter((item) => !item.ended_at || now_ms - Date.parse(item.ended_at) < SHOWN_MS);
    const focused = document.activeElement && document.activeElement.id;
    section.hidden = recent.length === 0;
    section.querySelector("h2").textContent = recent.some((item) => item.state === "RUNNING") ? "In progress" : "Recently done";
    section.querySelector("ul").replaceChildren(...recent.map(row_of));
    const target = focused && focused.startsWith("stop-") && document.getElementById(focused);
    if (target) target.focus();
    if (!items.some((item) => item.state === "RUNNING")) return;
    timer = setTimeout(async () => {
      await show_operations();
      renew();
    }, POLL_MS);
  }

  const renew = () => window.htmx.trigger("#letters", "changed");

  async function handle_click(button) {
    try {
      if (button.dataset.stop) {
        await post(`${API}/operations/${button.dataset.stop}/cancel`);
        report("The operation is stopped. Letters that are already done stay done.");
      } else await act(button);
    } catch (error) {
      refuse(error);
    }
    renew();
    await show_operations();
  }

  main.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act], button[data-stop]");
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
