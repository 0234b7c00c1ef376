/* Single keys: move in lists, go to pages, do what this page offers. Never while a person types, never with Ctrl, Alt or
   ⌘, which belong to the browser. They can be switched off in the dialog of the key `?`, for those who speak to their
   computer. */
(() => {
  "use strict";

  const OFF = "ondot.keys-off";
  const AFTER_G_MS = 1500;
  const PLACES = {
    o: ["/", "Overview"], j: ["/jobs", "Jobs"], e: ["/executions", "Executions"], r: ["/runs", "Runs"], d: ["/dead-letters", "Dead letters"],
    i: ["/incidents", "Incidents"], f: ["/fleet", "Fleet"], n: ["/report", "Last night"], s: ["/schedules", "Schedules"], b: ["/bulk", "Bulk operations"],
    v: ["/events", "Events"], a: ["/alerts", "Alerts"],
  };
  const dialog = document.getElementById("keys-dialog");
  const on = document.getElementById("keys-on");
  let g_until_ms = 0;

  /* A browser may forbid the storage: then the choice holds for this page. */
  function read_off() {
    try {
      return window.localStorage.getItem(OFF) === "yes";
    } catch {
      return false;
    }
  }

  function keep_off(is_off) {
    try {
      window.localStorage.setItem(OFF, is_off ? "yes" : "no");
    } catch {
      // As above.
    }
  }

  /* A field of a dialog that has just closed may still have the focus. */
  const is_typing = (element) => element.checkVisibility() && (element.isContentEditable || element.matches("input:not([type=checkbox]), textarea, select"));

  /* The link of each row; rows of tables, and of lists that can be selected. */
  function links() {
    const rows = document.querySelectorAll("main tbody tr, main .letter-list > li, main .groups > li, main .findings > li");
    return [...rows].filter((row) => row.checkVisibility()).map((row) => row.querySelector("th a[href], a[href]")).filter(Boolean);
  }

  const row_of = (element) => element.closest("tr, li");

  function move(step) {
    const all = links();
    if (!all.length) return;
    const here = document.activeElement && document.activeElement.closest("main") ? row_of(document.activeElement) : null;
    const at = here ? all.findIndex((link) => row_of(link) === here) : -1;
    const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1);
    all[next].focus();
  }

  function select() {
    const row = document.activeElement && row_of(document.activeElement);
    const box = row && row.querySelector("input[type=checkbox]");
    if (box) box.click();
  }

  function search() {
    const field = document.querySelector("main input[type=search]");
    if (field) field.focus();
    else document.getElementById("find-open").click();
  }

  const of_page = () => [...document.querySelectorAll("main [data-key]")].filter((one) => !one.disabled && one.checkVisibility());

  const key_of = (letter) => Object.assign(document.createElement("kbd"), { textContent: letter });

  function describe(entries) {
    const parts = document.createDocumentFragment();
    for (const [letter, words] of entries) {
      const part = document.createElement("span");
      part.className = "whole";
      part.append(key_of(letter), ` ${words} `);
      parts.append(part, " ");
    }
    return parts;
  }

  function show_help() {
    dialog.querySelector("[data-places]").replaceChildren(describe(Object.entries(PLACES).map(([letter, [, words]]) => [letter, words])));
    const here = of_page().map((one) => [one.dataset.key, one.textContent.trim()]);
    dialog.querySelector("[data-of-page]").hidden = here.length === 0;
    dialog.querySelector("[data-keys]").replaceChildren(describe(here));
    on.checked = !read_off();
    dialog.showModal();
  }

  const KEYS = { j: () => move(1), k: () => move(-1), x: select, "/": search };

  function act(key) {
    if (KEYS[key]) {
      KEYS[key]();
      return true;
    }
    const button = of_page().find((one) => one.dataset.key === key);
    if (button) button.click();
    return Boolean(button);
  }

  document.addEventListener("keydown", (event) => {
    const is_ours = !event.defaultPrevented && !event.isComposing && (!event.repeat || ["j", "k"].includes(event.key));
    if (!is_ours || event.ctrlKey || event.metaKey || event.altKey || is_typing(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key === "?") {
      event.preventDefault();
      show_help();
      return;
    }
    if (read_off()) return;
    const is_after_g = performance.now() < g_until_ms;
    g_until_ms = 0;
    if (is_after_g && PLACES[event.key]) {
      event.preventDefault();
      window.location.assign(PLACES[event.key][0]);
    } else if (event.key === "g") g_until_ms = performance.now() + AFTER_G_MS;
    else if (act(event.key)) event.preventDefault();
  });
  on.addEventListener("change", () => keep_off(!on.checked));
})();
