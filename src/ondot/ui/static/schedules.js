/* The form of a schedule. htmx requests the preview during typing, and puts the form into the address. This script does
   the rest: it hides fields that a kind does not use, keeps one text for each kind, removes defaults from the address,
   marks an outdated preview, and marks invalid fields for screen readers. */
(() => {
  "use strict";

  const DEFAULTS = { gap: "shift", fold: "first", business_days: "no", n: "10" };
  const form = document.getElementById("schedule");
  const { kind, expression } = form.elements;
  const texts = JSON.parse(form.dataset.examples); // the last text of each kind
  let is_away = false; // whether the last request failed

  function show_kind() {
    form.dataset.kind = kind.value;
    expression.rows = kind.value === "rrule" ? 4 : 1;
  }

  function change_kind() {
    if (form.dataset.kind === kind.value) return;
    texts[form.dataset.kind] = expression.value;
    expression.value = texts[kind.value] || "";
    show_kind();
  }

  function mark_faults() {
    for (const fault of form.querySelectorAll(".fault")) {
      const field = form.elements[fault.id.replace("fault-", "")];
      if (field instanceof HTMLElement) field.setAttribute("aria-invalid", String(fault.textContent.trim() !== ""));
    }
  }

  function mark_outdated(is_outdated) {
    for (const id of ["preview", "in-words"]) document.getElementById(id).classList.toggle("outdated", is_outdated);
  }

  function show_away() {
    is_away = true;
    document.getElementById("fault-form").textContent = "The server does not answer. The preview below is outdated.";
  }

  form.addEventListener("input", () => {
    change_kind();
    mark_outdated(true);
  });
  expression.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || kind.value === "rrule") return;
    event.preventDefault(); // a cron expression has one line
    form.requestSubmit();
  });
  document.body.addEventListener("htmx:configRequest", (event) => {
    const parameters = event.detail.parameters;
    for (const name of Object.keys(parameters)) {
      if (parameters[name] === "" || parameters[name] === DEFAULTS[name]) delete parameters[name];
    }
    parameters.expression = expression.value; // sent even if empty: without it the server shows an example
  });
  document.body.addEventListener("htmx:sendError", show_away);
  document.body.addEventListener("htmx:responseError", show_away);
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (!event.detail.successful) return;
    if (is_away) document.getElementById("fault-form").textContent = "";
    is_away = false;
  });
  document.body.addEventListener("htmx:afterSettle", () => {
    mark_outdated(false);
    mark_faults();
  });
  show_kind();
  mark_faults();
})();
