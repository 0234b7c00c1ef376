/* The buttons of the page of hooks, through the API. A URL is shown once, and stays until the page is loaded again. */
(() => {
  "use strict";

  const { ask, listen, report, send } = window.ondot;
  const API = "/v1/hooks";

  function code(text) {
    const shown = document.createElement("code");
    shown.className = "breaks";
    shown.textContent = text;
    return shown;
  }

  function show_hook(words, answer) {
    const parts = answer.url ? [code(answer.url.startsWith("/") ? location.origin + answer.url : answer.url)] : ["its signing secret is replaced."];
    if (answer.secret) parts.push(" Its signing secret: ", code(answer.secret));
    report(words, ...parts, answer.url ? " This is shown only now. " : " ", window.ondot.link("/hooks", "Done"));
    document.getElementById("done").scrollIntoView({ block: "nearest" });
  }

  listen({
    async create() {
      const dialog = document.getElementById("create-dialog");
      const form = await ask(dialog);
      if (!form) return false;
      const body = { name: form.get("name"), type: form.get("type").trim(), signature: form.get("signature") };
      for (const name of ["source", "secret", "header"]) {
        if (form.get(name).trim()) body[name] = form.get(name).trim();
      }
      show_hook(`The hook ${body.name}: `, await send("POST", API, body));
      dialog.querySelector("form").reset();
      return false;
    },
    async rotate({ id, name }) {
      const dialog = document.getElementById("rotate-dialog");
      dialog.querySelector("[data-name]").textContent = name;
      const form = await ask(dialog);
      if (!form) return false;
      const body = { overlap: form.get("overlap").trim() };
      if (form.get("secret").trim()) body.secret = form.get("secret").trim();
      show_hook(`The hook ${name}: `, await send("POST", `${API}/${id}/rotate`, body));
      dialog.querySelector("form").reset();
      return false;
    },
    async remove({ id, name }) {
      if (!await window.ondot.confirm(`Delete ${name}? Its URL is refused within a second. This cannot be undone.`)) return false;
      await send("DELETE", `${API}/${id}`);
      return true;
    },
  });
})();
