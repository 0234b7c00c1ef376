/* A workflow as a graph (W9). The worker folds the steps and places the nodes; this script draws them as links, which
   the keyboard reaches and screen readers read, and colours them again when states arrive. */
(() => {
  "use strict";

  const { STATES, URGENT, make, make_html, picture, took } = window.ondot;
  const NARROW = 700;
  const NAME_LENGTH = 30;
  const ZOOMS = [0.15, 0.25, 0.4, 0.6, 0.8, 1, 1.3, 1.7];
  const READABLE = 0.6; // smaller at first sight nobody can read
  const SMALL_CHARACTER = 6.5;
  const BAR = 150;

  const short = (text, length = NAME_LENGTH) => {
    const letters = [...text];
    return letters.length <= length ? text : `${letters.slice(0, length - 1).join("")}…`;
  };

  function count_states(states, steps) {
    const counts = new Map();
    for (const step of steps) counts.set(states[step], (counts.get(states[step]) || 0) + 1);
    return counts;
  }

  const most_urgent = (counts) => [...URGENT].find((letter) => counts.has(letter)) || "W";

  /* A line through the points of dagre, with soft corners. */
  function path_of(points) {
    const [first, ...rest] = points;
    let path = `M${first.x},${first.y}`;
    for (let index = 0; index < rest.length - 1; index += 1) {
      const middle = { x: (rest[index].x + rest[index + 1].x) / 2, y: (rest[index].y + rest[index + 1].y) / 2 };
      path += ` Q${rest[index].x},${rest[index].y} ${middle.x},${middle.y}`;
    }
    const last = rest[rest.length - 1];
    return `${path} L${last.x},${last.y}`;
  }

  function build(place, shape) {
    const worker = place.dataset.worker ? new Worker(place.dataset.worker) : null;
    const absolute = (address) => new URL(address, window.location.href).href;
    const all = shape.names.map((name, step) => step);
    const maps = new Set(shape.maps);
    const trail = []; // the groups that are open, from the outside
    let steps = null; // the last states
    let drawn = []; // {node, group, label, …} of what is in the picture
    let zoom = null;
    let size = { width: 0, height: 0 };
    let asked = 0;

    const crumbs = make_html("p", "crumbs");
    const canvas = make_html("div", "canvas");
    const svg = make("svg", { class: "graph", role: "group", "aria-label": "Graph of the steps. The table shows the same steps." });
    const note = make_html("p", "quiet");
    const button = (text, label, act) => {
      const element = make_html("button", "act", text);
      element.type = "button";
      element.setAttribute("aria-label", label);
      element.addEventListener("click", act);
      return element;
    };
    const tools = make_html("div", "tools", button("−", "Smaller", () => zoom_by(-1)), button("+", "Larger", () => zoom_by(1)), button("Fit", "Fit the window", () => fit(true)));
    canvas.append(svg);
    place.replaceChildren(make_html("div", "picture-head", crumbs, tools), canvas, note);

    function set_zoom(value) {
      zoom = value;
      svg.setAttribute("width", Math.ceil(size.width * zoom));
      svg.setAttribute("height", Math.ceil(size.height * zoom));
    }

    function zoom_by(direction) {
      const next = direction > 0 ? ZOOMS.find((value) => value > zoom + 0.01) : [...ZOOMS].reverse().find((value) => value < zoom - 0.01);
      if (!next) return;
      const centre = { x: (canvas.scrollLeft + canvas.clientWidth / 2) / zoom, y: (canvas.scrollTop + canvas.clientHeight / 2) / zoom };
      set_zoom(next);
      canvas.scrollTo(centre.x * zoom - canvas.clientWidth / 2, centre.y * zoom - canvas.clientHeight / 2);
    }

    /* The whole picture; at first not smaller than people can read. */
    function fit(whole) {
      const room = Math.min(canvas.clientWidth / size.width, Math.max(window.innerHeight * 0.62, 240) / size.height, 1);
      set_zoom(Math.max(room, whole ? 0.05 : READABLE));
    }

    function describe(node, letter, counts) {
      const [, word] = STATES[letter];
      const step = node.steps[0];
      if (node.is_group) {
        const parts = [...counts].sort((one, other) => URGENT.indexOf(one[0]) - URGENT.indexOf(other[0]));
        return `${node.steps.length.toLocaleString()} steps: ${parts.map(([one, count]) => `${count.toLocaleString()} ${STATES[one][1]}`).join(", ")}`;
      }
      const map = steps && steps.maps && steps.maps[step];
      if (map) return `${word}, ${(map[1] + map[2]).toLocaleString()} of ${map[0].toLocaleString()} items${map[2] ? `, ${map[2].toLocaleString()} failed` : ""}`;
      const started = steps && steps.started && steps.started[step];
      const ended = steps && steps.ended && steps.ended[step];
      const again = steps && steps.generations && steps.generations[step] ? `, generation ${steps.generations[step]}` : "";
      if (!steps) return shape.kinds[step];
      return word + (started !== null && ended !== null && "SF".includes(letter) ? `, ${took(ended - started)}` : "") + again;
    }

    /* The bar of a group or of a map: what part of it is in which state. */
    function fill_bar(bar, node, counts) {
      const map = steps && steps.maps && steps.maps[node.steps[0]];
      const parts = node.is_group ? [..."SKFABTRPCW"].map((letter) => [letter, counts.get(letter) || 0])
        : map ? [["S", map[1]], ["F", map[2]], ["R", map[3]]] : [];
      const total = node.is_group ? node.steps.length : map ? map[0] : 0;
      let left = 0;
      bar.replaceChildren(make("rect", { class: "fill rest", width: BAR, height: 5, rx: 2 }));
      for (const [letter, count] of parts) {
        if (!count || !total) continue;
        const width = Math.max((BAR * count) / total, 1.5);
        bar.append(make("rect", { class: `fill ${STATES[letter][0].toLowerCase()}`, x: Math.min(left, BAR - width), width, height: 5 }));
        left += (BAR * count) / total;
      }
    }

    function colour() {
      for (const one of drawn) {
        const counts = steps ? count_states(steps.states, one.node.steps) : new Map();
        const letter = steps ? most_urgent(counts) : null;
        const name = one.node.is_group ? one.node.title : shape.names[one.node.steps[0]];
        const words = describe(one.node, letter || "W", counts);
        const state = letter ? STATES[letter][0] : "PLAIN";
        const mark = `${state} ${words}`;
        if (one.mark === mark) continue;
        one.mark = mark;
        one.link.setAttribute("class", `node ${state.toLowerCase()}${one.node.is_group ? " group" : ""}`);
        one.link.setAttribute("aria-label", `${name}, ${words}`);
        one.use.setAttribute("href", letter ? `#i-${state}` : "");
        one.words.textContent = short(words, Math.floor((one.node.width - 38) / SMALL_CHARACTER));
        one.tip.textContent = `${name}\n${words}`;
        if (one.bar) fill_bar(one.bar, one.node, counts);
        const child = steps && steps.children && !one.node.is_group && steps.children[one.node.steps[0]];
        if (child && !one.child) {
          one.child = make("a", { href: `/runs/${child}`, class: "child", "aria-label": `The run of ${name}` }, make("text", { x: one.node.width - 12, y: 18, "text-anchor": "end" }, "↗"));
          one.box.append(one.child);
        }
        if (child) one.child.setAttribute("href", `/runs/${child}`);
      }
    }

    function draw_node(node) {
      const { x, y, width, height } = node;
      const step = node.steps[0];
      const tip = make("title", {});
      const use = make("use", { x: 10, y: 8, width: 14, height: 14, class: "icon" });
      const words = make("text", { class: "words", x: 30, y: 36 });
      const bar = node.is_tall ? make("g", { transform: "translate(30, 45)" }) : null;
      const shapes = [tip, make("rect", { class: "card", width, height, rx: 8 }), use,
        make("text", { class: "name", x: 30, y: 19 }, short(node.is_group ? node.title : shape.names[step])), words];
      if (node.is_group) shapes.splice(1, 0, make("rect", { class: "card behind", x: 5, y: 5, width, height, rx: 8 }));
      if (maps.has(step) && !node.is_group) shapes.splice(1, 0, make("rect", { class: "card behind", x: 4, y: 4, width, height, rx: 8 }));
      if (bar) shapes.push(bar);
      const attributes = node.is_group || !place.dataset.step ? { href: "#" } : { href: `${place.dataset.step}${step}`, "data-step": step };
      const link = make("a", attributes, ...shapes);
      if (node.is_group) link.addEventListener("click", (event) => {
        event.preventDefault();
        trail.push({ title: node.title, steps: node.steps });
        lay_out(true);
      });
      else if (!place.dataset.step) link.addEventListener("click", (event) => event.preventDefault());
      const box = make("g", { transform: `translate(${x - width / 2}, ${y - height / 2})` }, link);
      return { node, link, box, tip, use, words, bar, child: null, mark: "" };
    }

    function draw(answer, is_opened) {
      size = { width: Math.max(answer.width, 1), height: Math.max(answer.height, 1) };
      svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
      const arrow = make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, make("path", { d: "M0,0.8 L7,4 L0,7.2 z" }));
      const lines = make("g", { class: "edges", "aria-hidden": "true" });
      for (const { points } of answer.edges) lines.append(make("path", { d: path_of(points), "marker-end": "url(#arrow)" }));
      drawn = answer.nodes.map(draw_node);
      svg.replaceChildren(make("defs", {}, arrow), lines, ...drawn.map((one) => one.box));
      fit(false);
      if (is_opened && drawn.length) drawn[0].link.focus({ preventScroll: true });
      const is_folded = drawn.some((one) => one.node.is_group);
      note.textContent = is_folded ? "Steps are folded into groups. Open a group to see its steps; arrow keys move between nodes." : "";
      show_trail();
      colour();
      place.dataset.drawn = String(drawn.length);
    }

    function show_trail() {
      const parts = [{ title: `All ${all.length.toLocaleString()} ${all.length === 1 ? "step" : "steps"}`, depth: 0 }, ...trail.map((group, index) => ({ title: group.title, depth: index + 1 }))];
      crumbs.replaceChildren(...parts.flatMap(({ title, depth }) => {
        const text = depth === trail.length ? make_html("b", "", title) : button(title, `Back to ${title}`, () => {
          trail.length = depth;
          lay_out(true);
        });
        return depth ? [" › ", text] : [text];
      }));
    }

    function lay_out(is_opened) {
      asked += 1;
      const wanted = trail.length ? trail[trail.length - 1].steps : all;
      worker.onmessage = ({ data }) => { if (data.id === asked) draw(data, is_opened); };
      worker.postMessage({ id: asked, steps: wanted, direction: place.clientWidth < NARROW ? "TB" : "LR" });
    }

    /* Arrow keys go to the nearest node in their direction. */
    const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    svg.addEventListener("keydown", (event) => {
      const direction = DIRECTIONS[event.key];
      const from = drawn.find((one) => one.link === document.activeElement);
      if (!direction || !from) return;
      let best = null;
      for (const one of drawn) {
        const [dx, dy] = [one.node.x - from.node.x, one.node.y - from.node.y];
        const along = dx * direction[0] + dy * direction[1];
        if (along <= 1) continue;
        const cost = along + 3 * Math.abs(dx * direction[1] + dy * direction[0]);
        if (!best || cost < best.cost) best = { one, cost };
      }
      event.preventDefault();
      if (best) best.one.link.focus();
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom_by(event.deltaY < 0 ? 1 : -1);
    }, { passive: false });
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.target.closest("a") || event.button || event.pointerType === "touch") return;
      dragged = { x: event.clientX + canvas.scrollLeft, y: event.clientY + canvas.scrollTop };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged) canvas.scrollTo(dragged.x - event.clientX, dragged.y - event.clientY);
    });
    canvas.addEventListener("pointerup", () => { dragged = null; });

    if (all.length === 0) {
      place.replaceChildren(make_html("p", "empty", "The workflow has no steps."));
      return () => {};
    }
    worker.postMessage({ scripts: [absolute(place.dataset.dagre), absolute(place.dataset.fold)], shape });
    lay_out(false);
    return (fresh) => {
      steps = fresh;
      colour();
    };
  }

  picture("graph", build);
})();
