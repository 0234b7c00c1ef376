/* The steps of a run for its pictures: the shape once, the states again while the run is live (W9).
   A picture registers with `ondot.picture(id, make)`; `make(place, shape, open)` returns a function that is called with
   the states each time they are read. Opening a step loads it into the panel beside the picture. */
(() => {
  "use strict";

  const STATES = {
    W: ["WAITING", "waiting"], P: ["PENDING", "queued"], R: ["RUNNING", "running"], T: ["RETRYING", "retrying"],
    A: ["APPROVAL", "needs approval"], S: ["SUCCEEDED", "succeeded"], F: ["FAILED", "failed"], K: ["SKIPPED", "skipped"],
    B: ["BLOCKED", "blocked"], C: ["CANCELLED", "cancelled"],
  };
  /* Which state names a group: the one that a person must see first. */
  const URGENT = "FABTRPCWKS";
  const AGAIN_MS = 2000;
  const STEPS_A_SECOND = 1500; // a run of 10,000 steps is read every 7 s
  const SVG = "http://www.w3.org/2000/svg";

  function make(tag, attributes, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function make_html(tag, kind, ...children) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    element.append(...children);
    return element;
  }

  /* "4 ms", "1.24 s", "3 min 05 s", as words/job.py writes it. */
  function took(ms) {
    const seconds = ms / 1000;
    if (seconds < 1) return `${Math.max(Math.round(ms), 0)} ms`;
    if (seconds < 10) return `${seconds.toFixed(2)} s`;
    if (seconds < 60) return `${seconds.toFixed(1)} s`;
    const whole = Math.floor(seconds);
    const two = (number) => String(number).padStart(2, "0");
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
    return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
  }

  async function read(address) {
    const response = await fetch(address, { headers: { accept: "application/json" } });
    if (!response.ok) throw new Error(`The server returned ${response.status}.`);
    return response.json();
  }

  function wait_until_visible() {
    if (!document.hidden) return Promise.resolve();
    return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }

  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

  // --- The panel of a step ---

  const panel = document.getElementById("step-panel");

  async function open(address) {
    if (!panel) {
      window.location.assign(address);
      return;
    }
    await window.htmx.ajax("GET", address, { target: panel, select: "#step", swap: "innerHTML" });
    panel.hidden = false;
    panel.focus({ preventScroll: true });
    panel.scrollIntoView({ block: "nearest" });
  }

  document.body.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-step]");
    if (!link || !panel || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    open(link.getAttribute("href"));
  });

  // --- Pictures ---

  async function picture(id, build) {
    const place = document.getElementById(id);
    if (!place) return;
    let update = null;
    for (;;) {
      await wait_until_visible();
      let steps = null;
      try {
        if (!place.dataset.steps) { // a workflow without a run
          build(place, await read(place.dataset.shape), open);
          return;
        }
        if (update === null) {
          const [shape, first] = await Promise.all([read(place.dataset.shape), read(place.dataset.steps)]);
          update = build(place, shape, open);
          steps = first;
        } else steps = await read(place.dataset.steps);
        place.classList.remove("outdated");
        update(steps);
      } catch (error) {
        place.classList.add("outdated");
        if (update === null) place.replaceChildren(make_html("p", "empty", `The steps cannot be read: ${error.message}`));
      }
      if (steps && !steps.is_live) await new Promise((resolve) => document.body.addEventListener("ondot:changed", resolve, { once: true }));
      else await Promise.race([
        pause(Math.max(AGAIN_MS, steps ? (steps.states.length / STEPS_A_SECOND) * 1000 : 0)),
        new Promise((resolve) => document.body.addEventListener("ondot:changed", resolve, { once: true })),
      ]);
    }
  }

  window.ondot = Object.assign(window.ondot || {}, { STATES, URGENT, make, make_html, open_step: open, picture, took });
})();
