/* The buttons of the secrets' page, through the API. A value is sent once, and removed from its form. */
(() => {
  "use strict";

  const { ask, list, listen, send } = window.ondot;

  const address = (name) => `/v1/secrets/${encodeURIComponent(name)}`;

  async function ask_once(dialog) {
    const fields = await ask(dialog);
    dialog.querySelector("form").reset();
    return fields;
  }

  const ACTIONS = {
    async create() {
      const fields = await ask_once(document.getElementById("create-dialog"));
      if (!fields) return false;
      const hosts = list(fields.get("hosts"));
      await send("PUT", address(fields.get("name")), { value: fields.get("value"), ...(hosts.length ? { hosts } : {}) });
      return true;
    },
    async change({ name }) {
      const dialog = document.getElementById("change-dialog");
      dialog.querySelector("[data-name]").textContent = name;
      const fields = await ask_once(dialog);
      if (fields) await send("PUT", address(name), { value: fields.get("value") });
      return fields !== null;
    },
    async delete({ name, jobs }) {
      const used = jobs === "0" ? "" : " Jobs refer to it, and their next runs fail.";
      if (!await window.ondot.confirm(`Delete ${name}?${used} This cannot be undone.`)) return false;
      await send("DELETE", address(name));
      return true;
    },
  };

  listen(ACTIONS);
})();
