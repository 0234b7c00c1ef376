/* Replaying and discarding dead letters through the API: counted first by a dry run, asked about, then done; and how far
   operations on many of them are. The letters themselves are asked for again by htmx. */
(() => {
  "use strict";

  const { ask, link, post, refuse, tell } = window.ondot;
  const API = "/v1/dead-letters";
  const main = document.getElementById("main");
  const section = document.getElementById("operations");
  const LOOK_MS = 1000;
  const SHOWN_MS = 10 * 60 * 1000; // how long an ended operation is shown
  const DONE = { replay: "replayed", discard: "discarded" };
  let looking = null;

  const counted = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
  const boxes = () => [...main.querySelectorAll(".letter-list input[type=checkbox]")];
  const picked = () => boxes().filter((box) => box.checked).map((box) => box.value);

  function show_picked() {
    const count = picked().length;
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
    const which = button.dataset.which ? JSON.parse(button.dataset.which) : { ids: picked() };
    const trial = { ...which, dry_run: true, reason: "a count" };
    const { count } = await post(`${API}/${what}`, JSON.stringify(trial));
    if (count === 0) throw new Error("None of them is open any more: somebody else was faster.");
    const dialog = document.getElementById(`${what}-dialog`);
    dialog.querySelector("[data-count]").textContent = count === 1 ? "this letter" : counted(count, "letter", "letters");
    for (const field of dialog.querySelectorAll("[data-bulk]")) {
      field.hidden = Boolean(which.ids);
      field.querySelector("input").disabled = Boolean(which.ids);
    }
    const form = await ask(dialog);
    if (!form) return;
    const reason = (form.get("reason") || "").trim();
    const body = { ...which };
    if (reason) body.reason = reason;
    if (form.get("version")) body.version = form.get("version");
    if (form.get("rate")) body.rate = Number(form.get("rate"));
    tell_done(what, await post(`${API}/${what}`, JSON.stringify(body)));
  }

  function tell_done(what, answer) {
    if (answer.action) {
      tell(`${counted(answer.total, "letter is", "letters are")} being ${DONE[what]}: see below.`);
      return;
    }
    const refused = answer.items.filter((item) => item.detail).map((item) => item.detail);
    const parts = [`${counted(answer.done, "letter was", "letters were")} ${DONE[what]}.`];
    const made = answer.items.filter((item) => item.replay_id && !item.detail);
    if (made.length === 1) parts.push(" ", link(`/executions/${made[0].replay_id}`, "The execution that runs it again"));
    if (refused.length) parts.push(` ${counted(refused.length, "was", "were")} left: ${refused[0]}`);
    tell(...parts);
  }

  // --- Operations ---

  function made(tag, kind, text) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    element.textContent = text;
    return element;
  }

  function row_of(operation) {
    const row = made("li", "bulk", "");
    const action = operation.action === "replay" ? "Replay" : "Discard";
    const bar = document.createElement("progress");
    bar.max = operation.total || 1;
    bar.value = operation.total ? operation.done : 1;
    bar.setAttribute("aria-label", `Progress of the ${operation.action}`);
    const words = `${operation.done.toLocaleString("en")} of ${counted(operation.total, "letter", "letters")}, ${operation.rate} a second`;
    row.append(made("b", "", action), bar, made("span", "far", words), made("span", "state", operation.state.toLowerCase()));
    if (operation.reason) row.append(made("span", "quiet breaks", operation.reason));
    if (operation.state === "RUNNING") {
      const stop = made("button", "act", "Stop");
      stop.type = "button";
      stop.id = `stop-${operation.id}`;
      stop.dataset.stop = operation.id;
      row.append(stop);
    }
    return row;
  }

  async function look() {
    clearTimeout(looking);
    const response = await fetch(`${API}/operations?limit=5`, { headers: { accept: "application/json" } }).catch(() => null);
    const items = response && response.ok ? (await response.json()).items : [];
    const now = document.querySelector("[data-now]");
    const now_ms = now ? Date.parse(now.dateTime) : Date.now();
    const shown = items.filter((item) => !item.ended_at || now_ms - Date.parse(item.ended_at) < SHOWN_MS);
    const focused = document.activeElement && document.activeElement.id;
    section.hidden = shown.length === 0;
    section.querySelector("h2").textContent = shown.some((item) => item.state === "RUNNING") ? "Under way" : "Recently done";
    section.querySelector("ul").replaceChildren(...shown.map(row_of));
    const again = focused && focused.startsWith("stop-") && document.getElementById(focused);
    if (again) again.focus();
    if (!items.some((item) => item.state === "RUNNING")) return;
    looking = setTimeout(async () => {
      await look();
      renew();
    }, LOOK_MS);
  }

  const renew = () => window.htmx.trigger("#letters", "changed");

  async function clicked(button) {
    try {
      if (button.dataset.stop) {
        await post(`${API}/operations/${button.dataset.stop}/cancel`);
        tell("It is stopped: what was done stays done.");
      } else await act(button);
    } catch (error) {
      refuse(error);
    }
    renew();
    await look();
  }

  main.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act], button[data-stop]");
    if (button) clicked(button);
  });
  main.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") for (const box of boxes()) box.checked = event.target.checked;
    show_picked();
  });
  document.body.addEventListener("htmx:afterSettle", show_picked);
  show_picked();
  look();
})();
