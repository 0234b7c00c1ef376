/* The buttons of the page of pings, through the API. A URL is shown once, and stays until the page is loaded again. */
(() => {
  "use strict";

  const { ask, listen, report, send } = window.ondot;
  const API = "/v1/pings";

  function show_ping(answer) {
    const shown = document.createElement("code");
    shown.className = "breaks";
    shown.textContent = answer.url.startsWith("/") ? location.origin + answer.url : answer.url;
    report(`The ping ${answer.name}: `, shown, " This is shown only now. ", window.ondot.link("/pings", "Done"));
    document.getElementById("done").scrollIntoView({ block: "nearest" });
  }

  listen({
    async create() {
      const dialog = document.getElementById("create-dialog");
      const form = await ask(dialog);
      if (!form) return false;
      const body = { name: form.get("name").trim(), grace: form.get("grace").trim() };
      const cron = form.get("cron").trim();
      const zone = form.get("timezone").trim();
      if (cron) body.schedule = { cron, ...(zone ? { timezone: zone } : {}) };
      else body.period = form.get("period").trim();
      show_ping(await send("POST", API, body));
      dialog.querySelector("form").reset();
      return false;
    },
    async rotate({ name }) {
      if (!await window.ondot.confirm(`Give ${name} a new URL? The old one is refused within a second.`)) return false;
      show_ping(await send("POST", `${API}/${encodeURIComponent(name)}/rotate`));
      return false;
    },
    async remove({ name }) {
      if (!await window.ondot.confirm(`Delete ${name}? Its URL is refused within a second. This cannot be undone.`)) return false;
      await send("DELETE", `${API}/${encodeURIComponent(name)}`);
      return true;
    },
  });
})();
