/* An execution's buttons and its live log, both through the API. htmx requests the rest of the page again. */
(() => {
  "use strict";

  const { ask, link, post, refuse, report } = window.ondot;
  const main = document.getElementById("main");
  const log = document.getElementById("log");
  const log_state = document.getElementById("log-state");
  const follows = document.getElementById("follow");
  const again = document.getElementById("again-dialog");
  const address = `/v1/executions/${main.dataset.execution}`;
  const WAIT_S = 10; // a browser has six connections to a server for all tabs: hold none for long, and none in a hidden tab
  const LINES_PER_PAGE = 1000;
  const LINES_KEPT = 5000;
  const RETRY_MS = 2000;
  const FROM = { log: ["handler", "log"], stdout: ["stdout", "out"], stderr: ["stderr", "err"] };

  // --- Buttons ---

  const field_of = (form, name) => (form.get(name) || "").trim();

  async function cancel() {
    const form = await ask(document.getElementById("cancel-dialog"));
    if (!form) return;
    const reason = field_of(form, "reason");
    const execution = await post(`${address}/cancel`, reason ? JSON.stringify({ reason }) : undefined);
    report(execution.state === "CANCELLED" ? "The execution is cancelled." : "The execution was asked to stop.");
  }

  async function retry_now() {
    if (!await window.ondot.confirm("Retry now? This makes the next attempt at once.")) return;
    await post(`${address}/retry`);
    report("The next attempt is due now.");
  }

  async function run_again() {
    const form = await ask(again);
    if (!form) return;
    const members = [`"version": ${JSON.stringify(form.get("version"))}`];
    const reason = field_of(form, "reason");
    if (reason) members.push(`"reason": ${JSON.stringify(reason)}`);
    const field = again.querySelector("[name=payload]");
    // As text: parsing and writing it again would round numbers that are too large for JavaScript.
    if (field && field.value !== field.defaultValue) members.push(`"payload": ${field.value}`);
    const replay = await post(`${address}/retry`, `{${members.join(", ")}}`);
    report("The execution is replayed: ", link(`/executions/${replay.id}`, "the new execution"));
  }

  const ACTIONS = { cancel, hasten: retry_now, again: run_again };

  async function act(button) {
    try {
      await ACTIONS[button.dataset.act]();
    } catch (error) {
      refuse(error);
    }
    window.htmx.trigger("#execution", "changed");
  }

  main.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act]");
    if (button) act(button);
  });
  if (window.location.hash === "#again") {
    const button = document.getElementById("act-again");
    window.history.replaceState(null, "", window.location.pathname);
    if (button) act(button);
  }

  // --- Log ---

  let last_attempt = 0;
  let dropped = 0;

  function make(tag, kind, text) {
    const element = document.createElement(tag);
    element.className = kind;
    element.textContent = text;
    return element;
  }

  function line_of(item) {
    const [kind, from] = FROM[item.stream] || ["", item.stream];
    const line = make("div", `line ${kind}`, "");
    const at = make("time", "at", "");
    at.dateTime = item.at;
    at.dataset.clock = "log";
    line.append(at, make("span", "from", from), make("span", "text", item.line));
    return line;
  }

  function attempt_of(number) {
    const head = make("p", "attempt", `Attempt ${number} `);
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

  function wait_until_visible() {
    if (!document.hidden) return Promise.resolve();
    return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }

  async function read(cursor) {
    const query = new URLSearchParams({ limit: LINES_PER_PAGE, wait: WAIT_S });
    if (cursor) query.set("cursor", cursor);
    const response = await fetch(`${address}/logs?${query}`, { headers: { accept: "application/json" } });
    if (!response.ok) throw new Error(`The server returned ${response.status}.`);
    return response.json();
  }

  async function follow() {
    let cursor = null;
    for (let ended = false; !ended;) {
      await wait_until_visible();
      try {
        const page = await read(cursor);
        cursor = page.next_cursor;
        ended = page.ended;
        add(page.items);
        const cut = dropped ? `, the first ${dropped} are not shown` : "";
        log_state.textContent = (ended ? "complete" : "live") + cut;
      } catch {
        log_state.textContent = "cannot be read, retrying …";
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
    const nothing = log.querySelector(".empty");
    if (nothing) nothing.textContent = "No log lines.";
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
