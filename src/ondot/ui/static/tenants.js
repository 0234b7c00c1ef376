/* The buttons of the pages of tenants, through the API. A change sends only the fields that were changed. */
(() => {
  "use strict";

  const { ask, list, listen, refuse, report, send } = window.ondot;
  const COUNTS = new Set(["jobs", "payload_bytes", "concurrent", "reserved"]);
  const address = (name) => `/v1/tenants/${encodeURIComponent(name)}`;

  function quota_of(name, text) {
    if (!text) return null;
    return COUNTS.has(name) ? Number(text) : text;
  }

  /* The body of a change: fields whose text differs from what the page showed. */
  function changes_in(form) {
    const body = {};
    for (const field of form.querySelectorAll("input")) {
      const text = field.value.trim();
      if (text === field.defaultValue) continue;
      const { quota, target } = field.dataset;
      if (quota) (body.quotas ??= {})[quota] = quota_of(quota, text);
      else if (target) (body.targets ??= {})[target] = list(text);
      else if (field.type === "number") body[field.name] = text ? Number(text) : null;
      else body[field.name] = list(text);
    }
    return body;
  }

  listen({
    async create() {
      const dialog = document.getElementById("create-dialog");
      const form = await ask(dialog);
      if (!form) return false;
      const body = { name: form.get("name").trim(), weight: Number(form.get("weight")), pools: list(form.get("pools")) };
      await send("POST", "/v1/tenants", body);
      window.location.assign(`/tenants/${encodeURIComponent(body.name)}`);
      return false;
    },
    async change({ name }) {
      const dialog = document.getElementById("change-dialog");
      if (!(await ask(dialog))) return false;
      const body = changes_in(dialog.querySelector("form"));
      if (Object.keys(body).length === 0) return false;
      await send("PATCH", address(name), body);
      return true;
    },
    async suspend({ name }) {
      if (!await window.ondot.confirm(`Suspend ${name}? Nothing of it is planned or started; running work finishes.`)) return false;
      await send("POST", `${address(name)}/suspend`);
      return true;
    },
    async resume({ name }) {
      await send("POST", `${address(name)}/resume`);
      return true;
    },
    async delete({ name }) {
      report("Counting its rows …");
      const { counts } = await send("DELETE", `${address(name)}?dry_run=true`);
      report();
      const dialog = document.getElementById("delete-dialog");
      const words = Object.entries(counts).map(([what, count]) => `${count === null ? "many" : count.toLocaleString("en")} ${what.replaceAll("_", " ")}`);
      dialog.querySelector("[data-counts]").textContent = words.join(", ");
      const form = await ask(dialog);
      if (!form) return false;
      if (form.get("name").trim() !== name) {
        refuse(new Error(`Nothing was deleted: the name that you typed is not ${name}.`));
        return false;
      }
      await send("DELETE", address(name));
      return true;
    },
  });
})();
