/* Updates times between two events, and shows whether the page is live.
   The server renders durations and instants. This script updates durations by the server's clock, in the words of
   words/job.py, and shows instants in the reader's own zone. An observer converts everything that htmx or a script adds
   to the page before it is painted, so that no time jumps. This script fetches nothing: htmx holds the stream or
   requests the page again, and swaps the fragments. On a page without #liveness only the times are updated. */
(() => {
  "use strict";

  const page = document.getElementById("live-page");
  const SILENT_MS = Number(page.dataset.silentMs || 4500); // the feed sends an event each second; a page may poll less often
  const liveness = document.getElementById("liveness");
  const announce = document.getElementById("announce");
  let ahead_ms = 0; // how far the server's clock is ahead of this one
  let last_event_ms = performance.now();
  let is_live = null; // null: not yet known
  let announced_level = null;

  const two = (number) => String(number).padStart(2, "0");

  function elapsed(seconds) {
    const whole = Math.max(Math.floor(seconds), 0);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
    return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
  }

  const ahead = (seconds) => (seconds < 0.5 ? "now" : `in ${elapsed(seconds + 0.5)}`);

  const away = (seconds) => (seconds <= -1 ? `${elapsed(-seconds)} ago` : ahead(seconds));

  const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  const DAY = { day: "numeric", month: "short", ...TIME };
  const time_of_day = new Intl.DateTimeFormat(undefined, TIME);
  const time_of_log = new Intl.DateTimeFormat(undefined, { ...TIME, fractionalSecondDigits: 3 });
  const day_and_time = new Intl.DateTimeFormat(undefined, DAY);
  const whole_date = new Intl.DateTimeFormat(undefined, { ...DAY, year: "numeric" });
  const zone = whole_date.resolvedOptions().timeZone;
  let shown_day = null; // the day on which the times without a date were shown

  function set_text(element, text) {
    if (element && element.textContent !== text) element.textContent = text;
  }

  const found = (root, selector) => (root.matches(selector) ? [root] : root.querySelectorAll(selector));

  const in_utc = (at) => `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;

  /* data-clock: "" is the time of day, with the date if it is not today; "date" always has the date; "log" has
     milliseconds. The server writes UTC and the job's zone into the title; a relative time also gets the reader's. */
  function localize(root) {
    const now = new Date(Date.now() + ahead_ms);
    const today = now.toDateString();
    for (const element of found(root, "time[data-clock]")) {
      const at = new Date(element.dateTime);
      const kind = element.dataset.clock;
      const format = kind === "log" || (kind === "" && at.toDateString() === today) ? time_of_day
        : at.getFullYear() === now.getFullYear() ? day_and_time : whole_date;
      set_text(element, (kind === "log" ? time_of_log : format).format(at));
      if (!element.title) element.title = in_utc(at);
    }
    for (const element of found(root, "time[data-ahead], time[data-away], time[data-since]")) {
      if (zone === "UTC" || element.dataset.titled) continue;
      element.dataset.titled = "yes";
      element.title = `${whole_date.format(new Date(element.dateTime))} ${zone} · ${element.title}`;
    }
    for (const element of found(root, "[data-reader]")) set_text(element, zone);
    for (const table of found(root, "table[data-zone]")) table.classList.toggle("one-zone", table.dataset.zone === zone);
  }

  function tick() {
    if (is_live === false) return; // old numbers must not tick: a countdown would make them look live
    const now_ms = Date.now() + ahead_ms;
    const day = new Date(now_ms).toDateString();
    if (day !== shown_day) {
      shown_day = day; // after midnight "23:59:50" needs a date
      localize(page);
    }
    for (const element of page.querySelectorAll("time[data-ahead]")) {
      set_text(element, ahead((Date.parse(element.dateTime) - now_ms) / 1000));
    }
    for (const element of page.querySelectorAll("time[data-away]")) {
      set_text(element, away((Date.parse(element.dateTime) - now_ms) / 1000));
    }
    for (const element of page.querySelectorAll("time[data-since]")) {
      set_text(element, elapsed((now_ms - Date.parse(element.dateTime)) / 1000));
    }
    if (liveness && performance.now() - last_event_ms > SILENT_MS) show_broken();
  }

  function set_live(live, words) {
    if (is_live === live) return;
    const was = is_live;
    is_live = live;
    page.classList.toggle("stale", !live);
    if (!live || was === false) set_text(announce, words);
  }

  function show_broken() {
    if (is_live === false || !liveness) return;
    const last = liveness.querySelector("time");
    const mode = document.createElement("span");
    const lamp = document.createElement("span");
    mode.className = "mode away";
    mode.dataset.liveness = "broken";
    lamp.className = "lamp";
    mode.append(lamp, "Not live: reconnecting …");
    if (last) mode.append(" As of ", last.cloneNode(true));
    liveness.replaceChildren(mode);
    set_live(false, "Not live: reconnecting. The numbers are old.");
  }

  function set_clock() {
    const now = page.querySelector("[data-now]") || (page.dataset.now ? page : null);
    if (now) ahead_ms = Date.parse(now.dateTime || now.dataset.now) - Date.now();
  }

  function receive() {
    last_event_ms = performance.now();
    set_clock();
    const mode = liveness.querySelector("[data-liveness]");
    if (mode && mode.dataset.liveness === "away") set_live(false, "Not live: the database does not answer.");
    else set_live(true, "Live again.");
  }

  function announce_health() {
    const health = document.querySelector("[data-level]");
    if (!health || health.dataset.level === announced_level) return;
    if (announced_level !== null) set_text(announce, health.querySelector(".line").textContent);
    announced_level = health.dataset.level;
  }

  document.body.addEventListener("htmx:sseError", show_broken);
  document.body.addEventListener("htmx:sseMessage", (event) => {
    if (event.target === liveness) receive();
    if (event.target.id === "health") announce_health();
    tick();
  });

  document.body.addEventListener("htmx:sendError", show_broken);
  document.body.addEventListener("htmx:responseError", show_broken);
  document.body.addEventListener("htmx:afterSettle", () => {
    // Only after a response to a request: events of the stream are handled above.
    if (page.hasAttribute("sse-connect")) return;
    if (liveness) receive();
    else set_clock();
    tick();
  });

  new MutationObserver((records) => {
    const added = records.flatMap((record) => [...record.addedNodes]).filter((node) => node instanceof Element);
    if (!added.length) return; // only text, which this script wrote itself
    for (const element of added) localize(element);
    tick();
  }).observe(page, { childList: true, subtree: true });

  set_clock();
  set_text(document.getElementById("zone"), zone === "UTC" ? zone : `${zone}, the time zone of this browser; UTC is shown on hover`);
  announce_health();
  tick();
  setInterval(tick, 500);
})();
