/* The buttons of the users' page, through the API. */
(() => {
  "use strict";

  const { ask, listen, report, send } = window.ondot;
  const API = "/v1/users";

  function show_link(words, answer) {
    const code = document.createElement("code");
    code.className = "breaks";
    code.textContent = answer.invitation.url;
    report(words, code, " It is shown only now.");
  }

  const ACTIONS = {
    async invite() {
      const form = await ask(document.getElementById("invite-dialog"));
      if (!form) return false;
      const body = { email: form.get("email"), name: form.get("name"), role: form.get("role") };
      show_link(`Pass this link on to ${body.email}: `, await send("POST", API, body));
      return false;
    },
    async role({ id, email, role }) {
      const dialog = document.getElementById("role-dialog");
      dialog.querySelector("[data-email]").textContent = email;
      dialog.querySelector("select").value = role;
      const form = await ask(dialog);
      if (form) await send("PATCH", `${API}/${id}`, { role: form.get("role") });
      return form !== null;
    },
    async reset({ id, email }) {
      if (!await window.ondot.confirm(`Reset ${email}? The password and all sessions end, and you get a new link.`)) return false;
      show_link(`Pass this link on to ${email}: `, await send("POST", `${API}/${id}/reset`));
      return false;
    },
    async disable({ id, email }) {
      if (!await window.ondot.confirm(`Disable ${email}? All sessions end within a second.`)) return false;
      await send("PATCH", `${API}/${id}`, { state: "DISABLED" });
      return true;
    },
    async enable({ id }) {
      await send("PATCH", `${API}/${id}`, { state: "ACTIVE" });
      return true;
    },
    async delete({ id, email }) {
      if (!await window.ondot.confirm(`Delete ${email}? This cannot be undone.`)) return false;
      await send("DELETE", `${API}/${id}`);
      return true;
    },
  };

  listen(ACTIONS);
})();
