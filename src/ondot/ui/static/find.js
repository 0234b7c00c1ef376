/* The box that finds anything: pages and the actions of this page at once, everything else by GET /v1/find. A combobox
   with a list: focus stays in the input, arrow keys choose, Enter opens, Escape closes. */
(() => {
  "use strict";

  const WAIT_MS = 120; // after the last key, before the server is asked
  const MOST = 14;
  const KINDS = { dead_letter: "dead letter", bulk: "bulk operation" };
  const dialog = document.getElementById("find-dialog");
  const input = document.getElementById("find");
  const list = document.getElementById("found");
  const status = document.getElementById("find-status");
  let shown = [];
  let chosen = -1;
  let timer = null;
  let asked = null; // the request that is under way

  const pages = [...document.querySelectorAll("#find-pages a")].map((link) => ({
    name: link.textContent, about: link.title, kind: "page", page: link.getAttribute("href"),
  }));

  /* The buttons and links of this page's title: what can be done here. */
  function actions() {
    const found = [...document.querySelectorAll("main .titled .act")].filter((one) => !one.disabled && one.checkVisibility());
    return found.map((one) => ({ name: one.textContent.trim(), about: "here", kind: "action", element: one }));
  }

  const fits = (item, text) => item.name.toLowerCase().includes(text) || (item.about || "").toLowerCase().includes(text);

  /* Names that begin with the text come first. */
  function local(text) {
    const all = [...actions(), ...pages].filter((item) => fits(item, text));
    const rank = (item) => (item.name.toLowerCase().startsWith(text) ? 0 : item.name.toLowerCase().includes(text) ? 1 : 2);
    return all.sort((one, other) => rank(one) - rank(other));
  }

  function searches(text) {
    if (!text) return [];
    return [["jobs", "/jobs"], ["executions", "/executions"]].map(([noun, path]) => ({
      name: `Search ${noun} for ${text}`, about: "", kind: "search", page: `${path}?q=${encodeURIComponent(text)}`,
    }));
  }

  function choose(place) {
    chosen = shown.length ? (place + shown.length) % shown.length : -1;
    [...list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === chosen)));
    if (chosen < 0) input.removeAttribute("aria-activedescendant");
    else {
      input.setAttribute("aria-activedescendant", `found-${chosen}`);
      list.children[chosen].scrollIntoView({ block: "nearest" });
    }
  }

  function option_of(item, at) {
    const option = document.createElement("li");
    const name = document.createElement("span");
    const kind = document.createElement("span");
    option.id = `found-${at}`;
    option.setAttribute("role", "option");
    name.textContent = item.name;
    kind.className = "quiet";
    kind.textContent = [item.kind, item.about].filter(Boolean).join(" · ");
    option.append(name, " ", kind);
    option.addEventListener("click", () => open(item));
    return option;
  }

  function show(items) {
    shown = items.slice(0, MOST);
    list.replaceChildren(...shown.map(option_of));
    input.setAttribute("aria-expanded", String(shown.length > 0));
    status.textContent = shown.length === 1 ? "1 result" : `${shown.length} results`;
    choose(0);
  }

  function open(item) {
    dialog.close();
    if (item.element) item.element.click();
    else window.location.assign(item.page);
  }

  const seconds = (item) => KINDS[item.kind] || item.kind;

  async function ask(text, here) {
    if (asked) asked.abort();
    asked = new AbortController();
    try {
      const response = await fetch(`/v1/find?limit=10&q=${encodeURIComponent(text)}`, { headers: { accept: "application/json" }, signal: asked.signal });
      if (!response.ok) return;
      const { items } = await response.json();
      const found = items.map((item) => ({ name: item.name || item.id, about: [item.state && item.state.toLowerCase(), item.about].filter(Boolean).join(" · "), kind: seconds(item), page: item.page, match: item.match }));
      const named = found.filter((item) => ["id", "key", "name", "id-prefix"].includes(item.match));
      const by_name = here.filter((item) => item.name.toLowerCase().includes(text.toLowerCase()));
      const suggested = found.filter((item) => !named.includes(item));
      const by_title = here.filter((item) => !by_name.includes(item));
      show([...named, ...by_name.slice(0, 6), ...suggested, ...by_title.slice(0, 4), ...searches(text)].slice(0, MOST));
    } catch {
      // The next key asks again; what is known here stays.
    }
  }

  function update() {
    clearTimeout(timer);
    const text = input.value.trim();
    const here = local(text.toLowerCase());
    show([...here, ...searches(text)]);
    if (text) timer = setTimeout(() => ask(text, here), WAIT_MS);
  }

  function start() {
    if (document.querySelector("dialog[open]")) return;
    input.value = "";
    dialog.showModal();
    input.focus();
    update();
  }

  input.addEventListener("input", update);
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) choose(chosen + move);
    else if (event.key === "Home" && event.ctrlKey) choose(0);
    else if (event.key === "End" && event.ctrlKey) choose(shown.length - 1);
    else if (event.key === "Enter" && chosen >= 0) open(shown[chosen]);
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside the box
  });
  dialog.addEventListener("close", () => {
    clearTimeout(timer);
    if (asked) asked.abort();
  });
  document.getElementById("find-open").addEventListener("click", (event) => {
    event.preventDefault();
    start();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || event.shiftKey || event.altKey || event.ctrlKey === event.metaKey) return;
    event.preventDefault();
    start();
  });
  if (/Mac|iPhone|iPad/.test(navigator.platform)) document.querySelector("#find-open kbd").textContent = "⌘K";
})();
