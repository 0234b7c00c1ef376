/* The buttons and the form of the page of alerts, through the API. The form shows what an alert would find before it exists. */
(() => {
  "use strict";

  const { ask, list, listen, send } = window.ondot;
  const API = "/v1/alerts";
  const dialog = document.getElementById("create-dialog");

  function threshold(field) {
    const value = field.value.trim();
    if (field.tagName === "SELECT") return value === "true";
    return field.dataset.form === "count" && /^\d+$/.test(value) ? Number(value) : value;
  }

  function body_of(form) {
    const kind = form.elements.kind.value;
    const thresholds = {};
    for (const field of form.querySelectorAll(`[name^="${kind}."]`)) {
      thresholds[field.name.slice(kind.length + 1)] = threshold(field);
    }
    const scope = {};
    const jobs = list(form.elements.jobs.value);
    if (jobs.length) scope.jobs = jobs;
    for (const label of list(form.elements.labels.value)) {
      const [name, ...value] = label.split("=");
      scope.labels = scope.labels || {};
      scope.labels[name] = [...(scope.labels[name] || []), value.join("=")];
    }
    return {
      name: form.elements.name.value.trim() || "new",
      when: { [kind]: thresholds },
      scope,
      for: form.elements.for.value.trim() || "0s",
      repeat: form.elements.repeat.value.trim() || null,
      notify: list(form.elements.notify.value),
    };
  }

  if (dialog) {
    const form = dialog.querySelector("form");
    const preview = document.getElementById("preview");
    form.elements.kind.addEventListener("change", () => {
      for (const label of form.querySelectorAll("[data-of]")) label.hidden = label.dataset.of !== form.elements.kind.value;
      preview.textContent = "";
    });
    document.getElementById("try").addEventListener("click", async () => {
      try {
        const found = await send("POST", `${API}/preview`, { ...body_of(form), notify: [] });
        const first = found.would_open ? "It would open an incident now: " : found.count ? "It holds, but not for long enough yet: " : "It would not open an incident now. ";
        const causes = found.causes.slice(0, 3).map((cause) => cause.message).join("; ");
        const more = found.count > 3 ? `; and ${found.count - 3} more` : "";
        preview.textContent = `${first}${causes}${more}${causes ? ". " : ""}In the last 24 hours alerts of this kind opened ${found.incidents_24h} ${found.incidents_24h === 1 ? "incident" : "incidents"}, whatever their scope.`;
      } catch (error) {
        preview.textContent = error.message;
      }
    });
  }

  listen({
    async create() {
      const form = await ask(dialog);
      if (!form) return false;
      await send("POST", API, body_of(dialog.querySelector("form")));
      return true;
    },
    async mute({ id, name }) {
      const length = window.prompt(`Send nothing about ${name} for:`, "1h");
      if (!length) return false;
      await send("POST", `${API}/${id}/mute`, { for: length.trim() });
      return true;
    },
    async unmute({ id }) {
      await send("POST", `${API}/${id}/mute`, { for: 0 });
      return true;
    },
    async remove({ id, name }) {
      if (!await window.ondot.confirm(`Delete ${name}? Its open incidents recover. This cannot be undone.`)) return false;
      await send("DELETE", `${API}/${id}`);
      return true;
    },
  });
})();
