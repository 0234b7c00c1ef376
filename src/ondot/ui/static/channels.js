/* The buttons of the page of channels, through the API. A credential is sent once, and removed from its form. */
(() => {
  "use strict";

  const { ask, list, listen, report, send } = window.ondot;
  const API = "/v1/channels";

  function body_of(form) {
    const kind = form.get("kind");
    const secret = form.get("secret").trim();
    const value = secret ? { $secret: secret } : form.get("to").trim();
    const content = { email: { to: list(form.get("to")) }, slack: { url: value }, webhook: { url: value }, pagerduty: { routing_key: value } };
    return { name: form.get("name").trim(), [kind]: content[kind] };
  }

  listen({
    async create() {
      const dialog = document.getElementById("create-dialog");
      const form = await ask(dialog);
      if (!form) return false;
      await send("POST", API, body_of(form));
      dialog.querySelector("form").reset();
      return true;
    },
    async test({ name }) {
      report(`Sending a test message to ${name} …`);
      const sent = await send("POST", `${API}/${encodeURIComponent(name)}/test`);
      const words = { DELIVERED: `Delivered to ${name}. The receiver answered: ${sent.answer || "nothing"}`, FAILED: `Not delivered to ${name}: ${sent.error}` };
      report(words[sent.state] || `The message to ${name} waits to be sent: check that a scheduler runs.`);
      return false;
    },
    async remove({ name }) {
      if (!await window.ondot.confirm(`Delete ${name}? This cannot be undone.`)) return false;
      await send("DELETE", `${API}/${encodeURIComponent(name)}`);
      return true;
    },
  });
})();
