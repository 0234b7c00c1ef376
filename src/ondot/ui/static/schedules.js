/* The form of a schedule: htmx asks the server as somebody types, and puts the form into the address. Here is only what
   neither does: fields that the kind has no use for, fields left at their defaults, and what a screen reader must know. */
(() => {
  "use strict";

  const DEFAULTS = { gap: "shift", fold: "first", business_days: "no", n: "10" };
  const form = document.getElementById("schedule");

  function show_kind() {
    form.dataset.kind = form.elements.kind.value;
  }

  function mark_faults() {
    for (const fault of form.querySelectorAll(".fault")) {
      const field = form.elements[fault.id.replace("fault-", "")];
      if (field instanceof HTMLElement) field.setAttribute("aria-invalid", String(fault.textContent.trim() !== ""));
    }
  }

  form.addEventListener("input", show_kind);
  document.body.addEventListener("htmx:configRequest", (event) => {
    const sent = event.detail.parameters;
    for (const name of Object.keys(sent)) {
      if (sent[name] === "" || sent[name] === DEFAULTS[name]) delete sent[name];
    }
    sent.expression = form.elements.expression.value; // an empty one is not the example that no form shows
  });
  document.body.addEventListener("htmx:afterSettle", mark_faults);
  show_kind();
  mark_faults();
})();
