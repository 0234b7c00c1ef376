/* The buttons of the page of sinks, through the API. */
(() => {
  "use strict";

  const { ask, list, listen, report, send } = window.ondot;
  const at = (name) => `/v1/sinks/${encodeURIComponent(name)}`;

  listen({
    async create() {
      const dialog = document.getElementById("create-dialog");
      const form = await ask(dialog);
      if (!form) return false;
      const webhook = { url: form.get("url").trim(), batch: Number(form.get("batch") || 1) };
      await send("PUT", at(form.get("name").trim()), { types: list(form.get("types")), webhook });
      dialog.querySelector("form").reset();
      return true;
    },
    async test({ name }) {
      report(`Sending a test event to ${name} …`);
      const sent = await send("POST", `${at(name)}/test`);
      const words = { DELIVERED: `Delivered to ${name}.`, REFUSED: `${name} refused it: ${sent.error}`, FAILED: `Not delivered to ${name}: ${sent.error}` };
      report(words[sent.state] || `The event waits for ${sent.waiting} others: check that a scheduler runs.`);
      return false;
    },
    async pause({ name }) {
      await send("POST", `${at(name)}/pause`);
      return true;
    },
    async resume({ name }) {
      await send("POST", `${at(name)}/resume`);
      return true;
    },
    async remove({ name }) {
      if (!await window.ondot.confirm(`Delete ${name}? Events that it has not sent are not sent any more.`)) return false;
      await send("DELETE", at(name));
      return true;
    },
  });
})();
