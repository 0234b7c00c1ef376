/* An execution's buttons, and its log as it comes; both through the API. The rest is asked for again by htmx. */
(() => {
  "use strict";

  const { ask, link, post, refuse, tell } = window.ondot;
  const main = document.getElementById("main");
  const log = document.getElementById("log");
  const log_state = document.getElementById("log-state");
  const follows = document.getElementById("follow");
  const again = document.getElementById("again-dialog");
  const address = `/v1/executions/${main.dataset.execution}`;
  const WAIT_S = 10; // a browser has six connections to a server for all its tabs: none is held for long, or unseen
  const LINES_A_PAGE = 1000;
  const LINES_KEPT = 5000;
  const AGAIN_MS = 2000;
  const FROM = { log: ["handler", "log"], stdout: ["stdout", "out"], stderr: ["stderr", "err"] };

  // --- What a person does ---

  const given = (form, name) => (form.get(name) || "").trim();

  async function cancel() {
    const form = await ask(document.getElementById("cancel-dialog"));
    if (!form) return;
    const reason = given(form, "reason");
    const execution = await post(`${address}/cancel`, reason ? JSON.stringify({ reason }) : undefined);
    tell(execution.state === "CANCELLED" ? "It is cancelled." : "It was asked to end.");
  }

  async function hasten() {
    if (!window.confirm("Make the next attempt now?")) return;
    await post(`${address}/retry`);
    tell("Its next attempt is due now.");
  }

  async function run_again() {
    const form = await ask(again);
    if (!form) return;
    const members = [`"version": ${JSON.stringify(form.get("version"))}`];
    const reason = given(form, "reason");
    if (reason) members.push(`"reason": ${JSON.stringify(reason)}`);
    const field = again.querySelector("[name=payload]");
    // As text: to parse it and write it again would round numbers that JavaScript has no room for.
    if (field && field.value !== field.defaultValue) members.push(`"payload": ${field.value}`);
    const made = await post(`${address}/retry`, `{${members.join(", ")}}`);
    tell("It is run again: ", link(`/executions/${made.id}`, "the new execution"));
  }

  const DO = { cancel, hasten, again: run_again };

  async function act(button) {
    try {
      await DO[button.dataset.act]();
    } catch (error) {
      refuse(error);
    }
    window.htmx.trigger("#execution", "changed");
  }

  function check_payload() {
    const field = again.querySelector("[name=payload]");
    const fault = again.querySelector(".fault");
    if (!field) return;
    try {
      JSON.parse(field.value);
      fault.textContent = "";
    } catch (error) {
      fault.textContent = `This is not JSON: ${error.message}`;
    }
    fault.hidden = fault.textContent === "";
    field.setCustomValidity(fault.textContent);
    field.setAttribute("aria-invalid", String(!fault.hidden));
  }

  main.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act]");
    if (button) act(button);
  });
  again.addEventListener("input", check_payload);
  if (window.location.hash === "#again") {
    const button = document.getElementById("act-again");
    window.history.replaceState(null, "", window.location.pathname);
    if (button) act(button);
  }

  // --- What it says ---

  let last_attempt = 0;
  let dropped = 0;

  function made(tag, kind, text) {
    const element = document.createElement(tag);
    element.className = kind;
    element.textContent = text;
    return element;
  }

  function line_of(item) {
    const [kind, from] = FROM[item.stream] || ["", item.stream];
    const line = made("div", `line ${kind}`, "");
    const at = made("time", "at", "");
    at.dateTime = item.at;
    at.dataset.clock = "log";
    line.append(at, made("span", "from", from), made("span", "said", item.line));
    return line;
  }

  function attempt_of(number) {
    const head = made("p", "attempt", `Attempt ${number} `);
    head.append(link(`${address}/logs?whole=true&attempt=${number}`, "as text"));
    return head;
  }

  function add(items) {
    if (items.length === 0) return;
    const nothing = log.querySelector(".empty");
    if (nothing) nothing.remove();
    const fresh = document.createDocumentFragment();
    for (const item of items) {
      if (item.attempt !== last_attempt) fresh.append(attempt_of(item.attempt));
      last_attempt = item.attempt;
      fresh.append(line_of(item));
    }
    log.append(fresh);
    while (log.childElementCount > LINES_KEPT) {
      log.firstElementChild.remove();
      dropped += 1;
    }
    if (follows.checked) log.scrollTop = log.scrollHeight;
  }

  function until_seen() {
    if (!document.hidden) return Promise.resolve();
    return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }

  async function read(cursor) {
    const asked = new URLSearchParams({ limit: LINES_A_PAGE, wait: WAIT_S });
    if (cursor) asked.set("cursor", cursor);
    const response = await fetch(`${address}/logs?${asked}`, { headers: { accept: "application/json" } });
    if (!response.ok) throw new Error(`The server answered ${response.status}.`);
    return response.json();
  }

  async function follow() {
    let cursor = null;
    for (let ended = false; !ended;) {
      await until_seen();
      try {
        const page = await read(cursor);
        cursor = page.next_cursor;
        ended = page.ended;
        add(page.items);
        const cut = dropped ? `, the first ${dropped} are not shown` : "";
        log_state.textContent = (ended ? "complete" : "live") + cut;
      } catch {
        log_state.textContent = "cannot be read: trying again …";
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      }
    }
    const nothing = log.querySelector(".empty");
    if (nothing) nothing.textContent = "It said nothing.";
    window.htmx.trigger("#execution", "changed");
  }

  log.addEventListener("scroll", () => {
    const at_end = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
    if (follows.checked !== at_end) follows.checked = at_end;
  });
  follows.addEventListener("change", () => {
    if (follows.checked) log.scrollTop = log.scrollHeight;
  });
  follow();
})();
