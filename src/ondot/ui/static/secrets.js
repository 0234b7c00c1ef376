/* The buttons of the secrets' page, through the API. A value is sent once, and removed from its form. */
(() => {
  "use strict";

  const { ask, refuse } = window.ondot;
  const main = document.getElementById("main");

  async function send(method, name, body) {
    const options = { method, headers: { accept: "application/json" } };
    if (body) {
      options.body = JSON.stringify(body);
      options.headers["content-type"] = "application/json";
    }
    const response = await fetch(`/v1/secrets/${encodeURIComponent(name)}`, options);
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(answer.detail || answer.title || `The server returned ${response.status}.`);
  }

  async function ask_once(dialog) {
    const fields = await ask(dialog);
    dialog.querySelector("form").reset();
    return fields;
  }

  const ACTIONS = {
    async create() {
      const fields = await ask_once(document.getElementById("create-dialog"));
      if (!fields) return false;
      const hosts = fields.get("hosts").split(",").map((host) => host.trim()).filter(Boolean);
      await send("PUT", fields.get("name"), { value: fields.get("value"), ...(hosts.length ? { hosts } : {}) });
      return true;
    },
    async change({ name }) {
      const dialog = document.getElementById("change-dialog");
      dialog.querySelector("[data-name]").textContent = name;
      const fields = await ask_once(dialog);
      if (fields) await send("PUT", name, { value: fields.get("value") });
      return fields !== null;
    },
    async delete({ name, jobs }) {
      const used = jobs === "0" ? "" : " Jobs refer to it, and their next runs fail.";
      if (!window.confirm(`Delete ${name}?${used} This cannot be undone.`)) return false;
      await send("DELETE", name);
      return true;
    },
  };

  main.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-act]");
    if (!button) return;
    try {
      if (await ACTIONS[button.dataset.act](button.dataset)) window.location.reload();
    } catch (error) {
      refuse(error);
    }
  });
})();
