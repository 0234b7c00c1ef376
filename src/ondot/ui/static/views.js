/* Saves the search of a list as a view, and deletes views, through the API. */
(() => {
  "use strict";

  const { ask, refuse, send } = window.ondot;
  const API = "/v1/views";

  async function save({ viewSave: q, of }) {
    const dialog = document.getElementById("view-dialog");
    dialog.querySelector("[data-q]").textContent = q;
    const form = await ask(dialog);
    if (!form) return false;
    await send("POST", API, { name: form.get("name").trim(), of, q, shared: form.get("shared") === "yes" });
    return true;
  }

  async function remove({ viewDelete: id, name }) {
    if (!window.confirm(`Delete the view ${name}? What it lists stays.`)) return false;
    await send("DELETE", `${API}/${id}`);
    return true;
  }

  document.getElementById("main").addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-view-save], button[data-view-delete]");
    if (!button) return;
    try {
      if (await ("viewSave" in button.dataset ? save : remove)(button.dataset)) window.location.reload();
    } catch (error) {
      refuse(error);
    }
  });
})();
