/* The form of a schedule: htmx asks the server as somebody types, and puts the form into the address. Here is only what
   neither does: fields that the kind has no use for and a text for each kind, fields left at their defaults, a result
   that is no longer that of the form, and what a screen reader must know. */
(() => {
  "use strict";

  const DEFAULTS = { gap: "shift", fold: "first", business_days: "no", n: "10" };
  const form = document.getElementById("schedule");
  const { kind, expression } = form.elements;
  const texts = JSON.parse(form.dataset.examples); // of each kind, what was typed last
  let away = false; // whether the last question had no answer

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

  function mark_asking(asking) {
    for (const id of ["preview", "in-words"]) document.getElementById(id).classList.toggle("asking", asking);
  }

  function tell_away() {
    away = true;
    document.getElementById("fault-form").textContent = "The server does not answer: what is shown below is not of this form.";
  }

  form.addEventListener("input", () => {
    change_kind();
    mark_asking(true);
  });
  expression.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || kind.value === "rrule") return;
    event.preventDefault(); // a line more would be no cron expression
    form.requestSubmit();
  });
  document.body.addEventListener("htmx:configRequest", (event) => {
    const sent = event.detail.parameters;
    for (const name of Object.keys(sent)) {
      if (sent[name] === "" || sent[name] === DEFAULTS[name]) delete sent[name];
    }
    sent.expression = expression.value; // an empty one is not the example that no form shows
  });
  document.body.addEventListener("htmx:sendError", tell_away);
  document.body.addEventListener("htmx:responseError", tell_away);
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (!event.detail.successful) return;
    if (away) document.getElementById("fault-form").textContent = "";
    away = false;
  });
  document.body.addEventListener("htmx:afterSettle", () => {
    mark_asking(false);
    mark_faults();
  });
  show_kind();
  mark_faults();
})();
