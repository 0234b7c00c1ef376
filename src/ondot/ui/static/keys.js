/* The buttons of the page of API keys, through the API. A key is shown once, and stays until the page is loaded again. */
(() => {
  "use strict";

  const { ask, list, listen, report, send } = window.ondot;
  const API = "/v1/keys";

  function show_key(words, answer) {
    const code = document.createElement("code");
    code.className = "breaks";
    code.textContent = answer.key;
    report(words, code, " It is shown only now. ", window.ondot.link("/keys", "Done"));
    document.getElementById("done").scrollIntoView({ block: "nearest" });
  }

  listen({
    async create() {
      const dialog = document.getElementById("create-dialog");
      const form = await ask(dialog);
      if (!form) return false;
      const body = { name: form.get("name"), role: form.get("role") };
      if (form.get("expires_in").trim()) body.expires_in = form.get("expires_in").trim();
      for (const name of ["scopes", "pools"]) {
        const listed = list(form.get(name));
        if (listed.length) body[name] = listed;
      }
      show_key(`The key ${body.name}: `, await send("POST", API, body));
      dialog.querySelector("form").reset();
      return false;
    },
    async rotate({ id, name }) {
      const dialog = document.getElementById("rotate-dialog");
      dialog.querySelector("[data-name]").textContent = name;
      const form = await ask(dialog);
      if (!form) return false;
      show_key(`The new key ${name}: `, await send("POST", `${API}/${id}/rotate`, { overlap: form.get("overlap").trim() }));
      return false;
    },
    async revoke({ id, name }) {
      if (!await window.ondot.confirm(`Revoke ${name}? It is refused within a second. This cannot be undone.`)) return false;
      await send("DELETE", `${API}/${id}`);
      return true;
    },
  });
})();
