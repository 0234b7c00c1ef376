/* The form of a job: shows the inputs of the chosen kinds, checks JSON as it is typed, and leaves out the preview of
   what has none. htmx requests the preview. Without this script all inputs are shown, and the server says what is wrong. */
(() => {
  "use strict";

  const EXAMPLES = { cron: "0 9 * * 1-5", every: "15m", rrule: "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9", in: "10m", at: "", event: "", now: "" };
  const LABELS = { event: "Type of the event", at: "Instant", in: "Delay", every: "Interval" };
  const PREVIEWED = ["cron", "every", "rrule"];
  const form = document.getElementById("job-form");
  const { kind, target, expression } = form.elements;
  const texts = { ...EXAMPLES, [kind.value]: expression.value }; // the last text of each kind

  function show_kinds() {
    for (const part of form.querySelectorAll("[data-of]")) part.hidden = !part.dataset.of.split(" ").includes(kind.value);
    for (const part of form.querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== target.value;
    form.querySelector("[data-label]").textContent = LABELS[kind.value] || "Expression";
    expression.rows = kind.value === "rrule" ? 4 : 1;
    document.getElementById("preview").hidden = !PREVIEWED.includes(kind.value);
  }

  function change_kind() {
    texts[form.dataset.kind] = expression.value;
    form.dataset.kind = kind.value;
    expression.value = texts[kind.value] || "";
  }

  /* An empty text is no JSON, and allowed: the field is left out. */
  function check_json(field) {
    let words = "";
    try {
      const value = field.value.trim() === "" ? {} : JSON.parse(field.value);
      if (field.dataset.json === "object" && (value === null || typeof value !== "object" || Array.isArray(value))) words = "Write a JSON object.";
    } catch (error) {
      words = `This is not JSON: ${error.message}`;
    }
    document.getElementById(`fault-${field.name}`).textContent = words;
    field.setAttribute("aria-invalid", String(words !== ""));
  }

  form.addEventListener("input", (event) => {
    if (event.target === kind) change_kind();
    if (event.target.matches("[data-json]")) check_json(event.target);
    if (event.target === kind || event.target === target) show_kinds();
  });
  expression.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing && kind.value !== "rrule") event.preventDefault(); // it has one line
  });
  document.body.addEventListener("htmx:configRequest", (event) => {
    if (!PREVIEWED.includes(kind.value)) event.preventDefault();
  });
  document.body.addEventListener("htmx:afterSettle", () => {
    for (const fault of document.querySelectorAll("#when .fault")) {
      const field = form.elements[fault.id.replace("fault-", "")];
      if (field instanceof HTMLElement) field.setAttribute("aria-invalid", String(fault.textContent.trim() !== ""));
    }
    show_kinds();
  });
  show_kinds();
  const trouble = document.getElementById("trouble");
  const first = form.querySelector("[aria-invalid=true]") || trouble || (form.elements.name.value ? null : form.elements.name);
  if (first) first.focus();
})();
