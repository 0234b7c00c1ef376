/* A run as a timeline (W9): one row for each step, split into waiting, queued and running, earlier attempts included; the
   critical path is marked. Only the rows in the window are in the page, whatever the number of steps. */
(() => {
  "use strict";

  const { STATES, make, make_html, picture, took } = window.ondot;
  const ROW = 26;
  const BAR = 12;
  const HEAD = 28;
  const MARGIN_ROWS = 6;
  const ZOOMS = [1, 2, 4, 8, 16, 32, 64, 128, 256];
  const TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 6048e5];
  const TICK_PIXELS = 110;
  const ORDERS = { start: "by start", path: "critical path only", number: "as written" };

  function build(place, shape) {
    let steps = null;
    let rows = []; // step numbers, in the order in which they are shown
    let zoom = 1;
    let order = "start";
    let on_path = new Set();
    let early = new Map();
    let waits_for_frame = false;

    const scroller = make_html("div", "gantt-scroller");
    scroller.tabIndex = 0;
    scroller.setAttribute("role", "region");
    scroller.setAttribute("aria-label", "Timeline of the steps. The table shows the same steps.");
    const body = make_html("div", "gantt-body");
    const names = make_html("div", "gantt-names");
    const chart = make("svg", { class: "gantt", "aria-hidden": "true" });
    const summary = make_html("p", "quiet gantt-summary");
    const button = (text, label, act) => {
      const element = make_html("button", "act", text);
      element.type = "button";
      element.setAttribute("aria-label", label);
      element.addEventListener("click", act);
      return element;
    };
    const choice = make_html("select", "");
    choice.setAttribute("aria-label", "Which steps, and in which order");
    for (const [value, words] of Object.entries(ORDERS)) choice.append(new Option(words, value));
    choice.addEventListener("change", () => {
      order = choice.value;
      sort();
      scroller.scrollTop = 0;
      draw();
    });
    const zoom_by = (factor) => {
      const next = ZOOMS[Math.min(Math.max(ZOOMS.indexOf(zoom) + factor, 0), ZOOMS.length - 1)];
      const middle = (scroller.scrollLeft + scroller.clientWidth / 2) / chart_width();
      zoom = next;
      body.style.width = `${name_width() + chart_width()}px`;
      scroller.scrollLeft = middle * chart_width() - scroller.clientWidth / 2;
      draw();
    };
    const key = make_html("p", "counts", ...[["waits", "waiting"], ["queues", "queued"], ["runs", "running"], ["tried", "an earlier attempt"], ["critical", "critical path"]].map(([kind, text]) => {
      const swatch = make("svg", { class: "gantt sample", width: 26, height: 14, "aria-hidden": "true" });
      swatch.append(kind === "waits" ? make("line", { class: "waits", x1: 1, x2: 25, y1: 7, y2: 7 }) : make("rect", { class: kind === "critical" ? "runs succeeded critical" : kind === "tried" ? "tried" : `${kind} running`, x: 2, y: 2, width: 22, height: 10, rx: 2 }));
      return make_html("span", "", swatch, text);
    }));
    place.replaceChildren(
      make_html("div", "picture-head", summary, make_html("div", "tools", choice, button("−", "Zoom out", () => zoom_by(-1)), button("+", "Zoom in", () => zoom_by(1)))),
      key, scroller);
    body.append(names, chart);
    scroller.append(body);

    const name_width = () => (scroller.clientWidth < 600 ? 130 : 230);
    const chart_width = () => Math.max((scroller.clientWidth - name_width() - 20) * zoom, 100);
    const whole = () => Math.max(steps.now, 1);
    const x_of = (ms) => (ms / whole()) * (chart_width() - 8);

    function sort() {
      const all = shape.names.map((name, step) => step);
      const at = (step) => steps.released[step] ?? steps.ended[step] ?? Infinity;
      if (order === "path") rows = steps.path.slice();
      else if (order === "number") rows = all;
      else rows = all.sort((one, other) => at(one) - at(other) || one - other);
    }

    function tick_ms() {
      const wanted = (whole() / chart_width()) * TICK_PIXELS;
      return TICKS.find((tick) => tick >= wanted) || TICKS[TICKS.length - 1];
    }

    function bar(kind, from, to, y, more) {
      const x = x_of(from);
      return make("rect", { class: kind, x, y: y + (ROW - BAR) / 2, width: Math.max(x_of(to) - x, 2), height: BAR, rx: 2, ...more });
    }

    function draw_row(step, y) {
      const parts = [];
      const letter = steps.states[step];
      const [state] = STATES[letter];
      const [released, started, ended] = [steps.released[step], steps.started[step], steps.ended[step]];
      const end = ended ?? (steps.is_live && "PRTA".includes(letter) ? steps.now : null);
      const wait_end = released ?? ended ?? (steps.is_live && letter === "W" ? steps.now : null);
      if (wait_end) parts.push(make("line", { class: "waits", x1: x_of(0), x2: x_of(wait_end), y1: y + ROW / 2, y2: y + ROW / 2 }));
      if (released !== null && (started ?? end) !== null) parts.push(bar("queues", released, started ?? end, y));
      if (started !== null && end !== null) parts.push(bar(`runs ${state.toLowerCase()}${on_path.has(step) ? " critical" : ""}`, started, end, y));
      for (const [from, to] of early.get(step) || []) parts.push(bar("tried", from, to ?? from, y));
      return parts;
    }

    function words_of(step) {
      const parts = [STATES[steps.states[step]][1]];
      const [released, started, ended] = [steps.released[step], steps.started[step], steps.ended[step]];
      if (released !== null) parts.push(`waited ${took(released)}`);
      if (released !== null && started !== null) parts.push(`queued ${took(started - released)}`);
      if (started !== null && ended !== null) parts.push(`ran ${took(ended - started)}`);
      if (early.has(step)) parts.push(`${early.get(step).length} earlier ${early.get(step).length === 1 ? "attempt" : "attempts"}`);
      if (on_path.has(step)) parts.push("on the critical path");
      return parts.join(", ");
    }

    function draw() {
      if (!steps) return;
      const top = scroller.scrollTop;
      const first = Math.max(Math.floor(top / ROW) - MARGIN_ROWS, 0);
      const last = Math.min(Math.ceil((top + scroller.clientHeight) / ROW) + MARGIN_ROWS, rows.length);
      const [height, width] = [HEAD + rows.length * ROW, chart_width()];
      body.style.width = `${name_width() + width}px`;
      body.style.height = `${height}px`;
      names.style.width = `${name_width()}px`;
      const offset = first * ROW;
      chart.style.left = `${name_width()}px`;
      chart.style.top = `${offset}px`;
      chart.setAttribute("width", width);
      chart.setAttribute("height", HEAD + (last - first) * ROW);
      const parts = [];
      const tick = tick_ms();
      const [from_ms, to_ms] = [(scroller.scrollLeft / width) * whole(), ((scroller.scrollLeft + scroller.clientWidth) / width) * whole()];
      for (let at = Math.floor(from_ms / tick) * tick; at <= Math.min(to_ms, whole()); at += tick) {
        const x = x_of(at);
        parts.push(make("line", { class: "tick", x1: x, x2: x, y1: 0, y2: HEAD + (last - first) * ROW }));
        parts.push(make("text", { class: "tick", x: x + 4, y: Math.max(top - offset, 0) + 16 }, at === 0 ? "start" : `+${took(at)}`));
      }
      for (let index = first; index < last; index += 1) parts.push(...draw_row(rows[index], HEAD + (index - first) * ROW));
      chart.replaceChildren(...parts);
      const focused = document.activeElement && document.activeElement.dataset && document.activeElement.dataset.step;
      names.replaceChildren(...rows.slice(first, last).map((step, index) => {
        const link = make_html("a", `gantt-name ${STATES[steps.states[step]][0].toLowerCase()}`);
        const icon = make("svg", { class: "icon", "aria-hidden": "true" }, make("use", { href: `#i-${STATES[steps.states[step]][0]}` }));
        link.append(icon, make_html("bdi", "", shape.names[step]));
        if (on_path.has(step)) link.append(make_html("span", "critical-mark", "●"));
        link.href = `${place.dataset.step}${step}`;
        link.dataset.step = step;
        link.title = `${shape.names[step]}\n${words_of(step)}`;
        link.setAttribute("aria-label", `${shape.names[step]}, ${words_of(step)}`);
        link.style.top = `${HEAD + (first + index) * ROW}px`;
        return link;
      }));
      const again = focused && names.querySelector(`[data-step="${focused}"]`);
      if (again) again.focus({ preventScroll: true });
      place.dataset.drawn = String(last - first);
    }

    function draw_soon() {
      if (waits_for_frame) return;
      waits_for_frame = true;
      requestAnimationFrame(() => {
        waits_for_frame = false;
        draw();
      });
    }

    scroller.addEventListener("scroll", draw_soon);
    window.addEventListener("resize", draw_soon);
    scroller.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom_by(event.deltaY < 0 ? 1 : -1);
    }, { passive: false });

    return (fresh) => {
      steps = fresh;
      on_path = new Set(steps.path);
      early = new Map();
      for (const [step, from, to] of steps.early) early.set(step, [...(early.get(step) || []), [from, to]]);
      const ran = steps.path.reduce((sum, step) => sum + Math.max((steps.ended[step] ?? steps.now) - (steps.started[step] ?? steps.now), 0), 0);
      summary.textContent = steps.start_ms === null ? "The run has not started." : `${took(steps.now)} so far; the critical path has ${steps.path.length.toLocaleString()} ${steps.path.length === 1 ? "step" : "steps"}, which ran for ${took(ran)} of it.`.replace("so far; ", steps.is_live ? "so far; " : "in all; ");
      sort();
      draw();
    };
  }

  picture("gantt", build);
})();
